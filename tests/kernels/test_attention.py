"""Paged attention against torch's own in float64, and its masks against each other."""

import pytest
import torch
from torch import Tensor

from outrider.kernels.attention import (
    PAGE,
    BiasTable,
    Heads,
    attend,
    causal_bias,
    make_block,
    tree_sum,
)

SHAPE = Heads(heads=2, group=3, width=16, tile=4)


def reference(q: Tensor, keys: Tensor, values: Tensor, start: int, window: int | None) -> Tensor:
    """Float64 attention of q [n, H, G, D] over flat keys and values [H, positions, D]."""
    rows, positions = len(q), keys.shape[1]
    at = torch.arange(start, start + rows)[:, None]
    key = torch.arange(positions)[None, :]
    seen = key <= at if window is None else (key <= at) & (key > at - window)
    wide = q.double().permute(1, 2, 0, 3).flatten(0, 1)
    full = [x.double().repeat_interleave(q.shape[2], 0) for x in (keys, values)]
    out = torch.nn.functional.scaled_dot_product_attention(wide, *full, attn_mask=seen, scale=1.0)
    return out.view(*q.shape[1:3], rows, -1).permute(2, 0, 1, 3)


@pytest.mark.parametrize("window", [None, 24, 100])
@pytest.mark.parametrize("start", [0, 5, 63, 64, 130, 500])
@pytest.mark.parametrize("rows", [1, 2, 9, 64])
def test_attention_equals_torch(start: int, rows: int, window: int | None) -> None:
    seed = torch.Generator().manual_seed(start)
    pages = (start + rows - 1) // PAGE + 1
    keys, values = torch.randn(2, pages, SHAPE.heads, PAGE, SHAPE.width, generator=seed).unbind()
    q = torch.randn(rows, SHAPE.heads, SHAPE.group, SHAPE.width, generator=seed)
    block = make_block(slice(0, rows), start, SHAPE, {}, q)
    bias = causal_bias(start, rows, SHAPE.group, SHAPE.tile, window, q.device)
    ours = attend(q, keys, values, block, bias)
    flat = [pages.transpose(0, 1).flatten(1, 2) for pages in (keys, values)]
    expected = reference(q, *flat, start, window)
    torch.testing.assert_close(ours.double(), expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize("rows", [1, 3, 64])
def test_the_table_masks_as_the_computed_bias_does(rows: int) -> None:
    table = BiasTable(SHAPE.group, SHAPE.tile, torch.device("cpu"))
    for start in range(0, 200):
        computed = causal_bias(start, rows, SHAPE.group, SHAPE.tile, None, torch.device("cpu"))
        used = rows * SHAPE.group
        assert torch.equal(table.at(start, rows)[:, :, :used], computed[:, :, :used])
        assert (table.at(start, rows)[0].amax(-1) == 0).all(), "every padding row sees something"


def test_tree_sum_ignores_trailing_zeros() -> None:
    parts = torch.randn(37, 5, 3, generator=torch.Generator().manual_seed(2))
    for count in range(1, 37):
        padded = torch.cat([parts[:count], torch.zeros(37 - count, 5, 3)])
        assert torch.equal(tree_sum(parts[:count]), tree_sum(padded))
    torch.testing.assert_close(tree_sum(parts), parts.sum(0))

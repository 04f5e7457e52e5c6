"""The delta rule read from base and log, against the plain recurrence in float64."""

import pytest
import torch
from torch import Tensor

from outrider.ops.delta import Slot, apply_rows, fold, make_rows, visibility

KEY_HEADS, GROUP, KEY_WIDTH, WIDTH = 2, 3, 16, 8
HEADS = KEY_HEADS * GROUP


def inputs(count: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Unit keys and queries [n, 2, K, A], values [n, K, r, D], decay and strength [n, V]."""
    seed = torch.Generator().manual_seed(count)
    pairs = torch.randn(count, 2, KEY_HEADS, KEY_WIDTH, generator=seed)
    pairs = pairs / pairs.norm(dim=-1, keepdim=True)
    values = torch.randn(count, KEY_HEADS, GROUP, WIDTH, generator=seed)
    decay = -torch.rand(count, HEADS, generator=seed)
    return pairs, values, decay, torch.rand(count, HEADS, generator=seed)


def recurrence(pairs: Tensor, values: Tensor, decay: Tensor, strength: Tensor) -> Tensor:
    """S <- exp(g) S + k d^T, d = b (v - S^T k), out = S^T q; token by token, in float64."""
    state = torch.zeros(HEADS, KEY_WIDTH, WIDTH, dtype=torch.float64)
    outputs = []
    for pair, value, g, b in zip(pairs, values, decay, strength, strict=True):
        key, query = pair.double().repeat_interleave(GROUP, 1)
        state = state * g.double().exp()[:, None, None]
        recalled = torch.einsum("had,ha->hd", state, key)
        correction = b.double()[:, None] * (value.flatten(0, 1).double() - recalled)
        state = state + torch.einsum("ha,hd->had", key, correction)
        outputs.append(torch.einsum("had,ha->hd", state, query))
    return torch.stack(outputs).view(values.shape)


def new_slot(chunk: int) -> Slot:
    return Slot.over(
        torch.zeros(KEY_HEADS, KEY_WIDTH, chunk + GROUP * WIDTH),
        torch.full((HEADS, chunk, WIDTH), 7.0),  # rows of a window that was taken back
        torch.full((HEADS, chunk), -50.0),
    )


def run(chunk: int, widths: list[int], tile: int) -> Tensor:
    pairs, values, decay, strength = inputs(sum(widths))
    visible = visibility(chunk, torch.device("cpu"))
    slot, done, outputs = new_slot(chunk), 0, []
    for width in widths:
        first, part = done % chunk, slice(done, done + width)
        if first == 0 and done:
            following = new_slot(chunk)
            following.base.copy_(fold(slot))
            slot = following
        rows = make_rows(first, width, (KEY_HEADS, HEADS), KEY_WIDTH, visible, tile)
        rows.target.copy_(pairs[part])
        outputs.append(apply_rows(rows, values[part], (decay[part], strength[part]), slot))
        done += width
    return torch.cat(outputs)


@pytest.mark.parametrize(
    ("chunk", "widths", "tile"),
    [
        (8, [1] * 40, 1),
        (8, [8] * 5, 4),
        (8, [3, 5, 8, 1, 7, 2, 2, 4, 8], 4),
        (32, [32, 32, 9], 16),
        (1, [1] * 20, 8),
    ],
)
def test_outputs_equal_the_recurrence(chunk: int, widths: list[int], tile: int) -> None:
    expected = recurrence(*inputs(sum(widths)))
    torch.testing.assert_close(run(chunk, widths, tile).double(), expected, atol=1e-5, rtol=0)


def test_extreme_decay_stays_finite() -> None:
    """Entries of taken-back rows with huge decays must not reach later rows as inf * 0."""
    visible = visibility(4, torch.device("cpu"))
    slot = new_slot(4)
    slot.decays.fill_(-1e30)
    pairs, values, decay, strength = inputs(1)
    rows = make_rows(0, 1, (KEY_HEADS, HEADS), KEY_WIDTH, visible, 1)
    rows.target.copy_(pairs)
    out = apply_rows(rows, values, (decay, strength), slot)
    expected = recurrence(pairs, values, decay, strength)
    torch.testing.assert_close(out.double(), expected, atol=1e-5, rtol=0)

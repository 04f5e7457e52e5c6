"""Causal grouped-query attention over paged keys, the same bits for a row in any window.

Fused attention kernels change a row's rounding with the number of rows and of keys. Here every
matrix product has a shape that depends on neither: keys lie in pages of PAGE positions, query rows
are padded to a multiple of `tile`, and per-page partial sums are added in a fixed binary tree in
which a page that is masked adds exact zeros. docs/decisions/row-invariance.md has the evidence.

Shapes: n rows, H key-value heads, G query heads for each, D head width, P pages, M padded rows.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from outrider.kernels.rows import padded_rows

PAGE = 64
MASKED = float("-inf")
ROW_BLOCK = 64
"""Rows attended at once; bounds the scores to ROW_BLOCK x G x keys per key-value head."""


@dataclass(frozen=True, slots=True)
class Heads:
    """Shape of grouped-query attention, and the multiple that its rows are padded to."""

    heads: int
    group: int
    width: int
    tile: int


@dataclass(frozen=True, slots=True)
class Block:
    """Consecutive rows of a pass that are attended together, with scratch that layers share.

    rows: which of a span's rows. pages: how many pages they see. queries: [P * H, M, D], zero in
    the padding; `target` is its part [P, n, H, G, D] that a layer fills. biases: by sliding window
    (None: full), from `causal_bias` or `BiasTable`.
    """

    rows: slice
    pages: int
    queries: Tensor
    target: Tensor
    biases: dict[int | None, Tensor]


def make_block(
    rows: slice, start: int, shape: Heads, biases: dict[int | None, Tensor], like: Tensor
) -> Block:
    """The block of `rows` that stand at positions start.. of their sequence."""
    count = rows.stop - rows.start
    pages = (start + count - 1) // PAGE + 1
    padded = padded_rows(count * shape.group, shape.tile)
    queries = like.new_zeros(pages, shape.heads, padded, shape.width)
    used = queries.narrow(2, 0, count * shape.group)
    target = used.view(pages, shape.heads, count, shape.group, shape.width).transpose(1, 2)
    return Block(rows, pages, queries.flatten(0, 1), target, biases)


def causal_bias(
    start: int, rows: int, group: int, tile: int, window: int | None, device: torch.device
) -> Tensor:
    """0 where a row may look, -inf elsewhere: [pages, 1, padded rows * group, PAGE].

    Covers only pages that some row may not see in full: from `start`'s page on, or all of them
    under a sliding `window` (a row at position p then sees p - window + 1 .. p).
    """
    first = 0 if window is not None else start // PAGE
    last = (start + rows - 1) // PAGE
    keys = torch.arange(first * PAGE, (last + 1) * PAGE, device=device)
    queries = start + torch.arange(padded_rows(rows * group, tile), device=device) // group
    queries = queries.clamp(max=start + rows - 1)  # padding rows must see something, or 0/0
    hidden = keys[None, :] > queries[:, None]
    if window is not None:
        hidden |= keys[None, :] <= queries[:, None] - window
    bias = torch.zeros(hidden.shape, device=device).masked_fill_(hidden, MASKED)
    return bias.view(len(queries), -1, PAGE).transpose(0, 1).unsqueeze(1)


class BiasTable:
    """`causal_bias` of full attention for any start, as views of one table.

    Up to ROW_BLOCK rows that start within the table's first page: [rows * group, 2 pages].
    """

    def __init__(self, group: int, tile: int, device: torch.device) -> None:
        self.group, self.tile = group, tile
        rows = PAGE + ROW_BLOCK + tile
        keys = torch.arange(2 * PAGE, device=device)
        queries = torch.arange(rows * group, device=device) // group
        hidden = keys[None, :] > queries[:, None]
        table = torch.zeros(hidden.shape, device=device).masked_fill_(hidden, MASKED)
        self.table = table.view(-1, 2, PAGE).transpose(0, 1).unsqueeze(1)

    def at(self, start: int, rows: int) -> Tensor:
        """[1 or 2 pages, 1, padded rows * group, PAGE]; padding rows see more, never nothing."""
        offset = start % PAGE
        pages = (offset + rows - 1) // PAGE + 1
        padded = padded_rows(rows * self.group, self.tile)
        return self.table.narrow(0, 0, pages).narrow(2, offset * self.group, padded)


def attend(q: Tensor, keys: Tensor, values: Tensor, block: Block, bias: Tensor) -> Tensor:
    """Attention of rows q [n, H, G, D] (already scaled) over the first pages of their sequence.

    keys, values: [at least P, H, PAGE, D], own positions included; bias: [B, 1, M, PAGE] for the
    last B pages. Returns [n, H, G, D].
    """
    rows, heads, group, width = q.shape
    block.target.copy_(q)
    page_keys = keys.narrow(0, 0, block.pages).view(-1, PAGE, width)
    scores = torch.bmm(block.queries, page_keys.transpose(1, 2))
    scores = scores.view(block.pages, heads, -1, PAGE)
    hidden = bias.shape[0]
    scores.narrow(0, block.pages - hidden, hidden).add_(bias)
    scores = scores.float()
    weights = scores.sub_(scores.amax(dim=(0, 3), keepdim=True)).exp_()
    page_values = values.narrow(0, 0, block.pages).view(-1, PAGE, width)
    mixed = torch.bmm(weights.to(values.dtype).flatten(0, 1), page_values)
    parts = [mixed.view(block.pages, heads, -1, width), weights.sum(-1, keepdim=True)]
    mixed, total = tree_sum(torch.cat(parts, -1)).narrow(1, 0, rows * group).split([width, 1], 2)
    kept = torch.div(mixed, total).view(heads, rows, group, width)
    return kept.transpose(0, 1).to(q.dtype)


def tree_sum(parts: Tensor) -> Tensor:
    """Sum over the first axis, pairing neighbours: trailing zeros never change the result."""
    shape = parts.shape[1:]
    while (count := len(parts)) > 1:
        odd = parts.narrow(0, count - 1, 1) if count % 2 else None
        even = parts if odd is None else parts.narrow(0, 0, count - 1)
        left, right = even.view(-1, 2, *shape).unbind(1)
        parts = left + right if odd is None else torch.cat([left + right, odd])
    return parts[0]

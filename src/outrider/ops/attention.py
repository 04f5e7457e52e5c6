"""Causal grouped-query attention over paged keys, the same bits for a row in any window.

Fused attention kernels change a row's rounding with the number of rows and of keys. Here every
matrix product has a shape that depends on neither: keys lie in pages of PAGE positions, query rows
are padded to a multiple of `tile`, and per-page partial sums are added in a fixed binary tree in
which a page that is masked adds exact zeros. docs/decisions/row-invariance.md has the evidence.

Shapes: n rows, H key-value heads, G query heads for each, D head width, P pages.
"""

import torch
from torch import Tensor

from outrider.ops.rows import pad_rows, padded_rows

PAGE = 64
MASKED = float("-inf")
ROW_BLOCK = 64
"""Rows attended at once; bounds the scores to ROW_BLOCK x G x keys per key-value head."""


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


def attend(q: Tensor, keys: Tensor, values: Tensor, start: int, bias: Tensor) -> Tensor:
    """Attention of rows q [n, H, G, D] (already scaled) at positions start.. over pages.

    keys, values: [at least P, H, PAGE, D], own positions included; bias from `causal_bias`,
    whose row count says how far rows are padded. Returns [n, H, G, D].
    """
    num_rows, heads, group, width = q.shape
    padded = bias.shape[2]
    pages = (start + num_rows - 1) // PAGE + 1
    rows = pad_rows(q.transpose(0, 1).reshape(heads, num_rows * group, width), padded)
    stacked = rows.expand(pages, heads, padded, width).reshape(pages * heads, padded, width)
    page_keys = keys[:pages].reshape(pages * heads, PAGE, width)
    scores = torch.bmm(stacked, page_keys.transpose(1, 2)).view(pages, heads, padded, PAGE)
    scores[pages - bias.shape[0] :] += bias
    scores = scores.float()
    weights = scores.sub_(scores.amax(dim=(0, 3), keepdim=True)).exp_()
    total = tree_sum(weights.sum(-1))
    flat = weights.view(pages * heads, padded, PAGE).to(values.dtype)
    page_values = values[:pages].reshape(pages * heads, PAGE, width)
    mixed = tree_sum(torch.bmm(flat, page_values).view(pages, heads, padded, width))
    out = mixed / total.unsqueeze(-1)
    kept = out[:, : num_rows * group].reshape(heads, num_rows, group, width)
    return kept.transpose(0, 1).to(q.dtype)


def tree_sum(parts: Tensor) -> Tensor:
    """Sum over the first axis, pairing neighbours: trailing zeros never change the result."""
    while parts.shape[0] > 1:
        even = parts.shape[0] // 2 * 2
        paired = parts[0:even:2] + parts[1:even:2]
        parts = torch.cat([paired, parts[even:]]) if even < parts.shape[0] else paired
    return parts[0]

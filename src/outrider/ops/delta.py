"""The gated delta rule (Yang et al. 2024, Gated Delta Networks) read from a base state and a log.

Per value head the recurrence is S <- exp(g) S + k d^T with the correction d = b (v - exp(g) S^T k),
output S^T q. Unrolled from a base state B, with G the decay summed since B:

    d_t = b_t (v_t - exp(G_t) B^T k_t - sum_{j<t} exp(G_t - G_j) (k_t . k_j) d_j)
    o_t = exp(G_t) B^T q_t + sum_{j<=t} exp(G_t - G_j) (q_t . k_j) d_j

So a row needs the base and a short log of (k, d, g); the base moves only at multiples of the chunk
length. Taking rows back is forgetting log entries: nothing is copied or recomputed. All products
have the fixed width of a chunk, and unwritten or taken-back entries get weight exactly zero, so
a row has the same bits in every window that contains it.

Shapes: n rows, K key heads, V value heads (V a multiple of K), A key width, D value width,
C chunk length. Everything is fp32.
"""

import torch
from torch import Tensor

from outrider.ops.rows import pad_rows, padded_rows

HIDDEN = float("-inf")


def visibility(first: int, rows: int, chunk: int, device: torch.device) -> Tensor:
    """0 or -inf, [2, n, C], for rows at chunk offsets first..first+n-1.

    [0] is for corrections (strictly earlier entries), [1] for outputs (own entry included).
    """
    offsets = torch.arange(first, first + rows, device=device)[:, None]
    entries = torch.arange(chunk, device=device)[None, :]
    hidden = torch.stack([entries >= offsets, entries > offsets])
    return torch.zeros(hidden.shape, device=device).masked_fill_(hidden, HIDDEN)


def fold(base: Tensor, keys: Tensor, corrections: Tensor, decays: Tensor) -> Tensor:
    """The base at the end of a full chunk: [V, A, D] from the base and log of that chunk."""
    total = decays.cumsum(1)
    left = torch.exp(total[:, -1:] - total)
    weighted = _per_value_head(keys, base.shape[0]) * left.unsqueeze(-1)
    carried = base * torch.exp(total[:, -1])[:, None, None]
    return torch.baddbmm(carried, weighted.transpose(1, 2), corrections)


def apply_rows(
    keys_and_queries: Tensor,
    values: Tensor,
    gates: tuple[Tensor, Tensor],
    base: Tensor,
    log: tuple[Tensor, Tensor, Tensor],
    visible: Tensor,
    first: int,
    tile: int,
) -> Tensor:
    """Run n rows that lie in one chunk from offset `first` on, and write them to the log.

    keys_and_queries: [K, 2n, A], keys first. values: [V, n, D]. gates: (decay [V, n] in log space,
    strength [V, n]). base: [V, A, D]. log: keys [K, C, A], corrections [V, C, D], decays [V, C],
    all written in place. visible: from `visibility`. Returns [V, n, D].
    """
    log_keys, log_corrections, log_decays = log
    decay, strength = gates
    heads, rows = values.shape[:2]
    log_keys[:, first : first + rows] = keys_and_queries[:, :rows]
    log_decays[:, first : first + rows] = decay
    summed = log_decays.cumsum(1)
    own = summed[:, first : first + rows]
    lag = (own[:, :, None] - summed[:, None, :]).unsqueeze(1) + visible
    both = pad_rows(keys_and_queries, padded_rows(2 * rows, tile))
    similarity = _per_value_head(torch.bmm(both, log_keys.transpose(1, 2)), heads)[:, : 2 * rows]
    read = torch.bmm(_per_value_head(both, heads), base)[:, : 2 * rows]
    read = read.view(heads, 2, rows, -1) * own.exp()[:, None, :, None]
    weights = similarity.view(heads, 2, rows, -1) * lag.exp_()
    strength = strength.unsqueeze(-1)
    wanted = (values - read[:, 0]) * strength
    _solve(wanted, weights[:, 0] * strength, log_corrections, first)
    mixing = pad_rows(weights[:, 1], padded_rows(rows, tile))
    return torch.bmm(mixing, log_corrections)[:, :rows] + read[:, 1]


def _solve(wanted: Tensor, weights: Tensor, corrections: Tensor, first: int) -> None:
    """d_t = wanted_t - weights_t @ corrections, row after row, written to the log."""
    for row in range(wanted.shape[1]):
        earlier = torch.bmm(weights[:, row : row + 1], corrections)
        corrections[:, first + row] = wanted[:, row] - earlier[:, 0]


def _per_value_head(x: Tensor, heads: int) -> Tensor:
    """Repeat [K, ...] so that each key head serves heads // K consecutive value heads."""
    return x if x.shape[0] == heads else x.repeat_interleave(heads // x.shape[0], 0)

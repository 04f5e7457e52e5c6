"""The gated delta rule (Yang et al. 2024, Gated Delta Networks) read from a base state and a log.

Per value head the recurrence is S <- exp(g) S + k d^T with the correction d = b (v - exp(g) S^T k),
output S^T q. Unrolled from a base state B, with G the decay summed since B:

    d_t = b_t (v_t - exp(G_t) B^T k_t - sum_{j<t} exp(G_t - G_j) (k_t . k_j) d_j)
    o_t = exp(G_t) B^T q_t + sum_{j<=t} exp(G_t - G_j) (q_t . k_j) d_j

So a row needs the base and a short log of (k, d, g); the base moves only at multiples of the chunk
length. Taking rows back is forgetting log entries: nothing is copied or recomputed. All products
have the fixed width of a chunk, and unwritten or taken-back entries get weight exactly zero, so
a row has the same bits in every window that contains it.

The keys of the log lie as columns beside the base, so that one product reads both.

Shapes: n rows, K key heads, r value heads for each, V = K r, A key width, D value width, C chunk
length, M = 2n padded. Everything is fp32.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from outrider.ops.rows import padded_rows

HIDDEN = float("-inf")


@dataclass(frozen=True, slots=True)
class Slot:
    """One chunk of one layer: memory [K, A, C + r D], corrections [V, C, D], decays [V, C].

    `keys` [K, A, C] and `base` [K, A, r D] are the two parts of `memory`.
    """

    memory: Tensor
    keys: Tensor
    base: Tensor
    corrections: Tensor
    decays: Tensor

    @classmethod
    def over(cls, memory: Tensor, corrections: Tensor, decays: Tensor) -> "Slot":
        chunk = decays.shape[1]
        keys, base = memory.split([chunk, memory.shape[2] - chunk], 2)
        return cls(memory, keys, base, corrections, decays)


@dataclass(frozen=True, slots=True)
class Rows:
    """n rows of a pass that lie in one chunk from offset `first` on, with scratch for layers.

    visible: [2, n, C] from `visibility`. both: [K, M, A], zero in the padding; `target` is its
    part [n, 2, K, A] that a layer fills with normalised keys and queries. weights: [K, r, 2, n, C]
    in zeroed scratch, of which `solving` is the first half [V, n, C] and `mixing` the second one
    with its padding [V, padded n, C].
    """

    first: int
    visible: Tensor
    both: Tensor
    target: Tensor
    weights: Tensor
    solving: Tensor
    mixing: Tensor


def visibility(chunk: int, device: torch.device) -> Tensor:
    """0 or -inf, [2, C, C]: what the row at each offset of a chunk sees of the log.

    [0] is for corrections (strictly earlier entries), [1] for outputs (own entry included).
    """
    offsets = torch.arange(chunk, device=device)
    later = offsets[None, :] - offsets[:, None]
    hidden = torch.stack([later >= 0, later > 0])
    return torch.zeros(hidden.shape, device=device).masked_fill_(hidden, HIDDEN)


def make_rows(
    first: int, rows: int, heads: tuple[int, int], width: int, visible: Tensor, tile: int
) -> Rows:
    """Rows at offsets first..; `visible` from `visibility`, heads K and V, `width` A."""
    key_heads, value_heads = heads
    both = visible.new_zeros(key_heads, padded_rows(2 * rows, tile), width)
    target = both.narrow(1, 0, 2 * rows).view(key_heads, 2, rows, width).permute(2, 1, 0, 3)
    scratch = visible.new_zeros(value_heads, 2, padded_rows(rows, tile), visible.shape[2])
    used = scratch.narrow(2, 0, rows)
    weights = used.unflatten(0, (key_heads, -1))
    now = visible.narrow(1, first, rows)
    return Rows(first, now, both, target, weights, used.select(1, 0), scratch.select(1, 1))


def fold(slot: Slot) -> Tensor:
    """The base at the end of a full chunk: [K, A, r D]."""
    key_heads, wide = slot.base.shape[0], slot.base.shape[2]
    heads, chunk = slot.decays.shape
    total = slot.decays.cumsum(1)
    end = total.narrow(1, chunk - 1, 1)
    weighted = slot.corrections * torch.exp(end - total).unsqueeze(-1)
    weighted = weighted.view(key_heads, -1, chunk, wide * key_heads // heads).transpose(1, 2)
    share = end.exp().view(key_heads, 1, -1, 1)
    carried = (slot.base.unflatten(2, (share.shape[2], -1)) * share).reshape(slot.base.shape)
    return torch.baddbmm(carried, slot.keys, weighted.reshape(key_heads, chunk, wide))


def apply_rows(rows: Rows, values: Tensor, gates: tuple[Tensor, Tensor], slot: Slot) -> Tensor:
    """Run the rows whose keys and queries are in `rows.both`, and write them to the log.

    values: [n, K, r, D]. gates: decay [n, V] in log space and strength [n, V]. Returns
    [n, K, r, D].
    """
    decay, strength = gates
    count, key_heads, group, width = values.shape
    chunk = slot.decays.shape[1]
    slot.keys.narrow(2, rows.first, count).copy_(rows.both.narrow(1, 0, count).transpose(1, 2))
    found = torch.bmm(rows.both, slot.memory).narrow(1, 0, 2 * count)
    similar, read = found.view(key_heads, 1, 2, count, -1).split([chunk, group * width], 4)
    faded = _weigh(rows, decay, similar, slot)
    recalled, answer = (read.view(key_heads, 2, count, group, width) * faded).unbind(1)
    each = strength.view(count, key_heads, group, 1).transpose(0, 1)
    wanted = (values.transpose(0, 1) - recalled) * each
    wanted = wanted.transpose(1, 2).reshape(-1, count, width)
    _solve(wanted, rows.solving * strength.t().unsqueeze(2), slot.corrections, rows.first)
    mixed = torch.bmm(rows.mixing, slot.corrections).narrow(1, 0, count)
    mixed = mixed.view(key_heads, group, count, width).transpose(1, 2)
    return torch.add(answer, mixed).transpose(0, 1)


def _weigh(rows: Rows, decay: Tensor, similar: Tensor, slot: Slot) -> Tensor:
    """Fill `rows.weights` from products [K, 1, 2, n, C] and decays; returns exp(G) [K,1,n,r,1]."""
    count = decay.shape[0]
    slot.decays.narrow(1, rows.first, count).copy_(decay.t())
    summed = slot.decays.cumsum(1)
    own = summed.narrow(1, rows.first, count).unsqueeze(2)
    lag = (own - summed.unsqueeze(1)).unsqueeze(1) + rows.visible
    torch.mul(lag.exp_().view(rows.weights.shape), similar, out=rows.weights)
    return own.exp().view(len(similar), 1, -1, count, 1).transpose(2, 3)


def _solve(wanted: Tensor, weights: Tensor, corrections: Tensor, first: int) -> None:
    """d_t = wanted_t - weights_t @ corrections, row after row, written to the log.

    wanted: [V, n, D], weights: [V, n, C].
    """
    places = corrections.narrow(1, first, wanted.shape[1])
    parts = [part.split(1, 1) for part in (wanted, weights, places)]
    for row, weight, place in zip(*parts, strict=True):
        torch.sub(row, torch.bmm(weight, corrections), out=place)

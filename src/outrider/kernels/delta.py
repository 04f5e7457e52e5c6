"""The gated delta rule (Yang et al. 2024, Gated Delta Networks) read from a base state and a log.

Per value head the recurrence is S <- exp(g) S + k d^T with the correction d = b (v - exp(g) S^T k),
output S^T q. Unrolled from a base state B, with G the decay summed since B:

    d_t = w_t - sum_{j<t} b_t exp(G_t - G_j) (k_t . k_j) d_j,  w_t = b_t (v_t - exp(G_t) B^T k_t)
    o_t = exp(G_t) B^T q_t + sum_{j<=t} exp(G_t - G_j) (q_t . k_j) d_j

The sum over corrections is a unit lower triangular system, d = X w, in which only w depends on the
base. So the log holds keys, decays and the rows of the inverse X beside w: a row of X follows from
the rows before it, whatever the base, and all chunks of a prompt are inverted at once. The base
moves only at multiples of the chunk length. Taking rows back is forgetting log entries: nothing is
copied or recomputed. All products have the fixed width of a chunk, and unwritten or taken-back
entries get weight exactly zero, so a row has the same bits in every window that contains it.

Shapes: n rows, K key heads, r value heads for each, V = K r, A key width, D value width, C chunk
length, M = 2n padded. Where N whole chunks are weighed together, their heads stand one after
another as N K and N V heads. Everything is fp32.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from outrider.kernels.rows import padded_rows

LEAST = -80.0
"""Decays between two rows are cut here: a weight of 2e-35 is nothing, while exp takes thirty times
as long where its result is denormal, and ten times where it is zero."""


@dataclass(frozen=True, slots=True)
class Log:
    """Log entries of rows, which do not depend on the base: keys [K, A, C], decays [V, C], inverse
    [V, C, C].

    rows: the inverse by row, C views [V, 1, C].
    """

    keys: Tensor
    decays: Tensor
    inverse: Tensor
    rows: tuple[Tensor, ...]

    @classmethod
    def over(cls, keys: Tensor, decays: Tensor, inverse: Tensor) -> "Log":
        return cls(keys, decays, inverse, inverse.split(1, 1))

    @classmethod
    def new(cls, key_heads: int, heads: int, width: int, like: Tensor) -> "Log":
        """Zeros; `like` [.., C] gives device and chunk length."""
        zeros, chunk = like.new_zeros, like.shape[-1]
        keys = zeros(key_heads, width, chunk)
        return cls.over(keys, zeros(heads, chunk), zeros(heads, chunk, chunk))


@dataclass(frozen=True, slots=True)
class Slot:
    """One chunk of one layer: base [K, A, r D], wanted [V, C, D] (the w above) and the log."""

    base: Tensor
    wanted: Tensor
    log: Log


@dataclass(frozen=True, slots=True)
class ChunkTable:
    """Visibility of rows at each offset of a chunk, and `units`, the rows [1, C] of the unit
    matrix.

    visible: 0 or 1, [2, C, C]; [0] is for the inverse (strictly earlier entries), [1] for outputs
    (own entry included).
    """

    visible: Tensor
    units: tuple[Tensor, ...]


@dataclass(frozen=True, slots=True)
class Rows:
    """n rows at offset `first` of one chunk, or of each of `chunks`; with scratch for all layers.

    visible: [2, n, C] and units: n rows [1, C], from the `ChunkTable`. both: [N K, M, A], zero in
    the padding; `target` is its part [N, n, 2, K, A] that a layer fills with normalised keys and
    queries, `keys` the part [N K, A, n]. weights: [N K, r, 2, n, C] in zeroed scratch, of which
    `solving` is the first half [N V, n, C], `equations` its n rows [N V, 1, C], and `mixing` the
    second half with its padding [N V, padded n, C]. log: several chunks are weighed in it.
    """

    first: int
    size: int
    chunks: int
    visible: Tensor
    units: tuple[Tensor, ...]
    both: Tensor
    target: Tensor
    keys: Tensor
    weights: Tensor
    solving: Tensor
    equations: tuple[Tensor, ...]
    mixing: Tensor
    log: Log | None


def chunk_table(chunk: int, device: torch.device) -> ChunkTable:
    unit = torch.eye(chunk, device=device)
    reached = torch.ones_like(unit).tril()
    return ChunkTable(torch.stack([reached - unit, reached]), unit.split(1))


def make_rows(
    first: int,
    size: int,
    heads: tuple[int, int],
    width: int,
    table: ChunkTable,
    tile: int,
    chunks: int = 1,
) -> Rows:
    """`size` rows from offset `first` on of each of `chunks`; heads K and V, `width` A."""
    key_heads, value_heads = (chunks * count for count in heads)
    zeros = table.visible.new_zeros
    both = zeros(key_heads, padded_rows(2 * size, tile), width)
    target = both.narrow(1, 0, 2 * size).view(chunks, heads[0], 2, size, width)
    scratch = zeros(value_heads, 2, padded_rows(size, tile), len(table.units))
    used = scratch.narrow(2, 0, size)
    solving = used.select(1, 0)
    return Rows(
        first,
        size,
        chunks,
        table.visible.narrow(1, first, size),
        table.units[first : first + size],
        both,
        target.permute(0, 3, 2, 1, 4),
        both.narrow(1, 0, size).transpose(1, 2),
        used.unflatten(0, (key_heads, -1)),
        solving,
        solving.split(1, 1),
        scratch.select(1, 1),
        Log.new(key_heads, value_heads, width, table.visible) if chunks > 1 else None,
    )


def fold(slot: Slot) -> Tensor:
    """The base at the end of a full chunk: [K, A, r D]."""
    key_heads, wide = slot.base.shape[0], slot.base.shape[2]
    heads, chunk = slot.log.decays.shape
    total = slot.log.decays.cumsum(1)
    end = total.narrow(1, chunk - 1, 1)
    corrections = torch.bmm(slot.log.inverse, slot.wanted)
    weighted = corrections.mul_(torch.exp(end - total).unsqueeze(-1))
    weighted = weighted.view(key_heads, -1, chunk, wide * key_heads // heads).transpose(1, 2)
    share = end.exp().view(key_heads, 1, -1, 1)
    carried: Tensor = (slot.base.unflatten(2, (share.shape[2], -1)) * share).view(slot.base.shape)
    return carried.baddbmm_(slot.log.keys, weighted.reshape(key_heads, chunk, wide))


def apply_rows(
    rows: Rows, values: Tensor, gates: tuple[Tensor, Tensor], slots: Iterable[Slot]
) -> Tensor:
    """Run the rows whose keys and queries are in `rows.both`, and write them to the log.

    values: [N n, K, r, D]. gates: decay in log space and strength [N n, V]. slots: one for each
    chunk, the base of which may come from the one before: they are taken one by one, each when the
    one before is complete. Returns [N n, K, r, D].
    """
    decay, strength = (by_head(gate, rows.chunks) for gate in gates)
    if rows.log is None:
        (slot,) = slots
        faded, mixing = _weigh(rows, decay, strength, slot.log)
        return _read(rows.first, rows.both, faded, mixing, values, gates[1], slot)
    weighed = _weigh(rows, decay, strength, rows.log)
    log = rows.log.keys, rows.log.decays, rows.log.inverse
    parts = (part.chunk(rows.chunks) for part in (*log, rows.both, *weighed, values, gates[1]))
    outputs = []
    each = zip(slots, *parts, strict=True)
    for slot, keys, decays, inverse, both, faded, mixing, value, b in each:
        slot.log.keys.copy_(keys)
        slot.log.decays.copy_(decays)
        slot.log.inverse.copy_(inverse)
        outputs.append(_read(0, both, faded, mixing, value, b, slot))
    return torch.cat(outputs)


def by_head(gate: Tensor, chunks: int) -> Tensor:
    """[N n, V] to [N V, n]."""
    if chunks == 1:
        return gate.t()
    return gate.view(chunks, -1, gate.shape[1]).transpose(1, 2).flatten(0, 1)


def _weigh(rows: Rows, decay: Tensor, strength: Tensor, log: Log) -> tuple[Tensor, Tensor]:
    """Write keys, decays [V, n] and rows of the inverse to the log. Returns how far the base has
    faded, exp(G) [K, 1, n, r, 1], and the weights of `wanted` in outputs [V, padded n, C]."""
    key_heads, group, _, count, _ = rows.weights.shape
    log.keys.narrow(2, rows.first, count).copy_(rows.keys)
    log.decays.narrow(1, rows.first, count).copy_(decay)
    summed = log.decays.cumsum(1)
    own = summed.narrow(1, rows.first, count).unsqueeze(2)
    compare(rows, own, summed, strength, log.keys)
    places = log.rows[rows.first : rows.first + count]
    for unit, equation, place in zip(rows.units, rows.equations, places, strict=True):
        torch.sub(unit, torch.bmm(equation, log.inverse), out=place)
    faded = own.exp().view(key_heads, 1, group, count, 1).transpose(2, 3)
    return faded, torch.bmm(rows.mixing, log.inverse)


def compare(rows: Rows, own: Tensor, summed: Tensor, strength: Tensor, keys: Tensor) -> None:
    """Fill `rows.weights` from the decays summed up to each row, own [N V, n, 1], and to each entry
    of the log [N V, C]; strength [N V, n], keys [N K, A, C]."""
    key_heads, group, _, count, chunk = rows.weights.shape
    lag = (own - summed.unsqueeze(1)).clamp_(LEAST, 0.0).exp_()
    similar = torch.bmm(rows.both, keys).narrow(1, 0, 2 * count)
    similar = similar.view(key_heads, 1, 2, count, chunk).mul_(rows.visible)
    torch.mul(lag.view(key_heads, group, 1, count, chunk), similar, out=rows.weights)
    rows.solving.mul_(strength.unsqueeze(2))


def _read(
    first: int,
    both: Tensor,
    faded: Tensor,
    mixing: Tensor,
    values: Tensor,
    strength: Tensor,
    slot: Slot,
) -> Tensor:
    """Outputs [n, K, r, D] of rows of one chunk with values [n, K, r, D] and strength [n, V]."""
    count, key_heads, group, width = values.shape
    found = torch.bmm(both, slot.base).narrow(1, 0, 2 * count)
    recalled, answer = (found.view(key_heads, 2, count, group, width) * faded).unbind(1)
    each = strength.view(count, key_heads, group, 1).transpose(0, 1)
    place = slot.wanted.narrow(1, first, count).view(key_heads, group, count, width)
    torch.mul(values.transpose(0, 1) - recalled, each, out=place.transpose(1, 2))
    mixed = torch.bmm(mixing, slot.wanted).narrow(1, 0, count)
    mixed = mixed.view(key_heads, group, count, width).transpose(1, 2)
    return torch.add(answer, mixed).transpose(0, 1)

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
length, M = 2n padded. Where N whole chunks are weighed together, their heads stand one behind
another as N K and N V heads. Everything is fp32.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from outrider.ops.rows import padded_rows

HIDDEN = float("-inf")


@dataclass(frozen=True, slots=True)
class Log:
    """What rows leave behind whatever the base: keys [K, A, C], decays [V, C], inverse [V, C, C]."""

    keys: Tensor
    decays: Tensor
    inverse: Tensor

    @property
    def tensors(self) -> tuple[Tensor, Tensor, Tensor]:
        return self.keys, self.decays, self.inverse

    def split(self, chunks: int) -> list["Log"]:
        """The logs of `chunks` chunks whose heads stand behind each other."""
        return [Log(*parts) for parts in zip(*(t.chunk(chunks) for t in self.tensors), strict=True)]

    def copy_(self, other: "Log") -> None:
        for mine, new in zip(self.tensors, other.tensors, strict=True):
            mine.copy_(new)


@dataclass(frozen=True, slots=True)
class Slot:
    """One chunk of one layer: base [K, A, r D], wanted [V, C, D] (the w above) and the log."""

    base: Tensor
    wanted: Tensor
    log: Log


@dataclass(frozen=True, slots=True)
class Rows:
    """n rows at offset `first` of one chunk, or of each of `chunks`; with scratch for all layers.

    visible: [2, n, C] and units: n rows [1, C], both from a `ChunkTable`. both: [N K, M, A], zero in the padding; `target` is its
    part [N, n, 2, K, A] that a layer fills with normalised keys and queries, `keys` the part
    [N K, A, n]. weights: [N K, r, 2, n, C] in zeroed scratch, of which `solving` is the first half
    [N V, n, C] and `mixing` the second one with its padding [N V, padded n, C].
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
    mixing: Tensor


@dataclass(frozen=True, slots=True)
class Weighed:
    """How rows of one chunk read base and log: both [K, M, A], faded (exp G) [K, 1, n, r, 1] and
    mixing [V, padded n, C], the weights of `wanted` in their outputs."""

    both: Tensor
    faded: Tensor
    mixing: Tensor


@dataclass(frozen=True, slots=True)
class ChunkTable:
    """What rows at each offset of a chunk see, and `units`, the rows [1, C] of the unit matrix.

    visible: 0 or -inf, [2, C, C]; [0] is for the inverse (strictly earlier entries), [1] for
    outputs (own entry included).
    """

    visible: Tensor
    units: tuple[Tensor, ...]


def chunk_table(chunk: int, device: torch.device) -> ChunkTable:
    offsets = torch.arange(chunk, device=device)
    later = offsets[None, :] - offsets[:, None]
    hidden = torch.stack([later >= 0, later > 0])
    visible = torch.zeros(hidden.shape, device=device).masked_fill_(hidden, HIDDEN)
    return ChunkTable(visible, torch.eye(chunk, device=device).split(1))


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
    key_heads, value_heads = heads
    visible = table.visible.narrow(1, first, size)
    both = visible.new_zeros(chunks * key_heads, padded_rows(2 * size, tile), width)
    target = both.narrow(1, 0, 2 * size).view(chunks, key_heads, 2, size, width)
    scratch = visible.new_zeros(chunks * value_heads, 2, padded_rows(size, tile), visible.shape[2])
    used = scratch.narrow(2, 0, size)
    return Rows(
        first,
        size,
        chunks,
        visible,
        table.units[first : first + size],
        both,
        target.permute(0, 3, 2, 1, 4),
        both.narrow(1, 0, size).transpose(1, 2),
        used.unflatten(0, (chunks * key_heads, -1)),
        used.select(1, 0),
        scratch.select(1, 1),
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
    carried = (slot.base.unflatten(2, (share.shape[2], -1)) * share).reshape(slot.base.shape)
    return torch.baddbmm(carried, slot.log.keys, weighted.reshape(key_heads, chunk, wide))


def apply_rows(
    rows: Rows, values: Tensor, gates: tuple[Tensor, Tensor], slots: Iterable[Slot]
) -> Tensor:
    """Run the rows whose keys and queries are in `rows.both`, and write them to the log.

    values: [N n, K, r, D]. gates: decay in log space and strength [N n, V]. slots: one for each
    chunk, the base of which may come from the one before: they are taken one by one, each when the
    one before is complete. Returns [N n, K, r, D].
    """
    decay, strength = (_by_head(gate, rows.chunks) for gate in gates)
    if rows.chunks == 1:
        (slot,) = slots
        return _read(rows.first, _weigh(rows, decay, strength, slot.log), values, gates[1], slot)
    log = _new_log(rows)
    weighed = _weigh(rows, decay, strength, log)
    parts = (t.chunk(rows.chunks) for t in (weighed.both, weighed.faded, weighed.mixing))
    each = zip(*parts, values.split(rows.size), gates[1].split(rows.size), strict=True)
    outputs = []
    for slot, part, (*read, value, b) in zip(slots, log.split(rows.chunks), each, strict=True):
        slot.log.copy_(part)
        outputs.append(_read(rows.first, Weighed(*read), value, b, slot))
    return torch.cat(outputs)


def _by_head(gate: Tensor, chunks: int) -> Tensor:
    """[N n, V] to [N V, n]."""
    if chunks == 1:
        return gate.t()
    return gate.view(chunks, -1, gate.shape[1]).transpose(1, 2).flatten(0, 1)


def _new_log(rows: Rows) -> Log:
    """Room for whole chunks; what is not written yet must be finite."""
    heads, chunk, width = rows.solving.shape[0], rows.solving.shape[2], rows.both.shape[2]
    zeros = rows.both.new_zeros
    return Log(
        zeros(rows.both.shape[0], width, chunk), zeros(heads, chunk), zeros(heads, chunk, chunk)
    )


def _weigh(rows: Rows, decay: Tensor, strength: Tensor, log: Log) -> Weighed:
    """Write keys, decays [V, n] and rows of the inverse to the log."""
    key_heads, group, _, count, chunk = rows.weights.shape
    log.keys.narrow(2, rows.first, count).copy_(rows.keys)
    log.decays.narrow(1, rows.first, count).copy_(decay)
    summed = log.decays.cumsum(1)
    own = summed.narrow(1, rows.first, count).unsqueeze(2)
    lag = (own - summed.unsqueeze(1)).unsqueeze(1) + rows.visible
    similar = torch.bmm(rows.both, log.keys).narrow(1, 0, 2 * count)
    similar = similar.view(key_heads, 1, 2, count, chunk)
    torch.mul(lag.exp_().view(rows.weights.shape), similar, out=rows.weights)
    _invert(rows.solving * strength.unsqueeze(2), rows, log.inverse)
    faded = own.exp().view(key_heads, 1, group, count, 1).transpose(2, 3)
    return Weighed(rows.both, faded, torch.bmm(rows.mixing, log.inverse))


def _invert(weights: Tensor, rows: Rows, inverse: Tensor) -> None:
    """X_t = unit_t - weights_t @ X, row after row, written to the log. weights: [V, n, C]."""
    places = inverse.narrow(1, rows.first, rows.size)
    parts = rows.units, weights.split(1, 1), places.split(1, 1)
    for unit, weight, place in zip(*parts, strict=True):
        torch.sub(unit, torch.bmm(weight, inverse), out=place)


def _read(first: int, rows: Weighed, values: Tensor, strength: Tensor, slot: Slot) -> Tensor:
    """Outputs [n, K, r, D] of rows of one chunk with values [n, K, r, D] and strength [n, V]."""
    count, key_heads, group, width = values.shape
    found = torch.bmm(rows.both, slot.base).narrow(1, 0, 2 * count)
    found = found.view(key_heads, 2, count, group, width) * rows.faded
    recalled, answer = found.unbind(1)
    each = strength.view(count, key_heads, group, 1).transpose(0, 1)
    place = slot.wanted.narrow(1, first, count).view(key_heads, group, count, width)
    torch.mul(values.transpose(0, 1) - recalled, each, out=place.transpose(1, 2))
    mixed = torch.bmm(rows.mixing, slot.wanted).narrow(1, 0, count)
    mixed = mixed.view(key_heads, group, count, width).transpose(1, 2)
    return torch.add(answer, mixed).transpose(0, 1)

"""The gated delta rule for rows of several sequences at once, each at its own offset of its chunk.

The arithmetic of `outrider.kernels.delta`, operation by operation, over sequences whose working
chunks lie one after another. Only how entries reach the log differs: rows stand at different
offsets, so they are copied by index. A sequence with fewer rows than the widest repeats its last one, which
writes the same bits to the same place; one without rows writes to a place that nobody reads.

Shapes: as in `outrider.kernels.delta`, with S sequences in place of N chunks and n rows for each.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from outrider.kernels.delta import ChunkTable, Log, Rows, Slot, by_head, compare, make_rows


@dataclass(frozen=True, slots=True)
class Stack:
    """Working chunks of one layer: `slot` has the heads of S sequences one behind another.

    parts are base, wanted, keys, decays and inverse by sequence, with one more behind them that is
    never read; flat are the same four of the log as rows to write to.
    """

    slot: Slot
    parts: Sequence[Tensor]
    flat: tuple[Tensor, Tensor, Tensor, Tensor]

    @classmethod
    def of(cls, tensors: Sequence[Tensor], count: int) -> "Stack":
        """The first `count` of more sequences; base, wanted, keys, decays, inverse [S.., ...]."""
        _, wanted, keys, decays, inverse = tensors
        used = [tensor.narrow(0, 0, count).flatten(0, 1) for tensor in tensors]
        rows = inverse.view(-1, inverse.shape[-1]), wanted.view(-1, wanted.shape[-1])
        return cls(
            Slot(used[0], used[1], Log(used[2], used[3], used[4], ())),
            tensors,
            (keys.view(-1), decays.view(-1), *rows),
        )

    def pick(self, sequences: Tensor) -> "Stack":
        """A copy of some sequences, int64 [S]."""
        picked = [part.index_select(0, sequences) for part in self.parts]
        return Stack.of(picked, len(sequences))


@dataclass(frozen=True, slots=True)
class Places:
    """Where rows stand among the numbers of a `Stack`, int64: of keys [S K A n], of all else
    [S V n]; steps: the same for each of n rows, [S V]."""

    keys: Tensor
    values: Tensor
    steps: tuple[Tensor, ...]


@dataclass(frozen=True, slots=True)
class GroupRows:
    """Rows of S sequences with scratch for all layers, and int64 indices into a `Stack`.

    own: where the decays of the rows stand, [S V n]. places: where entries go. units: n times
    [S V, C]. Sequences that are picked from a larger stack, `picked` [S], have their `home` there.
    """

    sequences: int
    scratch: Rows
    own: Tensor
    places: Places
    units: tuple[Tensor, ...]
    picked: Tensor | None
    home: Places | None


def make_group(
    offsets: Sequence[Sequence[int]],
    writes: Sequence[bool],
    heads: tuple[int, int],
    width: int,
    table: ChunkTable,
    tile: int,
    picked: Sequence[int] | None = None,
) -> GroupRows:
    """Rows at `offsets` [S][n] of each sequence's chunk; those that do not write have none.

    heads K and V, `width` A. The sequences are the first of a stack, or those `picked` from it.
    """
    count, size, chunk = len(offsets), len(offsets[0]), len(table.units)
    device = table.visible.device
    at = torch.tensor(offsets, device=device)

    def places(sequences: Sequence[int]) -> Places:
        return _places(torch.tensor(sequences, device=device), at, heads, width, chunk)

    where = places([number if write else count for number, write in enumerate(writes)])
    own = where if all(writes) else places(range(count))
    visible = table.visible.index_select(1, at.view(-1)).view(2, count, 1, size, chunk)
    visible = visible.permute(1, 2, 0, 3, 4).expand(-1, heads[0], -1, -1, -1)
    units = table.unit.index_select(0, at.view(-1)).view(count, 1, size, chunk)
    units = units.expand(-1, heads[1], -1, -1).reshape(-1, size, chunk)
    rows = make_rows(0, size, heads, width, table, tile, count, log=False)
    return GroupRows(
        count,
        replace(rows, visible=visible.reshape(-1, 1, 2, size, chunk)),
        own.values,
        where,
        units.unbind(1),
        None if picked is None else torch.tensor(picked, device=device),
        None if picked is None else places(picked),
    )


def _places(
    sequences: Tensor, at: Tensor, heads: tuple[int, int], width: int, chunk: int
) -> Places:
    """Places of rows at offsets `at` [S, n] in the numbers of `sequences` [S]."""

    def index(each: int) -> Tensor:
        rows = sequences.view(-1, 1) * each + torch.arange(each, device=at.device)
        return rows.unsqueeze(2) * chunk + at.unsqueeze(1)

    values = index(heads[1])
    steps = values.view(-1, at.shape[1]).unbind(1)
    return Places(index(heads[0] * width).view(-1), values.view(-1), steps)


def apply_group(
    rows: GroupRows, values: Tensor, gates: tuple[Tensor, Tensor], stack: Stack
) -> Tensor:
    """Run the rows whose keys and queries are in `rows.scratch.both`, and write them to the log.

    values: [S n, K, r, D]. gates: decay in log space and strength [S n, V]. Returns
    [S n, K, r, D].
    """
    if rows.picked is None or rows.home is None:
        return _apply(rows, values, gates, stack)
    picked, home, here = stack.pick(rows.picked), rows.home, rows.places
    outputs = _apply(rows, values, gates, picked)
    places = (home.keys, here.keys), *[(home.values, here.values)] * 3
    for theirs, ours, (to, where) in zip(stack.flat, picked.flat, places, strict=True):
        theirs.index_copy_(0, to, ours.index_select(0, where))
    return outputs


def _apply(rows: GroupRows, values: Tensor, gates: tuple[Tensor, Tensor], stack: Stack) -> Tensor:
    scratch, log, places = rows.scratch, stack.slot.log, rows.places
    keys, decays, inverse, _ = stack.flat
    decay, strength = (by_head(gate, rows.sequences) for gate in gates)
    keys.index_copy_(0, places.keys, scratch.keys.reshape(-1))
    decays.index_copy_(0, places.values, decay.reshape(-1))
    summed = log.decays.cumsum(1)
    own = summed.view(-1).index_select(0, rows.own).view(*decay.shape, 1)
    compare(scratch, own, summed, strength, log.keys)
    for unit, equation, step in zip(rows.units, scratch.equations, places.steps, strict=True):
        solved = torch.sub(unit, torch.bmm(equation, log.inverse).squeeze(1))
        inverse.index_copy_(0, step, solved)
    return _read(rows, own.exp(), values, gates[1], stack)


def _read(rows: GroupRows, faded: Tensor, values: Tensor, strength: Tensor, stack: Stack) -> Tensor:
    """Outputs [S n, K, r, D]; faded [S V, n, 1], values [S n, K, r, D], strength [S n, V]."""
    key_heads, group, width = values.shape[1:]
    heads, count = (rows.sequences, key_heads), rows.scratch.size
    faded = faded.view(*heads, 1, group, count, 1).transpose(3, 4)
    found = torch.bmm(rows.scratch.both, stack.slot.base).narrow(1, 0, 2 * count)
    recalled, answer = (found.view(*heads, 2, count, group, width) * faded).unbind(2)
    by_row = rows.sequences, count, key_heads, group
    each = strength.view(*by_row, 1).transpose(1, 2)
    wanted = (values.view(*by_row, width).transpose(1, 2) - recalled) * each
    stack.flat[3].index_copy_(0, rows.places.values, wanted.transpose(2, 3).reshape(-1, width))
    mixing = torch.bmm(rows.scratch.mixing, stack.slot.log.inverse)
    mixed = torch.bmm(mixing, stack.slot.wanted).narrow(1, 0, count)
    mixed = mixed.view(*heads, group, count, width).transpose(2, 3)
    return torch.add(answer, mixed).transpose(1, 2).reshape(values.shape)

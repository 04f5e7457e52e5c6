"""Windows of several sequences that layers run as one, operation by operation."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import takewhile

import torch
from torch import Tensor

from outrider.kernels.attention import ROW_BLOCK, BiasTable, Heads
from outrider.kernels.attention_group import PageGroup, make_pages, pages_of
from outrider.kernels.delta import ChunkTable
from outrider.kernels.delta_group import GroupRows, make_group
from outrider.state.attention import AttentionState
from outrider.state.delta import DeltaState
from outrider.state.seats import Seats

LEAST = 3
"""Sequences below which a group costs more than it saves."""
PADDING = 2
"""How many times their rows a group may run, since all run as many as the widest."""
SPARE_PAGES = 256
"""Pages of sums that may be empty whatever the proportion, since sequences differ in length."""


@dataclass(frozen=True, slots=True)
class Member:
    """A window of `rows` rows at position `start` of a sequence that counted them already."""

    state: DeltaState
    start: int
    rows: int

    @property
    def fits(self) -> bool:
        """Whether it has a seat, lies in one chunk and finds its columns in one run."""
        state, history = self.state, self.state.spec.taps - 1
        seated = state.seat is not None and self.start - state.columns.origin >= history
        return seated and in_one_chunk(self.start, self.rows, state.chunk)


@dataclass(frozen=True, slots=True)
class Spread:
    """Between the R rows of some windows and n rows for each of S places.

    spread [S n]: which of the R rows each is; kept [R]: where the R rows are among these; None
    where both are in the same order.
    """

    spread: Tensor | None
    kept: Tensor | None

    @classmethod
    def of(cls, spread: list[int], kept: list[int], device: torch.device) -> "Spread":
        if spread == kept == list(range(len(kept))):
            return cls(None, None)
        return cls(torch.tensor(spread, device=device), torch.tensor(kept, device=device))

    @classmethod
    def over(cls, rows: Sequence[int], device: torch.device) -> "Spread":
        """Windows of `rows` rows in turn, each widened to the widest by repeating its last row."""
        size, done = max(rows), 0
        spread: list[int] = []
        for count in rows:
            spread += [done + min(row, count - 1) for row in range(size)]
            done += count
        kept = [place * size + row for place, count in enumerate(rows) for row in range(count)]
        return cls.of(spread, kept, device)

    def widen(self, rows: Tensor) -> Tensor:
        """Rows [R, ...] as [S n, ...]."""
        return rows if self.spread is None else rows.index_select(0, self.spread)

    def narrow(self, rows: Tensor) -> Tensor:
        """Rows [S n, ...] as [R, ...]."""
        return rows if self.kept is None else rows.index_select(0, self.kept)


@dataclass(frozen=True, slots=True)
class AttentionGroup:
    """Windows of a pass, one behind another: states, where each starts and its rows."""

    states: list[AttentionState]
    starts: list[int]
    sizes: list[int]
    pages: PageGroup
    spread: Spread


@dataclass(frozen=True, slots=True)
class Group:
    """Consecutive windows of a pass, with R rows together, in S seats.

    In place of all seats that were taken, or of copies of those that are few among them.

    opened: states whose chunk begins with them, and which chunk. read [R taps] and written [R] are
    int64 indices into the seats' columns.
    """

    sizes: list[int]
    seats: Seats
    opened: list[tuple[DeltaState, int]]
    read: Tensor
    written: Tensor
    rows: GroupRows
    spread: Spread


def in_one_chunk(start: int, rows: int, chunk: int) -> bool:
    """Whether rows share a base; under `snapshots` none do."""
    return chunk > 1 and start % chunk + rows <= chunk


def find_groups(
    members: Iterable[Member], seats: Seats, table: ChunkTable, tile: int
) -> list[Group]:
    """The windows at the front of a pass that can run together, one group behind another."""
    fitting = list(takewhile(lambda member: member.fits, members))
    parts = _fronts([member.rows for member in fitting])
    return [_group(fitting[part], seats, table, tile) for part in parts]


def _fronts(rows: Sequence[int]) -> list[slice]:
    """Windows of `rows` rows that may run as many as the widest of them, from the first one on."""
    found, done = [], 0
    while (count := _front(rows[done:])) >= LEAST:
        found.append(slice(done, done + count))
        done += count
    return found


def _front(rows: Sequence[int]) -> int:
    count = widest = total = 0
    for place, own in enumerate(rows, 1):
        widest, total = max(widest, own), total + own
        count = place if place * widest <= PADDING * total else count
    return count


def attend_together(
    states: Sequence[AttentionState],
    starts: Sequence[int],
    sizes: Sequence[int],
    shape: Heads,
    table: BiasTable,
    like: Tensor,
) -> list[AttentionGroup]:
    """The windows at the front of a pass that attend as one, one group behind another."""
    found = []
    for part in _fronts(list(takewhile(lambda rows: rows <= ROW_BLOCK, sizes))):
        at, rows = starts[part], sizes[part]
        pages = [pages_of(*one) for one in zip(at, rows, strict=True)]
        if len(pages) * max(pages) > PADDING * sum(pages) + SPARE_PAGES:
            break
        shared = make_pages(at, rows, shape, table, like)
        spread = Spread.over(rows, like.device)
        found.append(AttentionGroup(list(states[part]), list(at), list(rows), shared, spread))
    return found


def _group(members: Sequence[Member], seats: Seats, table: ChunkTable, tile: int) -> Group:
    spec, chunk = seats.spec, seats.spec.chunk
    assert spec.delta is not None
    opened = []
    for member in members:
        number, first = divmod(member.start, chunk)
        member.state.bring(number, empty=first == 0 < number)
        if first == 0:
            opened.append((member.state, number))
    size, seated = max(member.rows for member in members), [_seat(member) for member in members]
    apart = 2 * len(members) < len(seats.taken)
    places = list(range(len(members))) if apart else seated
    count = len(members) if apart else len(seats.taken)
    spread, offsets = _places(members, places, (count, size), chunk)
    rows = make_group(
        offsets,
        [place in places for place in range(count)],
        (spec.delta.key_heads, spec.delta.value_heads),
        spec.delta.key_width,
        table,
        tile,
        seated if apart else None,
    )
    device, pairs = table.unit.device, zip(places, members, strict=True)
    kept = [place * size + row for place, member in pairs for row in range(member.rows)]
    written = [place for member in members for place in _columns(member, spec.columns)]
    read = [place - back for place in written for back in reversed(range(spec.delta.taps))]
    return Group(
        [member.rows for member in members],
        seats,
        opened,
        torch.tensor(read, device=device),
        torch.tensor(written, device=device),
        rows,
        Spread.of(spread, kept, device),
    )


def _seat(member: Member) -> int:
    assert member.state.seat is not None
    return member.state.seat.number


def _columns(member: Member, size: int) -> range:
    """Where the inputs of its rows go in the columns of all seats."""
    first = _seat(member) * size + member.start - member.state.columns.origin
    return range(first, first + member.rows)


def _places(
    members: Sequence[Member], places: Sequence[int], shape: tuple[int, int], chunk: int
) -> tuple[list[int], list[list[int]]]:
    """For each row of each place, `shape` in all: which row of the group it is, and its offset in
    the chunk. A window's last row stands for those that it lacks, any row for those of nobody."""
    count, size = shape
    spread, offsets, done = [0] * (count * size), [[0] * size for _ in range(count)], 0
    for place, member in zip(places, members, strict=True):
        at = [min(row, member.rows - 1) for row in range(size)]
        spread[place * size : (place + 1) * size] = [done + row for row in at]
        offsets[place] = [member.start % chunk + row for row in at]
        done += member.rows
    return spread, offsets

"""What one pass over several sequences needs to know, computed once and shared by all layers."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

from outrider.kernels.attention import (
    PAGE,
    ROW_BLOCK,
    BiasTable,
    Block,
    Heads,
    causal_bias,
    make_block,
)
from outrider.kernels.delta import ChunkTable, Rows, Slot, make_rows
from outrider.models.group import LEAST, AttentionGroup, Group, Member, attend_together, find_groups
from outrider.state.base import State
from outrider.state.delta import DeltaState, Segment, segments
from outrider.state.seats import Seats


@dataclass(frozen=True, slots=True)
class Span:
    """`rows` rows of a pass that belong to one sequence, from its current length on.

    Rows that are not `revocable` are final, or have a checkpoint as their way back. Logits will be
    asked for the `wanted` last of them (None: all).
    """

    state: State
    rows: int
    revocable: bool = True
    wanted: int | None = None


@dataclass(frozen=True, slots=True)
class Chunk:
    """Rows of a span in chunk `number` of the delta log, or in all of several from it on."""

    number: int
    rows: Rows

    def slots(self, store: DeltaState, layer: int) -> Iterator[Slot]:
        """Each chunk's slot; that of a chunk whose first row is among the rows is opened."""
        find = store.open if self.rows.first == 0 else store.slot
        return (find(layer, self.number + chunk) for chunk in range(self.rows.chunks))


@dataclass(frozen=True, slots=True)
class SpanPlan:
    """One sequence's part of a pass, from position `start` of the sequence on."""

    state: State
    start: int
    blocks: list[Block]
    chunks: list[Chunk]


U = TypeVar("U")


@dataclass(frozen=True, slots=True)
class Parts(Generic[U]):
    """What the mixers of one kind run one after another, and the rows of each: the first spans in
    groups where that can be, and every other span."""

    units: list[U]
    sizes: list[int]

    def split(self, rows: Tensor) -> Sequence[Tensor]:
        """The rows [N, ...] of a pass by unit."""
        return (rows,) if len(self.sizes) == 1 else rows.split(self.sizes)


@dataclass(frozen=True, slots=True)
class PassPlan:
    """The parts of a pass for each kind of mixer; cos, signed sin [N, 1, width] of every row.

    spans: where `PassTables.turns` are, what fused layers need in place of the parts: an int64
    array [S, fields] as `outrider.kernels.jit` wants it, and those turns.
    """

    attention: Parts[SpanPlan | AttentionGroup]
    delta: Parts[SpanPlan | Group]
    cos: Tensor
    sin: Tensor
    spans: Any = None
    turns: Any = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PassTables:
    """What passes of one model look up instead of computing it anew.

    cos, sin: [max_length, width]. windows: of the attention layers. chunks: by chunk length.
    Where the self-test found no row multiple that keeps bits, rows run alone: `attention_alone`,
    and `delta_tile` is 0. `group`: recurrent layers may run several sequences at once. turns: cos
    and sin as an array [2, max_length, width], where layers are fused.
    """

    cos: Tensor
    sin: Tensor
    windows: frozenset[int | None]
    heads: Heads
    attention_alone: bool
    full: BiasTable
    chunks: Mapping[int, ChunkTable]
    delta_tile: int
    group: bool
    turns: Any = None


def plan_pass(
    spans: Sequence[Span], tables: PassTables, like: Tensor, seats: Seats | None = None
) -> PassPlan:
    """Plan a pass and advance every span's state past its rows; `like` gives scratch its dtype.

    Spans with a place in `seats` run as one in recurrent layers, if they stand at the front.
    """
    starts = [span.state.length for span in spans]
    for span in spans:
        span.state.advance(span.rows, revocable=span.revocable)
    if tables.turns is not None:
        return _fused_plan(spans, starts, tables)
    pages = _attention_groups(spans, starts, tables, like)
    groups = _groups(spans, starts, tables, seats)
    attended = sum(len(group.sizes) for group in pages)
    grouped = sum(len(group.sizes) for group in groups)
    planned = []
    for place, (span, start) in enumerate(zip(spans, starts, strict=True)):
        attention = span.state.attention if place >= attended else None
        delta = span.state.delta if place >= grouped else None
        blocks = _blocks(start, span.rows, tables, like) if attention else []
        chunks = _chunks(delta, start, span.rows, tables) if delta else []
        planned.append(SpanPlan(span.state, start, blocks, chunks))
    sizes = [span.rows for span in spans]
    return PassPlan(
        Parts([*pages, *planned[attended:]], [*_sums(pages), *sizes[attended:]]),
        Parts([*groups, *planned[grouped:]], [*_sums(groups), *sizes[grouped:]]),
        *_turns(starts, sizes, tables),
    )


def _fused_plan(spans: Sequence[Span], starts: Sequence[int], tables: PassTables) -> PassPlan:
    """Fused layers find everything in the states; the fields are those of `ops.jit.FIELDS`."""
    rows = [
        (
            start,
            span.rows,
            *(span.state.attention.address if span.state.attention else (0, 0)),
            *(span.state.delta.addresses if span.state.delta else (0,) * 8),
            span.state.delta.columns.origin if span.state.delta else 0,
        )
        for span, start in zip(spans, starts, strict=True)
    ]
    # The parts hold the states, so that what the addresses name lives as long as the plan.
    parts: Parts[Any] = Parts([span.state for span in spans], [span.rows for span in spans])
    table = torch.tensor(rows, dtype=torch.int64).numpy()
    return PassPlan(parts, parts, tables.cos, tables.sin, table, tables.turns)


def _sums(groups: Iterable[Group | AttentionGroup]) -> Iterator[int]:
    return (sum(group.sizes) for group in groups)


def _turns(
    starts: Sequence[int], sizes: Sequence[int], tables: PassTables
) -> tuple[Tensor, Tensor]:
    """cos and signed sin [N, 1, width] of all rows."""
    if len(starts) == 1:
        cos, sin = (t.narrow(0, starts[0], sizes[0]) for t in (tables.cos, tables.sin))
    else:
        each = zip(starts, sizes, strict=True)
        places = [place for start, rows in each for place in range(start, start + rows)]
        index = torch.tensor(places, device=tables.cos.device)
        cos, sin = (table.index_select(0, index) for table in (tables.cos, tables.sin))
    return cos.unsqueeze(1), sin.unsqueeze(1)


def _attention_groups(
    spans: Sequence[Span], starts: Sequence[int], tables: PassTables, like: Tensor
) -> list[AttentionGroup]:
    """The spans at the front whose rows attend together; masks of sliding windows cannot."""
    states = [span.state.attention for span in spans if span.state.attention]
    if len(states) < LEAST or tables.attention_alone or tables.windows != {None}:
        return []
    sizes = [span.rows for span in spans]
    return attend_together(states, starts, sizes, tables.heads, tables.full, like)


def _groups(
    spans: Sequence[Span], starts: Sequence[int], tables: PassTables, seats: Seats | None
) -> list[Group]:
    """The spans at the front that recurrent layers run together."""
    if seats is None or not tables.group:
        return []
    members = (
        Member(span.state.delta, start, span.rows)
        for span, start in zip(spans, starts, strict=True)
        if span.state.delta
    )
    return find_groups(members, seats, tables.chunks[seats.spec.chunk], tables.delta_tile)


def _blocks(start: int, rows: int, tables: PassTables, like: Tensor) -> list[Block]:
    """Cut rows where the page changes, so that no row attends pages of much later ones."""
    size = 1 if tables.attention_alone else ROW_BLOCK
    blocks, done = [], 0
    while done < rows:
        at, count = start + done, min(size, rows - done)
        if count > PAGE - at % PAGE and rows > size:
            count = PAGE - at % PAGE
        biases = {window: _bias(at, count, window, tables) for window in tables.windows}
        blocks.append(make_block(slice(done, done + count), at, tables.heads, biases, like))
        done += count
    return blocks


def _bias(start: int, rows: int, window: int | None, tables: PassTables) -> Tensor:
    if window is None:
        return tables.full.at(start, rows)
    heads = tables.heads
    return causal_bias(start, rows, heads.group, heads.tile, window, tables.cos.device)


def _chunks(state: DeltaState, start: int, rows: int, tables: PassTables) -> list[Chunk]:
    tile = tables.delta_tile
    parts = segments(start, rows, state.chunk)
    if tile == 0:
        parts = [one for part in parts for one in part.each_row()]
    return [_chunk(part, state, tables.chunks[state.chunk], max(tile, 1)) for part in parts]


def _chunk(part: Segment, state: DeltaState, table: ChunkTable, tile: int) -> Chunk:
    shape = state.spec
    heads = shape.key_heads, shape.value_heads
    at = part.first, part.size
    return Chunk(part.chunk, make_rows(*at, heads, shape.key_width, table, tile, part.count))

"""Plan of one pass over several sequences, computed once and shared by all layers."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

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
from outrider.state.base import State
from outrider.state.delta import DeltaState, Segment, segments


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


@dataclass(frozen=True, slots=True)
class PassPlan:
    """The spans of a pass and the rows of each; cos, signed sin [N, 1, width] of every row.

    table: where `PassTables.turns` are, what compiled layers need in place of all this: an int64
    array [S, fields] as `outrider.kernels.jit` wants it, and those turns.
    """

    units: Sequence[SpanPlan]
    sizes: list[int]
    cos: Tensor
    sin: Tensor
    table: Any = None
    turns: Any = None

    def split(self, rows: Tensor) -> Sequence[Tensor]:
        """The rows [N, ...] of a pass by span."""
        return (rows,) if len(self.sizes) == 1 else rows.split(self.sizes)


@dataclass(frozen=True, slots=True, kw_only=True)
class PassTables:
    """Tables that passes of one model look up.

    cos, sin: [max_length, width]. windows: of the attention layers. chunks: by chunk length.
    Where the self-test found no row multiple that keeps bits, rows run alone: `attention_alone`,
    and `delta_tile` is 0. turns: cos and sin as an array [2, max_length, width], where layers
    are fused.
    """

    cos: Tensor
    sin: Tensor
    windows: frozenset[int | None]
    heads: Heads
    attention_alone: bool
    full: BiasTable
    chunks: Mapping[int, ChunkTable]
    delta_tile: int
    turns: Any = None


def plan_pass(spans: Sequence[Span], tables: PassTables, like: Tensor) -> PassPlan:
    """Plan a pass and advance every span's state past its rows; `like` gives scratch its dtype."""
    starts = [span.state.length for span in spans]
    for span in spans:
        span.state.advance(span.rows, revocable=span.revocable)
    if tables.turns is not None:
        return _fused_plan(spans, starts, tables)
    planned = [
        SpanPlan(
            span.state,
            start,
            _blocks(start, span.rows, tables, like) if span.state.attention else [],
            _chunks(span.state.delta, start, span.rows, tables) if span.state.delta else [],
        )
        for span, start in zip(spans, starts, strict=True)
    ]
    sizes = [span.rows for span in spans]
    return PassPlan(planned, sizes, *_turns(starts, sizes, tables))


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
    # The units hold the states, so that what the addresses name lives as long as the plan.
    units = [SpanPlan(span.state, start, [], []) for span, start in zip(spans, starts, strict=True)]
    sizes, table = [span.rows for span in spans], torch.tensor(rows, dtype=torch.int64).numpy()
    return PassPlan(units, sizes, tables.cos, tables.sin, table, tables.turns)


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

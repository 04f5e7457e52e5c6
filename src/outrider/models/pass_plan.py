"""What one pass over several sequences needs to know, computed once and shared by all layers."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from outrider.ops.attention import PAGE, ROW_BLOCK, BiasTable, Block, Heads, causal_bias, make_block
from outrider.ops.delta import ChunkTable, Rows, Slot, make_rows
from outrider.state.delta import DeltaState, Segment, segments
from outrider.state.sequence import SequenceState


@dataclass(frozen=True, slots=True)
class Span:
    """`rows` rows of a pass that belong to one sequence, from its current length on.

    Rows that are not `revocable` are final, or have a checkpoint as their way back.
    """

    state: SequenceState
    rows: int
    revocable: bool = True


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

    state: SequenceState
    start: int
    blocks: list[Block]
    chunks: list[Chunk]


@dataclass(frozen=True, slots=True)
class PassPlan:
    """All spans with their row counts, and cos and signed sin [N, 1, width] of every row."""

    spans: list[SpanPlan]
    sizes: list[int]
    cos: Tensor
    sin: Tensor

    def split(self, rows: Tensor) -> Sequence[Tensor]:
        """The rows [N, ...] of a pass by span."""
        return (rows,) if len(self.sizes) == 1 else rows.split(self.sizes)


@dataclass(frozen=True, slots=True, kw_only=True)
class PassTables:
    """What passes of one model look up instead of computing it anew.

    cos, sin: [max_length, width]. windows: of the attention layers. chunks: by chunk length.
    Where the self-test found no row multiple that keeps bits, rows run alone: `attention_alone`,
    and `delta_tile` is 0.
    """

    cos: Tensor
    sin: Tensor
    windows: frozenset[int | None]
    heads: Heads
    attention_alone: bool
    full: BiasTable
    chunks: Mapping[int, ChunkTable]
    delta_tile: int


def plan_pass(spans: Sequence[Span], tables: PassTables, like: Tensor) -> PassPlan:
    """Plan a pass and advance every span's state past its rows; `like` gives scratch its dtype."""
    planned, cos, sin = [], [], []
    for span in spans:
        start = span.state.length
        span.state.advance(span.rows, revocable=span.revocable)
        blocks = _blocks(start, span.rows, tables, like) if span.state.attention else []
        chunks = _chunks(span.state.delta, start, span.rows, tables) if span.state.delta else []
        planned.append(SpanPlan(span.state, start, blocks, chunks))
        cos.append(tables.cos.narrow(0, start, span.rows))
        sin.append(tables.sin.narrow(0, start, span.rows))
    sizes = [span.rows for span in spans]
    return PassPlan(planned, sizes, _join(cos).unsqueeze(1), _join(sin).unsqueeze(1))


def _join(parts: list[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(parts)


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

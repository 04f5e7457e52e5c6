"""What one pass over several sequences needs to know, computed once and shared by all layers."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from outrider.ops.attention import PAGE, ROW_BLOCK, causal_bias
from outrider.ops.delta import visibility
from outrider.state.delta import Segment, segments
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
class Block:
    """Consecutive rows of a span attended together; `biases` by sliding window (None: full)."""

    rows: slice
    start: int
    biases: dict[int | None, Tensor]


@dataclass(frozen=True, slots=True)
class Chunk:
    """Rows of a span in one chunk of the delta log, with what they may see of it."""

    segment: Segment
    visible: Tensor


@dataclass(frozen=True, slots=True)
class SpanPlan:
    """One sequence's part of a pass: its rows among all rows, and where they start."""

    state: SequenceState
    rows: slice
    start: int
    blocks: list[Block]
    chunks: list[Chunk]


@dataclass(frozen=True, slots=True)
class PassPlan:
    """All spans, and cos and signed sin [N, 1, rotary width] of every row's position."""

    spans: list[SpanPlan]
    cos: Tensor
    sin: Tensor


@dataclass(frozen=True, slots=True)
class Tiles:
    """Row multiples chosen by the self-test; 0 runs each row by itself."""

    attention: int
    delta: int


def plan_pass(
    spans: Sequence[Span],
    rope: tuple[Tensor, Tensor],
    group: int,
    windows: Iterable[int | None],
    tiles: Tiles,
) -> PassPlan:
    """Plan a pass and advance every span's state past its rows."""
    planned, done = [], 0
    kinds = frozenset(windows)
    for span in spans:
        start = span.state.length
        span.state.advance(span.rows, revocable=span.revocable)
        blocks = _blocks(start, span.rows, group, kinds, tiles.attention, rope[0].device)
        chunks = _chunks(span.state, start, span.rows, tiles.delta)
        rows = slice(done, done + span.rows)
        planned.append(SpanPlan(span.state, rows, start, blocks, chunks))
        done += span.rows
    cos, sin = (
        torch.cat([table[part.start : part.start + _count(part.rows)] for part in planned])
        for table in rope
    )
    return PassPlan(planned, cos.unsqueeze(1), sin.unsqueeze(1))


def _count(rows: slice) -> int:
    return int(rows.stop - rows.start)


def _blocks(
    start: int,
    rows: int,
    group: int,
    windows: frozenset[int | None],
    tile: int,
    device: torch.device,
) -> list[Block]:
    """Cut rows where the page changes, so that no row attends pages of much later ones."""
    size = ROW_BLOCK if tile else 1
    blocks, done = [], 0
    while done < rows:
        count = min(size, rows - done)
        if count > PAGE - (start + done) % PAGE and rows > size:
            count = PAGE - (start + done) % PAGE
        at = start + done
        biases = {w: causal_bias(at, count, group, max(tile, 1), w, device) for w in windows}
        blocks.append(Block(slice(done, done + count), at, biases))
        done += count
    return blocks


def _chunks(state: SequenceState, start: int, rows: int, tile: int) -> list[Chunk]:
    if state.delta is None:
        return []
    chunk, device = state.delta.chunk, state.delta.bases.device
    parts = segments(start, rows, chunk)
    if tile == 0:
        parts = [
            Segment(part.chunk, part.first + row, slice(part.rows.start + row, part.rows.start + row + 1))
            for part in parts
            for row in range(_count(part.rows))
        ]
    return [
        Chunk(part, visibility(part.first, _count(part.rows), chunk, device)) for part in parts
    ]

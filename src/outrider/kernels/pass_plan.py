"""Plan of one pass over several sequences, made once and shared by all layers."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from outrider.state.base import State


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
class PlacedSpan:
    """`rows` rows of one sequence at positions from `start` on; `state` has room for them."""

    state: State
    start: int
    rows: int


@dataclass(frozen=True, slots=True)
class PassPlan:
    """The spans of a pass, in the order of its rows.

    table: int64 [S, fields] with where the memory of each span lies, as
    `outrider.kernels.jit.FIELDS` names it; valid while the spans' states live, which the plan
    holds. rope: cos and signed sin [2, max_length, width] of all positions.
    """

    spans: Sequence[PlacedSpan]
    table: Any
    rope: Tensor

    def split(self, rows: Tensor) -> Sequence[Tensor]:
        """The rows [N, ...] of a pass by span."""
        parts: Sequence[Tensor] = rows.split([span.rows for span in self.spans])
        return parts

    def rope_rows(self) -> tuple[Tensor, Tensor]:
        """cos and signed sin [N, 1, width] of all rows."""
        each = [self.rope[:, span.start : span.start + span.rows] for span in self.spans]
        cos, sin = torch.cat(each, 1).unsqueeze(2).unbind(0)
        return cos, sin


def plan_pass(spans: Sequence[Span], rope: Tensor) -> PassPlan:
    """Plan a pass and advance every span's state past its rows."""
    placed = [PlacedSpan(span.state, span.state.length, span.rows) for span in spans]
    for span in spans:
        span.state.advance(span.rows, revocable=span.revocable)
    table = torch.tensor([_fields(span) for span in placed], dtype=torch.int64).numpy()
    return PassPlan(placed, table, rope)


def _fields(span: PlacedSpan) -> tuple[int, ...]:
    attention, delta = span.state.attention, span.state.delta
    return (
        span.start,
        span.rows,
        *(attention.address if attention else (0, 0)),
        *(delta.addresses if delta else (0,) * 8),
        delta.columns.origin if delta else 0,
    )

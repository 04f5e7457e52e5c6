"""Parts of a sequence state, their bytes, and which way back applies. Torch-free arithmetic.

The byte formulas are exact: tests compare them with the storage of real tensors.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

Policy = Literal["log", "snapshots", "checkpoint"]
POLICIES: tuple[Policy, ...] = ("log", "snapshots", "checkpoint")

LOG_CHUNK = 32
"""Rows between two bases under the `log` and `checkpoint` policies."""

PAGE = 64
"""Positions per page of keys and values; equals `outrider.kernels.jit_attention.PAGE` (tested)."""

COLUMN_SLACK = 8
"""Convolution inputs held beyond the rollback capacity; they move to the front when it is used."""

FLOAT_BYTES = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionSpec:
    """Attention layers of one shape: keys and values [heads, width] per position and layer."""

    layers: int
    heads: int
    width: int
    element_bytes: int = FLOAT_BYTES

    def bytes_per_page(self) -> int:
        return 2 * self.layers * self.heads * self.width * PAGE * self.element_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class DeltaSpec:
    """Gated-delta-net layers of one shape; `channels` pass a convolution of `taps` columns."""

    layers: int
    key_heads: int
    value_heads: int
    key_width: int
    value_width: int
    channels: int
    taps: int

    def base_bytes(self) -> int:
        """One recurrent matrix per layer."""
        return self.layers * self.value_heads * self.key_width * self.value_width * FLOAT_BYTES

    def log_row_bytes(self) -> int:
        """Key, correction and decay of one row in every layer."""
        row = self.key_heads * self.key_width + self.value_heads * (self.value_width + 1)
        return self.layers * row * FLOAT_BYTES

    def column_bytes(self) -> int:
        """One convolution input of every layer."""
        return self.layers * self.channels * FLOAT_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class StateSpec:
    """The state of one sequence: which layers, which rollback policy, how many rows back.

    `capacity` is how many of the newest rows can be taken back without a checkpoint. It bounds
    recurrent layers only: attention truncates exactly at any length.
    """

    attention: AttentionSpec | None
    delta: DeltaSpec | None
    policy: Policy = "log"
    capacity: int = 0

    @property
    def chunk(self) -> int:
        """Rows between two bases: `snapshots` keeps the state after every single row."""
        return 1 if self.policy == "snapshots" else LOG_CHUNK

    @property
    def slots(self) -> int:
        """Bases (and chunks of log) held: from the last final row to the newest one in flight."""
        return -(-self.row_capacity // self.chunk) + 1

    @property
    def row_capacity(self) -> int:
        return 0 if self.policy == "checkpoint" else self.capacity

    @property
    def slack(self) -> int:
        return COLUMN_SLACK

    @property
    def columns(self) -> int:
        """Convolution inputs held."""
        return self.row_capacity + self.delta.taps - 1 + self.slack if self.delta else 0

    def recurrent_bytes(self) -> int:
        """Bytes that do not grow with the sequence; 0 for a dense model."""
        if self.delta is None:
            return 0
        delta, rows = self.delta, self.slots * self.chunk
        states = self.slots * delta.base_bytes()
        return states + rows * delta.log_row_bytes() + self.columns * delta.column_bytes()

    def attention_bytes(self, length: int) -> int:
        """Bytes of keys and values for `length` positions, in whole pages."""
        return self.attention.bytes_per_page() * -(-length // PAGE) if self.attention else 0

    def bytes(self, length: int) -> int:
        """Bytes of the whole state once it has room for `length` positions."""
        return self.recurrent_bytes() + self.attention_bytes(length)


class Rollback(StrEnum):
    """How the rows of a window can be taken back."""

    TRUNCATE = "truncate"
    """Attention only: lower the length."""
    LOG = "log"
    """Recurrent layers forget log entries: lower the length."""
    SNAPSHOTS = "snapshots"
    """Recurrent layers go back to the state kept after an earlier row: lower the length."""
    CHECKPOINT = "checkpoint"
    """Copy before the window, restore and run the kept rows again."""


def rollback_for(spec: StateSpec, rows_in_flight: int) -> Rollback:
    """The cheapest exact way back when `rows_in_flight` rows above the floor may be rejected."""
    if spec.delta is None:
        return Rollback.TRUNCATE
    if rows_in_flight > spec.row_capacity:
        return Rollback.CHECKPOINT
    return Rollback(spec.policy)

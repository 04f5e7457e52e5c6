"""Which way back applies to a window: one pure decision, made for every window anew."""

from enum import StrEnum

from outrider.state.spec import StateSpec


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

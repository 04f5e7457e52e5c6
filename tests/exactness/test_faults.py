"""The suite has teeth: each planted fault makes a cell fail.

A fault may show as a wrong token, as counters that contradict the script, or as a refusal.
"""

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from outrider.engine.ledger import Ledger
from outrider.errors import OutriderError
from outrider.records import Window
from outrider.stage.layer_range import StageSession
from outrider.state.delta_log import DeltaState
from outrider.state.sequence import SequenceState
from outrider.verify.sampler import Sampler
from tests.exactness.cells import Cell, check_cell

settle = SequenceState.settle
restore = StageSession.restore_to
roll_back = StageSession.roll_back


def settle_one_too_many(state: SequenceState, length: int) -> None:
    settle(state, min(length + 1, state.length))
    state.length = length if state.delta is None else state.length


def settle_attention_only(state: SequenceState, length: int) -> None:
    """The recurrent layers keep the rejected rows: what was the row after the kept ones stays."""
    ahead = state.length
    settle(state, length)
    delta = state.delta
    if delta is not None and ahead > length:
        chunk, row = divmod(length - 1, delta.chunk)
        for layer in range(delta.spec.layers):
            delta.log(layer, chunk).corrections[:, row] *= 1.5


def replay_one_too_many(slot: StageSession, start: int) -> Sequence[int]:
    again = restore(slot, start)
    return [*again, slot.replay.rows[-1]] if slot.replay.rows else again


def skip_rollback(slot: StageSession, start: int) -> tuple[None, tuple[()]]:
    return None, ()


def skip_restore(state: DeltaState, copy: object) -> None:
    pass


def boundary_one_late(ledger: Ledger) -> int | None:
    if ledger.flights:
        return ledger.flights[0].tokens[-1]
    return ledger.queue[-1][0] if ledger.queue else None


def own_row(window: Window, replied: tuple[int, ...]) -> int:
    """A draft is compared with the reply of its own row, not of the row before it."""
    pairs = zip(window.drafts, replied[window.opens_epoch :], strict=False)
    return next((i for i, (draft, own) in enumerate(pairs) if draft != own), len(window.drafts))


def accept_all(window: Window, replied: tuple[int, ...]) -> int:
    return len(window.drafts)


def counts_not_cut(tail: Sampler, window: Any, unwanted: int) -> None:
    if tail.counts is not None:
        tail.counts.cut(min(len(tail.counts), window.start + 1))
        tail.counts.extend(window.tokens[: window.start + unwanted - len(tail.counts)])


IN_THE_STATE = "outrider.state.sequence.SequenceState.settle"
PARTLY = {"method": "partly", "count": 2}
FAULTS: dict[str, tuple[str, Callable[..., Any], Cell]] = {
    "settle keeps one row too many, log": (IN_THE_STATE, settle_one_too_many, Cell(**PARTLY)),
    "settle keeps one row too many, snapshots": (
        IN_THE_STATE,
        settle_one_too_many,
        Cell(policy="snapshots", **PARTLY),
    ),
    "replay runs one row too many": (
        "outrider.stage.layer_range.StageSession.restore_to",
        replay_one_too_many,
        Cell(policy="checkpoint", **PARTLY),
    ),
    "recurrent layers keep a trace": (IN_THE_STATE, settle_attention_only, Cell(**PARTLY)),
    "rollback skipped": (
        "outrider.stage.layer_range.StageSession.roll_back",
        skip_rollback,
        Cell(**PARTLY),
    ),
    "recurrent layers not restored": (
        "outrider.state.delta_log.DeltaState.restore",
        skip_restore,
        Cell(method="partly", policy="checkpoint"),
    ),
    "boundary compared one token late": (
        "outrider.engine.ledger.Ledger.follower",
        boundary_one_late,
        Cell(method="right", depth=4, width=4, count=2),
    ),
    "draft compared with the wrong row": (
        "outrider.engine.ledger.agreeing",
        own_row,
        Cell(method="right", count=2),
    ),
    "every draft accepted": ("outrider.engine.ledger.agreeing", accept_all, Cell(**PARTLY)),
    "penalties see rejected drafts": (
        "outrider.verify.sampler.Sampler.enter",
        counts_not_cut,
        Cell(sampling="seeded", **PARTLY),
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_fails_the_suite(hybrid, monkeypatch, fault):
    name, planted, cell = FAULTS[fault]
    check_cell(hybrid, cell)
    monkeypatch.setattr(name, planted)
    with pytest.raises((AssertionError, OutriderError, IndexError)):
        check_cell(hybrid, cell)

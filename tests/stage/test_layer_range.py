"""One stage: voided windows are passed on unrun, and its state holds its own layers only."""

import pytest
import torch

from outrider.errors import StageError
from outrider.records import Window
from outrider.sampling.params import SamplingParams
from outrider.stage.base import Frame, Void
from outrider.state.spec import Rollback


def frame(start: int, epoch: int, rows: int = 3, **more) -> Frame:
    tokens = tuple(range(1, rows + 1))
    number = 10 * epoch + start
    window = Window(
        session=0, id=number, epoch=epoch, start=start, floor=0, tokens=tokens, wanted=rows
    )
    return Frame.of(window, **more)


def parts(hybrid):
    made = hybrid.parts((1, 3), "log", 16)
    for part in made:
        part.open(0, SamplingParams(), 1)
    return made


def test_a_window_behind_a_later_one_is_refused(hybrid):
    first, _ = parts(hybrid)
    first.take(frame(3, epoch=1))
    with pytest.raises(StageError, match="sent window 10 of session 0 behind window 13, out of o"):
        first.take(frame(0, epoch=1))


def test_a_voided_window_is_answered_without_being_run(hybrid):
    first, last = parts(hybrid)
    for start in (0, 3):
        first.take(frame(start, epoch=1))
    (ran,) = first.run()
    first.take(Void(0, 1))
    first.take(frame(0, epoch=2))
    (skipped,), (fresh,) = first.run(), first.run()
    assert ran.hidden is not None
    assert skipped.reply.skipped
    assert skipped.hidden is None
    assert not fresh.reply.skipped
    for message in (ran, skipped, fresh):
        last.take(message)
    answers = [last.run()[0] for _ in range(3)]
    assert [bool(answer.reply.tokens) for answer in answers] == [True, False, True]
    assert answers[0].reply.tokens == answers[2].reply.tokens  # the same rows, once taken back
    assert answers[2].reply.rollback == "log"
    assert last.held[0].state.length == 3


def test_what_belongs_to_a_closed_session_is_dropped(hybrid):
    first, _ = parts(hybrid)
    first.take(frame(0, epoch=1))
    first.close(0)
    first.take(frame(3, epoch=1))
    first.take(Void(0, 1))
    assert not first.waiting
    assert first.run() == []


def test_a_stage_without_recurrent_layers_is_known_by_its_layers(hybrid):
    made = hybrid.parts((1, 2, 1), "checkpoint", 0)
    states = []
    for part in made:
        part.open(0, SamplingParams(), 1)
        states.append(part.held[0].state)
    assert [state.delta is None for state in states] == [False, False, True]
    assert [state.attention is None for state in states] == [True, False, False]
    assert states[0].rollback(4) is Rollback.CHECKPOINT
    assert states[2].rollback(4) is Rollback.TRUNCATE


def test_a_stage_holds_its_own_tensors_only(hybrid):
    first, middle, last = (part.decoder for part in hybrid.parts((1, 2, 1), "log", 4))
    assert [len(part.layers) for part in (first, middle, last)] == [1, 2, 1]
    assert [part.embedding is None for part in (first, middle, last)] == [False, True, True]
    assert [part.head is None for part in (first, middle, last)] == [True, True, False]
    assert (first.first, middle.first, last.first) == (0, 1, 3)
    assert torch.equal(first.embedding, hybrid.decoder.embedding)

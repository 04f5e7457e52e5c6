"""The coordinator against stages that misbehave, and what it knows of sessions."""

import socket
import threading
from contextlib import contextmanager, suppress

import pytest

from outrider.errors import StageError, StageLost
from outrider.records import Reply, Window
from outrider.sampling.params import SamplingParams
from outrider.stage.base import Frame
from outrider.stage.channel import Inbox, Outbox
from outrider.stage.link import LOCAL
from outrider.stage.wire import Audit, Close, Failed, Message, Open, Ready
from outrider.stage.wired import Patience, WiredStage

READY = Ready(vocab_size=64, max_length=256, exact=True)


def messages_of(inbox):
    while True:
        yield from inbox.take()


class FakeWorkers:
    """One stage that answers by `script`: what it says to each message it is sent.

    Every start takes the next script. None in place of a message hangs up; an error in place of a
    script is what the start fails with.
    """

    def __init__(self, *scripts) -> None:
        self.scripts = list(scripts)
        self.heard: list[list[Message]] = []
        self._thread: threading.Thread | None = None

    def start(self, seconds):
        if isinstance(self.scripts[0], Exception):
            raise self.scripts.pop(0)
        (ours, theirs), (back, into) = socket.socketpair(), socket.socketpair()
        self.heard.append([])
        thread = threading.Thread(
            target=self._run, args=(Inbox(theirs, LOCAL, 0), Outbox(into), self.scripts.pop(0))
        )
        thread.start()
        self._thread = thread
        return Outbox(ours), Inbox(back, LOCAL, 0)

    def _run(self, inbox, outbox, script):
        with suppress(StageLost):  # the coordinator may have had enough
            self._talk(inbox, outbox, script)
        outbox.close()
        inbox.close()

    def _talk(self, inbox, outbox, script):
        heard = self.heard[-1]
        outbox.send(READY)
        for message in iter(messages_of(inbox).__next__, None):
            heard.append(message)
            answers = script(message)
            for answer in answers:
                if answer is not None:
                    outbox.send(answer)
            if None in answers:
                return

    def fault(self, seconds):
        return None if self._thread is None or self._thread.is_alive() else "stage 0 of 1 left"

    def stop(self):
        if self._thread is not None:
            self._thread.join()

    def shutdown(self):
        self.stop()


@contextmanager
def running(*scripts, resumes=2, deadline_s=300.0):
    workers = FakeWorkers(*scripts)
    patience = Patience(health_s=0.1, resumes=resumes, deadline_s=deadline_s)
    stage = WiredStage(workers, patience)
    try:
        yield stage, workers
    finally:
        stage.shutdown()


def window(number, start, tokens=(1, 2), epoch=0, wanted=2, session=7):
    return Window(
        session=session,
        id=number,
        epoch=epoch,
        start=start,
        floor=start,
        tokens=tokens,
        wanted=wanted,
    )


def reply(number, session=7):
    return Reply(session=session, id=number, tokens=(5, 6))


def silent(message):
    return ()


def right(message):
    if isinstance(message, Audit):
        return [Audit((1,))]
    is_owed = isinstance(message, Frame) and message.window.wanted
    return [reply(message.window.id, message.window.session)] if is_owed else ()


def hang_up(message):
    return [None] if isinstance(message, Frame) else ()


def begin(stage, session=7):
    stage.open(session, SamplingParams(), 4)
    stage.submit(window(-1, 0, (1, 2, 3, 4), wanted=0, session=session))
    assert stage.run_batch() == [Reply(session=session, id=-1)]


def faults(replies):
    """What the replies say, by session and window."""
    return {(one.session, one.id): str(one.fault) for one in replies if one.fault}


def test_an_answer_out_of_order_is_refused_and_ends_the_chain():
    def swapped(message):
        return [reply(1), reply(0)] if right(message) == [reply(1)] else ()

    with running(swapped, right) as (stage, _):
        begin(stage)
        stage.submit(window(0, 4))
        stage.submit(window(1, 6))
        with pytest.raises(StageError, match=r"the last stage answered window 1 out of order, 0"):
            stage.run_batch()
        stage.close(7)
        begin(stage)
        stage.submit(window(0, 4))
        assert stage.run_batch() == [reply(0)]


def test_a_failure_is_told_in_its_own_words_and_not_tried_again():
    with running(lambda message: [Failed("stage 0 of 1 failed: no memory")]) as (stage, workers):
        begin(stage)
        stage.submit(window(0, 4))
        with pytest.raises(StageError, match="no memory"):
            stage.run_batch()
        assert len(workers.heard) == 1


def test_what_was_consumed_is_prefilled_and_what_is_owed_sent_again():
    def first_only(message):
        number = message.window.id if isinstance(message, Frame) else None
        return {0: [reply(0)], 3: [None]}.get(number, ())

    with running(first_only, right) as (stage, workers):
        begin(stage)
        stage.submit(window(0, 4, (10, 11)))
        stage.submit(window(1, 6, (12, 13)))
        assert stage.run_batch() == [reply(0)]
        stage.void(7, 0)
        stage.submit(window(2, 5, (20, 21), epoch=1))
        stage.submit(window(3, 7, (22, 23), epoch=1))
        answers = [stage.run_batch()[0] for _ in range(3)]
        assert answers == [Reply(session=7, id=1, skipped=True), reply(2), reply(3)]
        assert stage.resumed == 1
        again = workers.heard[1]
        assert isinstance(again[0], Open)
        windows = [message.window for message in again[1:]]
        assert [(one.start, one.tokens) for one in windows] == [
            (0, (1, 2, 3, 4, 10)),
            (5, (20, 21)),
            (7, (22, 23)),
        ]
        assert windows[0].floor == 5
        stage.check()


def test_a_session_survives_as_many_losses_as_it_may():
    with running(hang_up, hang_up, right, resumes=1) as (stage, workers):
        begin(stage)
        stage.submit(window(0, 4))
        (found,) = stage.run_batch()
        assert isinstance(found.fault, StageLost)
        assert faults([found]) == {(7, 0): "stage 0 of 1 left: its requests are lost."}
        assert len(workers.heard) == 2
        stage.close(7)
        begin(stage)
        stage.submit(window(0, 4))
        assert stage.run_batch() == [reply(0)]


def test_a_leaked_session_is_counted():
    with running(right) as (stage, _):
        begin(stage)
        stage.check()
        stage.close(7)
        with pytest.raises(StageError, match="stages hold 1 sessions and 0 run"):
            stage.check()


def test_a_closed_session_is_heard_of():
    with running(silent) as (stage, workers):
        begin(stage)
        stage.close(7)
        stage.close(7)
    assert workers.heard[0][-1] == Close(7)
    assert sum(isinstance(message, Close) for message in workers.heard[0]) == 1


def leave_after(count):
    """Hangs up once it has heard `count` messages, having answered none."""
    heard = []

    def script(message):
        heard.append(message)
        return [None] if len(heard) == count else ()

    return script


def gone(workers):
    """Wait until the stage that runs has left."""
    workers._thread.join(10.0)
    assert not workers._thread.is_alive()


def test_a_stage_lost_before_a_session_closes_fails_no_other_session():
    """Sessions 8 and 9 are over their limit as 7 is closed; the loss is theirs to tell of."""
    with running(leave_after(6), right, resumes=0) as (stage, workers):
        for session in (7, 8, 9):
            begin(stage, session)
        gone(workers)
        stage.submit(window(0, 4, session=8))
        stage.void(9, 0)
        stage.close(7)
        stage.submit(window(0, 4, session=9))
        found = stage.run_batch()
        lost = "stage 0 of 1 left: its requests are lost."
        assert faults(found) == {(8, 0): lost, (9, 0): lost}
        for session in (8, 9):
            stage.close(session)
        assert stage.num_sessions == 0
        begin(stage)
        stage.submit(window(0, 4))
        assert stage.run_batch() == [reply(0)]
        stage.check()


def test_a_loss_found_by_close_is_borne_within_the_limit():
    with running(leave_after(4), right, resumes=1) as (stage, workers):
        begin(stage, 7)
        begin(stage, 8)
        gone(workers)
        stage.close(7)
        stage.submit(window(0, 4, session=8))
        assert stage.run_batch() == [reply(0, 8)]
        stage.check()
        assert stage.resumed == 1


def test_a_loss_while_stages_restart_is_one_more_and_tried_again():
    lost = StageLost("stage 1 of 2 died (signal 9)")
    with running(hang_up, lost, right) as (stage, workers):
        begin(stage)
        stage.submit(window(0, 4))
        assert stage.run_batch() == [reply(0)]
        assert len(workers.heard) == 2


def test_losses_while_stages_restart_fail_only_those_over_their_limit():
    """Session 7 has borne one loss more than 8, which began after it."""

    def first(message):
        return [None] if isinstance(message, Frame) and message.window.id == 0 else ()

    def second(message):
        number = message.window.id if isinstance(message, Frame) else None
        return {0: [reply(0)], 1: [None]}.get(number, ())

    lost = StageLost("stage 1 of 2 died (signal 9)")
    with running(first, second, lost, right) as (stage, _):
        begin(stage, 7)
        stage.submit(window(0, 4, session=7))
        assert stage.run_batch() == [reply(0)]
        begin(stage, 8)
        stage.submit(window(1, 6, session=7))
        stage.submit(window(1, 4, session=8))
        found = stage.run_batch()
        assert faults(found) == {(7, 1): f"{lost}: its requests are lost."}
        stage.close(7)
        assert stage.run_batch() == [reply(1, 8)]
        stage.check()


def test_a_start_that_fails_for_good_ends_what_is_owed_and_is_tried_again_later():
    with running(hang_up, StageError("stage 0 of 1 failed: no memory."), right) as (stage, _):
        begin(stage, 7)
        begin(stage, 8)
        for session in (7, 8):
            stage.submit(window(0, 4, session=session))
        said = "stage 0 of 1 failed: no memory."
        assert faults(stage.run_batch()) == {(7, 0): said, (8, 0): said}
        stage.close(7)
        stage.close(8)
        begin(stage)
        stage.submit(window(0, 4))
        assert stage.run_batch() == [reply(0)]


def test_a_stage_lost_at_the_first_start_refuses():
    with pytest.raises(StageError, match=r"stage 1 of 2 died, before it was ready\."):
        WiredStage(FakeWorkers(StageLost("stage 1 of 2 died")), Patience())


def test_a_first_start_that_says_nothing_is_refused():
    def mute(self, inbox, outbox, script):
        next(messages_of(inbox))

    workers = FakeWorkers(right)
    workers._talk = mute.__get__(workers)
    with pytest.raises(StageError, match=r"no stage has answered for 0\.1 s: raise stages\.dead"):
        WiredStage(workers, Patience(deadline_s=0.1))
    assert not workers._thread.is_alive()


def test_silence_fails_those_that_wait_and_no_others():
    with running(silent, right, deadline_s=0.3) as (stage, _):
        begin(stage, 7)
        begin(stage, 8)
        stage.submit(window(0, 4, session=7))
        stage.submit(window(1, 6, session=7))
        (first,) = stage.run_batch()
        (second,) = stage.run_batch()
        assert [one.id for one in (first, second)] == [0, 1]
        assert "no stage has answered for 0.3 s" in str(second.fault)
        stage.close(7)
        stage.submit(window(0, 4, session=8))
        assert stage.run_batch() == [reply(0, 8)]
        stage.check()


def test_a_fault_ends_its_session_only():
    def faulty(message):
        if isinstance(message, Frame) and message.window.session == 7 and message.window.wanted:
            return [Reply(session=7, id=message.window.id, fault=ValueError("logits are NaN"))]
        return right(message)

    with running(faulty) as (stage, _):
        begin(stage, 7)
        begin(stage, 8)
        for session in (7, 8):
            stage.submit(window(0, 4, session=session))
        found = [*stage.run_batch(), *stage.run_batch()]
        assert faults(found) == {(7, 0): "ValueError: logits are NaN"}
        assert [type(one.fault) for one in found if one.fault] == [StageError]
        assert reply(0, 8) in found
        stage.close(7)
        stage.submit(window(1, 6, session=8))
        assert stage.run_batch() == [reply(1, 8)]


def test_a_fault_of_a_window_that_nobody_waits_for_answers_the_next_one():
    def faulty(message):
        if isinstance(message, Frame) and message.window.session == 7:
            return [Reply(session=7, id=message.window.id, fault=StageError("no room"))]
        return right(message)

    with running(faulty) as (stage, _):
        begin(stage, 7)
        begin(stage, 8)
        stage.submit(window(0, 4, session=8))
        assert stage.run_batch() == [reply(0, 8)]
        stage.submit(window(0, 4, session=7))
        assert faults(stage.run_batch()) == {(7, 0): "no room"}
        stage.submit(window(1, 6, session=7))
        assert faults(stage.run_batch()) == {(7, 1): "no room"}


def test_a_window_that_fits_into_no_message_fails_its_session_only(monkeypatch):
    monkeypatch.setattr("outrider.stage.wire.MOST_HEADER", 4000)
    with running(right) as (stage, _):
        begin(stage, 7)
        begin(stage, 8)
        stage.submit(window(0, 4, tuple(range(4000)), session=7))
        stage.submit(window(0, 4, session=8))
        found = [*stage.run_batch(), *stage.run_batch()]
        assert list(faults(found)) == [(7, 0)]
        assert "its window too large" in str(found[0].fault)
        assert reply(0, 8) in found


def test_after_an_interrupt_halfway_through_a_message_the_stages_start_anew():
    class Half:
        def __init__(self, end):
            self.end, self.left = end, 2

        def send(self, data):
            self.left -= 1
            if self.left:
                return self.end.send(data)
            self.end.send(data[: len(data) // 2])
            raise KeyboardInterrupt

        def __getattr__(self, name):
            return getattr(self.end, name)

    with running(right, right) as (stage, workers):
        begin(stage, 7)
        outbox = stage.ways[0]
        outbox._end = Half(outbox._end)
        stage.submit(window(0, 4))
        with pytest.raises(KeyboardInterrupt):
            stage.submit(window(1, 6))
        with pytest.raises(StageLost, match="cut short"):
            outbox.send(Close(7))
        stage.close(7)
        begin(stage, 8)
        stage.submit(window(0, 4, session=8))
        assert stage.run_batch() == [reply(0, 8)]
        assert len(workers.heard) == 2
        stage.check()


def test_an_interrupt_while_waiting_costs_nothing(monkeypatch):
    wait = Inbox.wait

    def interrupted(self, timeout=None):
        monkeypatch.setattr(Inbox, "wait", wait)
        raise KeyboardInterrupt

    with running(right) as (stage, _):
        begin(stage)
        stage.submit(window(0, 4))
        ways = stage.ways
        monkeypatch.setattr(type(ways[1]), "wait", interrupted)
        with pytest.raises(KeyboardInterrupt):
            stage._take()
        assert stage.run_batch() == [reply(0)]
        assert stage.ways is ways


def test_a_stage_that_takes_nothing_in_is_found(monkeypatch):
    """What is sent outgrows the buffers of the socket, so that the sender waits for room."""
    (ours, full), (back, into) = socket.socketpair(), socket.socketpair()
    with full, into:
        workers = FakeWorkers(right)
        workers.start = lambda seconds: (Outbox(ours), Inbox(back, LOCAL, 0))
        Outbox(into).send(READY)
        stage = WiredStage(workers, Patience(health_s=0.1, deadline_s=0.5))
        stage.open(7, SamplingParams(), 4)
        stage.submit(window(0, 0, tuple(range(300_000))))
        (found,) = stage.run_batch()
        assert "no stage has answered for 0.5 s" in str(found.fault)
        stage.shutdown()

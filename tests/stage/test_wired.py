"""The coordinator against stages that misbehave, and what it knows of sessions."""

import socket
import threading
from contextlib import contextmanager, suppress

import pytest

from outrider.core_types import Reply, Window
from outrider.errors import StageError, StageLost
from outrider.sampling.params import SamplingParams
from outrider.stage.channel import Inbox, Outbox
from outrider.stage.frame import Frame
from outrider.stage.link import LOCAL
from outrider.stage.wire import Audit, Close, Failed, Message, Open, Ready
from outrider.stage.wired import Patience, WiredStage

READY = Ready(vocab_size=64, max_length=256, exact=True)


def messages_of(inbox):
    while True:
        yield from inbox.take()


class FakeWorkers:
    """One stage that answers by `script`: what it says to each message it is sent.

    Every start takes the next script. None in place of a message hangs up.
    """

    def __init__(self, *scripts) -> None:
        self.scripts = list(scripts)
        self.heard: list[list[Message]] = []

    def start(self, seconds):
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
        return None if self._thread.is_alive() else "stage 0 of 1 left"

    def stop(self):
        self._thread.join()

    def shutdown(self):
        self.stop()


@contextmanager
def running(*scripts, resumes=2):
    workers = FakeWorkers(*scripts)
    stage = WiredStage(workers, Patience(health_s=0.1, resumes=resumes))
    try:
        yield stage, workers
    finally:
        stage.shutdown()


def window(number, start, tokens=(1, 2), epoch=0, wanted=2):
    return Window(
        session=7,
        id=number,
        epoch=epoch,
        start=start,
        floor=start,
        tokens=tokens,
        wanted=wanted,
    )


def reply(number):
    return Reply(session=7, id=number, tokens=(5, 6))


def silent(message):
    return ()


def right(message):
    if isinstance(message, Audit):
        return [Audit((1,))]
    is_owed = isinstance(message, Frame) and message.window.wanted
    return [reply(message.window.id)] if is_owed else ()


def hang_up(message):
    return [None] if isinstance(message, Frame) else ()


def begin(stage):
    stage.open(7, SamplingParams(), 4)
    stage.submit(window(-1, 0, (1, 2, 3, 4), wanted=0))
    assert stage.poll() == [Reply(session=7, id=-1)]


def test_an_answer_out_of_order_is_refused_and_ends_the_chain():
    def swapped(message):
        return [reply(1), reply(0)] if right(message) == [reply(1)] else ()

    with running(swapped, right) as (stage, _):
        begin(stage)
        stage.submit(window(0, 4))
        stage.submit(window(1, 6))
        with pytest.raises(StageError, match=r"the last stage answered window 1 out of order, 0"):
            stage.poll()
        stage.close(7)
        begin(stage)
        stage.submit(window(0, 4))
        assert stage.poll() == [reply(0)]


def test_a_failure_is_told_in_its_own_words_and_not_tried_again():
    with running(lambda message: [Failed("stage 0 of 1 failed: no memory")]) as (stage, workers):
        begin(stage)
        stage.submit(window(0, 4))
        with pytest.raises(StageError, match="no memory"):
            stage.poll()
        assert len(workers.heard) == 1


def test_what_was_consumed_is_prefilled_and_what_is_owed_sent_again():
    def first_only(message):
        number = message.window.id if isinstance(message, Frame) else None
        return {0: [reply(0)], 3: [None]}.get(number, ())

    with running(first_only, right) as (stage, workers):
        begin(stage)
        stage.submit(window(0, 4, (10, 11)))
        stage.submit(window(1, 6, (12, 13)))
        assert stage.poll() == [reply(0)]
        stage.void(7, 0)
        stage.submit(window(2, 5, (20, 21), epoch=1))
        stage.submit(window(3, 7, (22, 23), epoch=1))
        answers = [stage.poll()[0] for _ in range(3)]
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
        with pytest.raises(StageLost, match="stage 0 of 1 left: its requests are lost"):
            stage.poll()
        assert len(workers.heard) == 2


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

"""The loop of a stage's process: what one session does wrong stays with it."""

import socket
import threading
from contextlib import closing, contextmanager

import pytest
import torch

from outrider.errors import StageError
from outrider.records import Reply, Window
from outrider.sampling.params import SamplingParams
from outrider.stage.base import Frame
from outrider.stage.channel import Inbox, Outbox
from outrider.stage.link import LOCAL
from outrider.stage.process import run
from outrider.stage.wire import Audit, Close, Failed, Open
from outrider.state.sequence import SequenceState


def window(session, number=0, start=0, tokens=(1, 2, 3)):
    return Window(
        session=session,
        id=number,
        epoch=0,
        start=start,
        floor=start,
        tokens=tokens,
        wanted=len(tokens),
    )


def opened(session, **sampling):
    return Open(session=session, sampling=SamplingParams(**sampling), prompt_len=3)


@contextmanager
def serving(part):
    """Ways to a stage that runs `part` and from it, all messages of which are kept."""
    (ours, theirs), (back, into) = socket.socketpair(), socket.socketpair()
    taken = Inbox(theirs, LOCAL, 0)
    thread = threading.Thread(
        target=run,
        args=("stage 1 of 2", lambda: part, taken, Outbox(into)),
        kwargs={"first": True},
    )
    thread.start()
    outbox, inbox = Outbox(ours), Inbox(back, LOCAL, 0)
    with closing(inbox):
        with closing(outbox):
            assert inbox.take(20.0)[0].exact
            yield outbox, Replies(inbox)
        thread.join()
        taken.close()
        into.close()


class Replies:
    """What a stage says, one message after the other."""

    def __init__(self, inbox):
        self._inbox, self._come = inbox, []

    def next(self):
        while not self._come:
            found = self._inbox.take(20.0)
            assert found, "nothing came"
            self._come += found
        return self._come.pop(0)


@pytest.fixture
def whole(hybrid):
    return hybrid.parts((4,), "log", 16)[0]


def test_a_faulty_frame_travels_on_and_runs_nothing(hybrid):
    last = hybrid.parts((1, 3), "log", 16)[1]
    hidden = torch.randn(3, last.decoder.config.hidden_size)
    with serving(last) as (out, replies):
        out.send(opened(1))
        out.send(opened(2))
        out.send(Frame.of(window(1), fault=StageError("the sampler failed")))
        out.send(Frame.of(window(2), hidden=hidden))
        found = {one.session: one for one in (replies.next(), replies.next())}
        assert str(found[1].fault) == "the sampler failed"
        assert not found[1].tokens
        assert found[2].fault is None
        assert len(found[2].tokens) == 3
        out.send(Frame.of(window(1, 1, 3), hidden=hidden))
        assert str(replies.next().fault) == "the sampler failed"
        for session in (1, 2):
            out.send(Close(session))
        out.send(Audit())
        assert replies.next() == Audit((0,))


def test_a_session_that_cannot_begin_fails_alone(whole, monkeypatch):
    """The sampler of session 1 asks for more than there is."""
    sampler = whole.make_sampler

    def short(sampling, prompt_len):
        if sampling.seed == 1:
            raise MemoryError("no room for its counts")
        return sampler(sampling, prompt_len)

    monkeypatch.setattr(whole, "make_sampler", short)
    with serving(whole) as (out, replies):
        out.send(opened(1, seed=1))
        out.send(Frame.of(window(1)))
        out.send(opened(2, seed=2))
        out.send(Frame.of(window(2)))
        assert str(replies.next().fault) == "MemoryError: no room for its counts"
        found = replies.next()
        assert found.session == 2
        assert len(found.tokens) == 3
        for session in (1, 2):
            out.send(Close(session))
        out.send(Audit())
        assert replies.next() == Audit((0,))


def test_a_wrong_state_that_ends_harms_no_other(whole, monkeypatch, caplog):
    def fail(state):
        raise StageError("its layers differ in length")

    with serving(whole) as (out, replies):
        for session in (1, 2):
            out.send(opened(session))
            out.send(Frame.of(window(session)))
            assert replies.next().session == session
        monkeypatch.setattr(SequenceState, "check", fail)
        out.send(Close(1))
        out.send(Frame.of(window(2, 1, 3)))
        assert replies.next().tokens
        monkeypatch.undo()
        out.send(Audit())
        assert replies.next() == Audit((1,))
    assert "a session ended with a wrong state: its layers differ in length" in caplog.text


def test_a_result_that_fits_into_no_message_fails_its_session_only(hybrid, monkeypatch):
    first = hybrid.parts((1, 3), "log", 16)[0]
    monkeypatch.setattr("outrider.stage.wire.MOST_PAYLOAD", 2000)
    with serving(first) as (out, replies):
        for session, rows in ((1, 12), (2, 1)):
            out.send(opened(session))
            out.send(Frame.of(window(session, tokens=(1,) * rows)))
        found = {}
        while len(found) < 2:
            message = replies.next()
            if isinstance(message, Frame):
                found[message.window.session] = message
        assert "exceeds" in str(found[1].reply.fault)
        assert found[2].reply.fault is None
        assert found[2].hidden is not None


def test_nonsense_ends_a_stage_and_says_why(whole):
    with serving(whole) as (out, replies):
        out._end.sendall(b"Traceback (most recent call last):\n" * 10)
        found = replies.next()
        assert isinstance(found, Failed)
        assert "it is damaged" in found.reason


def test_a_message_without_use_ends_a_stage_and_says_why(whole):
    with serving(whole) as (out, replies):
        out.send(Reply(session=1, id=2))
        assert "stage 1 of 2 failed: a stage was sent Reply" in replies.next().reason

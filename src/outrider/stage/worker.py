"""The process of one stage: take messages, run its layers, hand the results on.

A failure that is one session's own ends that session: a frame with its fault travels on.
"""

import logging
from collections.abc import Callable
from dataclasses import replace

from outrider.errors import StageError, StageLost
from outrider.records import Window
from outrider.stage.channel import Inbox, Outbox
from outrider.stage.frame import Frame, Void, to_reply
from outrider.stage.part import Part
from outrider.stage.wire import Audit, Close, Failed, Message, Open, Ready, say

LOG = logging.getLogger(__name__)


def serve(part: Part, inbox: Inbox, outbox: Outbox) -> None:
    """Run until the side before has gone, or said that it failed."""
    while True:
        for message in inbox.take(0.0 if part.waiting else None):
            if message is None:
                return
            if isinstance(message, Failed):
                outbox.send(message)
                return
            _handle(part, message, outbox)
        for frame in part.run():
            if not part.is_tail or frame.is_answered:
                _hand_on(frame, outbox, reply=part.is_tail)


def _hand_on(frame: Frame, outbox: Outbox, *, reply: bool) -> None:
    """Send what was made of a window; where that fits into no message, the fault of its session."""
    try:
        outbox.send(to_reply(frame) if reply else frame)
    except StageLost:
        raise
    except StageError as error:
        failed = replace(frame, hidden=None, taps=None, picked=None, fault=error)
        outbox.send(to_reply(failed) if reply else failed)


def _handle(part: Part, message: Message, outbox: Outbox) -> None:
    """Sessions and voids are passed on at once: they overtake the frames that wait here."""
    if isinstance(message, Frame):
        part.take(message)
        return
    if isinstance(message, Open):
        _open(part, message, outbox)
        return
    if isinstance(message, Close):
        _close(part, message.session)
    elif isinstance(message, Void):
        part.take(message)
    elif isinstance(message, Audit):
        part.check()
        outbox.send(Audit((*message.counts, part.num_sessions)))
        return
    else:
        raise StageError(f"a stage was sent {type(message).__name__}, which it has no use for.")
    if not part.is_tail:
        outbox.send(message)


def _open(part: Part, message: Open, outbox: Outbox) -> None:
    """Begin a session here and further on; its fault is on its way where that fails here."""
    failed: Exception | None = None
    try:
        part.open(message.session, message.sampling, message.prompt_len, message.taps)
    except Exception as error:
        failed = error
    if not part.is_tail:
        outbox.send(message)
    if failed is not None:
        nothing = Window(
            session=message.session, id=-1, epoch=0, start=0, floor=1, tokens=(0,), wanted=0
        )
        _hand_on(Frame(window=nothing, fault=failed), outbox, reply=part.is_tail)


def _close(part: Part, session: int) -> None:
    """End a session. A state that contradicts its bookkeeping has harmed nobody else."""
    try:
        part.check(session)
    except Exception as error:
        LOG.error("a session ended with a wrong state: %s", say(error))
    part.close(session)


def report_ready(part: Part, inbox: Inbox | None, outbox: Outbox) -> bool:
    """Say that this stage has loaded, once those before it have (`inbox` None: it is the first).

    False if one of them has not: whoever waits for the last stage is told so, and the process ends.
    """
    exact = part.exact
    for message in inbox.take() if inbox else ():
        if not isinstance(message, Ready):
            if message is not None:
                outbox.send(message)
            return False
        exact = exact and message.exact
    outbox.send(Ready(vocab_size=part.vocab_size, max_length=part.max_length, exact=exact))
    return True


def run(
    name: str, load: Callable[[], Part], inbox: Inbox, outbox: Outbox, *, first: bool
) -> str | None:
    """Load a stage, say so, and serve until the side before has gone.

    Returns, and tells the side after, what failed here; None where it is that one which has gone.
    """
    try:
        part = load()
        if report_ready(part, None if first else inbox, outbox):
            serve(part, inbox, outbox)
    except Exception as error:
        said = say(error)
        try:
            outbox.send(Failed(f"{name} failed: {said}"))
        except StageError:
            return None
        return said
    return None

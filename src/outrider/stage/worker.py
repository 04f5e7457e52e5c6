"""What the process of one stage does: take messages, run its layers, hand the results on."""

from collections.abc import Callable

from outrider.errors import OutriderError, StageError
from outrider.stage.channel import Inbox, Outbox
from outrider.stage.frame import Frame, Void, to_reply
from outrider.stage.part import Part
from outrider.stage.wire import Audit, Close, Failed, Message, Open, Ready


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
            if not part.is_tail:
                outbox.send(frame)
            elif frame.is_answered:
                outbox.send(to_reply(frame))


def _handle(part: Part, message: Message, outbox: Outbox) -> None:
    """Sessions and voids are passed on at once: they overtake the frames that wait here."""
    if isinstance(message, Frame):
        part.take(message)
        return
    if isinstance(message, Open):
        part.open(message.session, message.sampling, message.prompt_len, message.taps)
    elif isinstance(message, Close):
        part.check()
        part.close(message.session)
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

    Returns, and tells the side behind, what failed here; None where it is that one which has gone.
    """
    try:
        part = load()
        if report_ready(part, None if first else inbox, outbox):
            serve(part, inbox, outbox)
    except Exception as error:
        named = isinstance(error, OutriderError)
        said = str(error) if named else f"{type(error).__name__}: {error}"
        try:
            outbox.send(Failed(f"{name} failed: {said}"))
        except StageError:
            return None
        return said
    return None

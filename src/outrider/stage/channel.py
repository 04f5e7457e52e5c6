"""One way between two processes: messages over a socket, conditioned where they arrive.

A thread reads ahead, so that a sender never waits for a pass to end and a void overtakes the
windows it is about. Between processes of one machine a message's time of sending means the same on
both sides; from another machine it counts as sent when it arrives.
"""

import contextlib
import socket
import threading
from collections.abc import Callable

from outrider.errors import StageError, StageLost
from outrider.stage.link import Clock, Link, LinkSettings
from outrider.stage.wire import PREFIX, Failed, Message, decode, encode, say, sizes

Ended = None
"""Item of an inbox when the other side has gone."""

Look = Callable[[float], None]
"""Called while a sender waits for room, with the seconds that it has waited; raises if that became
pointless."""


class Outbox:
    """The sending side."""

    def __init__(self, end: socket.socket) -> None:
        self._end = end
        self._clock = Clock()
        self._whole = True
        self._look: Look = lambda waited: None

    def watch(self, seconds: float, look: Look) -> None:
        """Call `look` after each `seconds` in which the other side took nothing."""
        self._end.settimeout(seconds)
        self._look = look

    def send(self, message: Message) -> None:
        """Hand a message over; StageLost if nobody is there to take it.

        Raises StageError, having sent nothing, for a message that is too large. After a message
        that was cut short (an interrupt) all others raise StageLost, since they would be misread.
        """
        if not self._whole:
            raise StageLost("the message before this one was cut short")
        began = self._clock.now()
        left = memoryview(b"".join(encode(message, began)))
        self._whole = False
        while left:
            try:
                left = left[self._end.send(left) :]
            except TimeoutError:
                self._look(self._clock.now() - began)
            except OSError as error:
                raise StageLost(f"the next stage has gone ({error})") from None
        self._whole = True

    def close(self) -> None:
        """Close the socket; a sender that waits for room is woken."""
        _close(self._end)


class Inbox:
    """The receiving side; what it was sent arrives through a `Link`. `near`: from this machine."""

    def __init__(
        self, end: socket.socket, settings: LinkSettings, seed: int, *, near: bool = True
    ) -> None:
        self._end = end
        self._near = near
        self._clock = Clock()
        self._link: Link[Message | None] = Link(settings, seed)
        self._changed = threading.Condition()
        self._over = False
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait up to `timeout` seconds (None: for ever); returns whether a message is there.

        An interrupt loses nothing here.
        """
        now = self._clock.now()
        end = float("inf") if timeout is None else now + timeout
        with self._changed:
            while not self._over and self._link.next_due > now and now < end:
                until = min(self._link.next_due, end)
                self._changed.wait(None if until == float("inf") else until - now)
                now = self._clock.now()
            return self._over or self._link.next_due <= now

    def take(self, timeout: float | None = None) -> list[Message | None]:
        """Messages that have arrived, after a `wait`. The last one ever is `Ended`, said again."""
        self.wait(timeout)
        with self._changed:
            arrived = self._link.due(self._clock.now())
            if self._over and not arrived:
                return [Ended]
            self._over = bool(arrived) and arrived[-1] is Ended
            return arrived

    @property
    def arrived(self) -> bool:
        """True if `take` would return something at once."""
        return self.wait(0.0)

    def close(self) -> None:
        """End the reader and the socket."""
        _close(self._end)
        self._reader.join()

    def _read(self) -> None:
        """Hand on what comes; whatever stops this, whoever waits hears of it."""
        try:
            while found := self._message():
                self._hand_on(*found)
        except OSError:
            pass  # The other side has gone.
        except Exception as error:
            self._hand_on(Failed(say(error)), 0, self._clock.now())
        self._hand_on(Ended, 0, self._clock.now())

    def _hand_on(self, message: Message | None, nbytes: int, sent: float) -> None:
        with self._changed:
            self._link.send(message, nbytes, sent)
            self._changed.notify()

    def _message(self) -> tuple[Message, int, float] | None:
        """A message with its bytes and when it left; None if the other side has gone."""
        prefix = self._exactly(PREFIX.size)
        if len(prefix) < PREFIX.size:
            return None
        header, payload, sent = sizes(prefix)
        text, raw = self._exactly(header), self._exactly(payload)
        if len(text) + len(raw) < header + payload:
            return None
        now = self._clock.now()
        if self._near and sent > now:
            raise StageError(f"a message left {sent - now:g} s after it came: it is damaged.")
        return decode(text, raw), header + payload, sent if self._near else now

    def _exactly(self, count: int) -> bytes:
        """`count` bytes; fewer if the other side has gone."""
        found = bytearray(count)
        view, done = memoryview(found), 0
        while done < count:
            got = self._end.recv_into(view[done:])
            if not got:
                break
            done += got
        return bytes(found[:done])


def _close(end: socket.socket) -> None:
    with contextlib.suppress(OSError):  # the other side may have been first
        end.shutdown(socket.SHUT_RDWR)
    end.close()

"""One way between two processes: messages over a socket, conditioned where they arrive.

A thread reads ahead, so that a sender never waits for a pass to end and a void overtakes the
windows it is about. Between processes of one machine a message's time of sending means the same on
both sides; from another machine it counts as sent when it arrives.
"""

import contextlib
import socket
import threading

from outrider.errors import StageError, StageLost
from outrider.stage.link import Link, LinkSettings, RealClock
from outrider.stage.wire import PREFIX, Failed, Message, decode, encode, sizes

Ended = None
"""What an inbox gives when the other side has gone."""


class Outbox:
    """The sending side."""

    def __init__(self, end: socket.socket) -> None:
        self._end = end
        self._clock = RealClock()

    def send(self, message: Message) -> None:
        """Hand a message over; StageLost if nobody is there to take it."""
        try:
            self._end.sendall(b"".join(encode(message, self._clock.now())))
        except OSError as error:
            raise StageLost(f"the next stage has gone ({error})") from None

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
        self._clock = RealClock()
        self._link: Link[Message | None] = Link(settings, seed)
        self._changed = threading.Condition()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def take(self, timeout: float | None = None) -> list[Message | None]:
        """Messages that have arrived; waits up to `timeout` seconds (None: for ever) for one."""
        now = self._clock.now()
        end = float("inf") if timeout is None else now + timeout
        with self._changed:
            while self._link.next_due > now and now < end:
                until = min(self._link.next_due, end)
                self._changed.wait(None if until == float("inf") else until - now)
                now = self._clock.now()
            return self._link.due(now)

    @property
    def arrived(self) -> bool:
        """Whether `take` would return something at once."""
        with self._changed:
            return self._link.next_due <= self._clock.now()

    def close(self) -> None:
        """End the reader and the socket."""
        _close(self._end)
        self._reader.join()

    def _read(self) -> None:
        message: Message | None = Failed("")
        while message is not None:
            try:
                message, nbytes, sent = self._message()
            except StageError as error:
                message, nbytes, sent = Failed(str(error)), 0, self._clock.now()
            except OSError:
                message, nbytes, sent = Ended, 0, self._clock.now()
            with self._changed:
                self._link.send(message, nbytes, sent)
                self._changed.notify()

    def _message(self) -> tuple[Message | None, int, float]:
        prefix = self._exactly(PREFIX.size)
        if len(prefix) < PREFIX.size:
            return Ended, 0, self._clock.now()
        header, payload, sent = sizes(prefix)
        text, raw = self._exactly(header), self._exactly(payload)
        if len(text) + len(raw) < header + payload:
            return Ended, 0, self._clock.now()
        sent = sent if self._near else self._clock.now()
        return decode(text, raw), header + payload, sent

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

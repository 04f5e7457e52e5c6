"""One way between two processes: messages over a socket, conditioned where they arrive.

A thread reads ahead, so that a sender never waits for a pass to end and a void overtakes the
windows it is about. The clock is the machine's, so a message's time of sending means the same on
both sides.
"""

import contextlib
import socket
import threading

from outrider.errors import StageError
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
        """Hand a message over; StageError if nobody is there to take it."""
        try:
            self._end.sendall(b"".join(encode(message, self._clock.now())))
        except OSError as error:
            raise StageError(f"the next stage has gone ({error}).") from None

    def close(self) -> None:
        self._end.close()


class Inbox:
    """The receiving side; what it was sent arrives through a `Link`."""

    def __init__(self, end: socket.socket, settings: LinkSettings, seed: int) -> None:
        self._end = end
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
        with contextlib.suppress(OSError):  # the other side may have been first
            self._end.shutdown(socket.SHUT_RDWR)
        self._reader.join()
        self._end.close()

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

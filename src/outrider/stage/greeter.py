"""Callers at a listening socket, greeted side by side, so that none keeps another one waiting."""

import contextlib
import selectors
import socket
import threading
from collections.abc import Callable
from types import TracebackType

Greet = Callable[[socket.socket], socket.socket | None]
"""Finds out who calls; returns the connection to use, or None for a stranger. Closes what it does
not return; raises what `Greeter.wait` is to raise."""
MOST_CALLERS = 32
"""Callers at once; one more, and the one that came first is hung up on."""


class Greeter:
    """Greets whoever calls at `listener`, each in a thread of its own, until it is left."""

    def __init__(self, listener: socket.socket, greet: Greet) -> None:
        self._listener = listener
        self._greet = greet
        self._callers: dict[threading.Thread, socket.socket] = {}  # Oldest first.
        self._found: list[socket.socket | Exception] = []
        self._lock = threading.Lock()
        self._closed = False
        self._bell, self._push = socket.socketpair()

    def __enter__(self) -> "Greeter":
        return self

    def wait(self, seconds: float) -> socket.socket | None:
        """The first caller that was no stranger; None if there was none for `seconds`.

        Raises what greeting one did, and OSError once the listener is closed.
        """
        with selectors.DefaultSelector() as selector:
            if self._listener.fileno() < 0:
                raise OSError("the port was closed")
            self._listener.setblocking(False)
            selector.register(self._listener, selectors.EVENT_READ)
            selector.register(self._bell, selectors.EVENT_READ)
            ready = [key.fileobj for key, _ in selector.select(seconds)]
        if self._listener in ready:
            self._admit()
        with self._lock:
            found = self._found.pop(0) if self._found else None
        if isinstance(found, Exception):
            raise found
        return found

    def _admit(self) -> None:
        try:
            caller = self._listener.accept()[0]
        except OSError:
            return  # It has gone again, or the listener has: `wait` finds out.
        thread = threading.Thread(target=self._serve, args=(caller,), daemon=True)
        with self._lock:
            if len(self._callers) >= MOST_CALLERS:
                _hang_up(next(iter(self._callers.values())))
            self._callers[thread] = caller.dup()
        thread.start()

    def _serve(self, caller: socket.socket) -> None:
        found: socket.socket | Exception | None
        try:
            found = self._greet(caller)
        except Exception as error:
            found = error
        with self._lock:
            self._callers.pop(threading.current_thread()).close()
            if self._closed and isinstance(found, socket.socket):
                found.close()
            elif not self._closed and found is not None:
                self._found.append(found)
                self._push.send(b"!")

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Hang up on all callers but the one that was found."""
        with self._lock:
            self._closed = True
            threads = list(self._callers)
            for caller in self._callers.values():
                _hang_up(caller)
            for found in self._found:
                if isinstance(found, socket.socket):
                    found.close()
            self._bell.close()
            self._push.close()
        for thread in threads:
            thread.join()


def _hang_up(caller: socket.socket) -> None:
    """End a connection, whoever reads from it."""
    with contextlib.suppress(OSError):  # The caller may have been first.
        caller.shutdown(socket.SHUT_RDWR)

"""Sockets between machines: who is at the other end, before anything else is said.

Both sides draw a nonce, then the caller proves that it has the key, then the other side: with an
HMAC over both nonces and what it says of itself, so that no key travels and no proof can be used
twice. Each of these four messages is eight bytes that never change, the length of what follows as a
little-endian u32, and JSON. Whoever has another key is a stranger; another version or target is
refused by both. With TLS both sides show a certificate of the same authority.
"""

import contextlib
import hmac
import json
import secrets
import selectors
import socket
import ssl
import struct
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from outrider.errors import StageError, StageLost

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


MAGIC = b"outrider"
HELLO = struct.Struct("<8sI")
MOST_HELLO = 4096
LOOK_S = 0.2
"""How often whoever waits for a caller looks at what else may have happened."""
PATIENCE_S = 5.0
"""How long a caller may take in all to say who it is."""
CALLER, CALLED = "caller", "called"
SAID = ("name", "version", "target")
"""Greeting in which each side names itself."""

Address = tuple[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Hello:
    """Who speaks: its name, Outrider's version, the fingerprint of its target, and the secret
    `key` that the coordinator gave to all stages of this chain, which is not said."""

    name: str
    version: str
    target: str
    key: str

    def check(self, other: "Hello") -> None:
        """Raise StageError unless the two can work together."""
        for what, fix in _MUST_AGREE.items():
            mine, theirs = getattr(self, what), getattr(other, what)
            if mine != theirs:
                raise StageError(
                    f"{self.name} has {what} {mine} and {other.name} has {what} {theirs}: {fix}."
                )


_MUST_AGREE = {
    "version": "install the same version of Outrider on all machines",
    "target": "put the same files of the target on all machines",
}


@dataclass(frozen=True, slots=True)
class Tls:
    """Credentials that each side of a connection shows and asks for: a certificate of one
    authority. Names are not looked at, since addresses are a cluster's own business."""

    caller: ssl.SSLContext
    called: ssl.SSLContext

    @classmethod
    def load(cls, folder: str) -> "Tls":
        """Read ca.pem, cert.pem and key.pem; StageError where one is missing or no such thing."""
        try:
            kinds = (ssl.PROTOCOL_TLS_CLIENT, ssl.PROTOCOL_TLS_SERVER)
            return cls(*(_context(kind, Path(folder)) for kind in kinds))
        except OSError as error:
            raise StageError(
                f"stages.tls = {folder!r} has no ca.pem, cert.pem and key.pem that belong together "
                f"({error}): put them there on every machine."
            ) from None


def _context(protocol: int, folder: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(protocol)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_REQUIRED
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.load_verify_locations(folder / "ca.pem")
    context.load_cert_chain(folder / "cert.pem", folder / "key.pem")
    return context


def listen(host: str) -> socket.socket:
    """A free port of `host`, open to callers."""
    return socket.create_server((host, 0), backlog=64)


def call(address: Address, mine: Hello, seconds: float, tls: Tls | None) -> socket.socket:
    """Connect to who listens at `address`; StageLost where no stage answers within `seconds`.

    A stage answers once it has loaded.
    """
    seconds = max(seconds, LOOK_S)
    end = time.monotonic() + seconds
    with ExitStack() as opened:
        try:
            line = opened.enter_context(socket.create_connection(address, seconds))
            if tls is not None:
                line.settimeout(_left(end))
                line = opened.enter_context(tls.caller.wrap_socket(line))
            _accept(line, mine, _introduce(_Talk(line, end), mine, CALLER))
        except (OSError, _StrangerError) as error:
            host, port = address
            raise StageLost(f"{mine.name} reaches nobody at {host}:{port} ({error})") from None
        opened.pop_all()
    return line


def answer(
    listener: socket.socket,
    mine: Hello,
    seconds: float,
    tls: Tls | None,
    look: Callable[[], None] = lambda: None,
) -> socket.socket:
    """Wait for the caller that has the key; strangers are hung up on.

    `look` is called now and then, and raises if waiting became pointless. Raises StageError for a
    caller of another version or target, StageLost where none comes within `seconds`.
    """
    end = time.monotonic() + seconds
    with Greeter(listener, lambda caller: _greet(caller, mine, tls)) as greeter:
        while (left := end - time.monotonic()) > 0.0:
            look()
            try:
                found = greeter.wait(min(LOOK_S, left))
            except OSError as error:
                raise StageLost(f"{mine.name} waits no longer ({error})") from None
            if found is not None:
                return found
    raise StageLost(f"{mine.name} was called by nobody for {seconds:g} s")


def _greet(caller: socket.socket, mine: Hello, tls: Tls | None) -> socket.socket | None:
    end = time.monotonic() + PATIENCE_S
    with ExitStack() as opened:
        line = opened.enter_context(caller)
        try:
            if tls is not None:
                line.settimeout(_left(end))
                line = opened.enter_context(tls.called.wrap_socket(line, server_side=True))
            _accept(line, mine, _introduce(_Talk(line, end), mine, CALLED))
        except (OSError, ValueError, _StrangerError):
            return None
        opened.pop_all()
    return line


class _StrangerError(Exception):
    """The caller does not belong to this chain."""


def _left(end: float) -> float:
    left = end - time.monotonic()
    if left <= 0.0:
        raise TimeoutError("it took too long to say who it is")
    return left


class _Talk:
    """Short messages over a connection, all of them until `end`, however they trickle in."""

    def __init__(self, line: socket.socket, end: float) -> None:
        self._line = line
        self._end = end

    def say(self, **fields: str) -> None:
        text = json.dumps(fields).encode()
        self._line.settimeout(_left(self._end))
        self._line.sendall(HELLO.pack(MAGIC, len(text)) + text)

    def hear(self, *names: str) -> dict[str, str]:
        """A message of exactly these fields, all of them text; whoever says else is a stranger."""
        magic, size = HELLO.unpack(self._exactly(HELLO.size))
        if magic != MAGIC or size > MOST_HELLO:
            raise _StrangerError("it is no stage")
        try:
            fields = json.loads(self._exactly(size))
            if isinstance(fields, dict) and sorted(fields) == sorted(names):
                return {name: _text(value) for name, value in fields.items()}
        except (ValueError, RecursionError):
            pass
        raise _StrangerError("it is no stage of this version")

    def _exactly(self, count: int) -> bytes:
        found = b""
        while len(found) < count:
            self._line.settimeout(_left(self._end))
            more = self._line.recv(count - len(found))
            if not more:
                raise OSError("the other side hung up")
            found += more
        return found


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError("no text")
    value.encode()  # Half a surrogate pair is a ValueError.
    return value


def _introduce(talk: _Talk, mine: Hello, role: str) -> Hello:
    """Tell the other side who speaks, and hear who it is, which has the key."""
    nonce = secrets.token_hex(16)
    if role == CALLER:
        talk.say(nonce=nonce)
        nonces = [nonce, talk.hear("nonce")["nonce"]]
        _prove(talk, mine, CALLER, nonces)
        return _verify(talk, mine, CALLED, nonces)
    nonces = [talk.hear("nonce")["nonce"], nonce]
    talk.say(nonce=nonce)
    theirs = _verify(talk, mine, CALLER, nonces)
    _prove(talk, mine, CALLED, nonces)
    return theirs


def _prove(talk: _Talk, mine: Hello, role: str, nonces: Sequence[str]) -> None:
    said = {name: str(getattr(mine, name)) for name in SAID}
    talk.say(**said, proof=_proof(mine.key, role, nonces, list(said.values())))


def _verify(talk: _Talk, mine: Hello, role: str, nonces: Sequence[str]) -> Hello:
    heard = talk.hear(*SAID, "proof")
    said = [heard[name] for name in SAID]
    right = _proof(mine.key, role, nonces, said)
    if not hmac.compare_digest(right.encode(), heard["proof"].encode()):
        raise _StrangerError("it has another key")
    return Hello(name=said[0], version=said[1], target=said[2], key=mine.key)


def _proof(key: str, role: str, nonces: Sequence[str], said: Sequence[str]) -> str:
    """Proof that only a holder of the key can make, for this side of this connection."""
    text = json.dumps([role, *nonces, *said])
    return hmac.new(key.encode(errors="surrogatepass"), text.encode(), "sha256").hexdigest()


def _accept(end: socket.socket, mine: Hello, theirs: Hello) -> None:
    """Make a connection ready for messages; StageError if the other side does not fit."""
    mine.check(theirs)
    end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    end.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    end.settimeout(None)

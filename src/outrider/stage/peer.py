"""Sockets between machines: who is at the other end, before anything else is said.

The caller says hello, and so does the other side once it has seen that the caller has the key:
eight bytes that never change, the length of what follows as a little-endian u32, and JSON. Whoever
has another key is a stranger, another version or target is refused by both. With TLS both sides
show a certificate of the same authority.
"""

import hmac
import json
import socket
import ssl
import struct
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path

from outrider.errors import StageError, StageLost

MAGIC = b"outrider"
HELLO = struct.Struct("<8sI")
MOST_HELLO = 4096
LOOK_S = 0.2
"""How often whoever waits for a caller looks at what else may have happened."""
PATIENCE_S = 5.0
"""How long a caller may take to say who it is."""

Address = tuple[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Hello:
    """Who speaks: its name, Outrider's version, the fingerprint of its target, and the secret
    `key` that the coordinator gave to all stages of this chain."""

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
    """What each side of a connection shows and asks for: a certificate of one authority. Names are
    not looked at, since addresses are a cluster's own business."""

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
    return socket.create_server((host, 0), backlog=8)


def call(address: Address, mine: Hello, seconds: float, tls: Tls | None) -> socket.socket:
    """Connect to who listens at `address`; StageLost where nobody answers within `seconds`.

    A stage answers once it has loaded.
    """
    with ExitStack() as opened:
        try:
            end = opened.enter_context(socket.create_connection(address, max(seconds, LOOK_S)))
            if tls is not None:
                end = opened.enter_context(tls.caller.wrap_socket(end))
            _say(end, mine)
            _accept(end, mine, _hear(end, mine))
        except (OSError, _StrangerError) as error:
            host, port = address
            raise StageLost(f"{mine.name} reaches nobody at {host}:{port} ({error})") from None
        opened.pop_all()
    return end


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
    listener.settimeout(LOOK_S)
    while time.monotonic() < end:
        look()
        try:
            caller = listener.accept()[0]
        except TimeoutError:
            continue
        except OSError as error:
            raise StageLost(f"{mine.name} waits no longer ({error})") from None
        if found := _greet(caller, mine, tls):
            return found
    raise StageLost(f"{mine.name} was called by nobody for {seconds:g} s")


def _greet(caller: socket.socket, mine: Hello, tls: Tls | None) -> socket.socket | None:
    caller.settimeout(PATIENCE_S)
    with ExitStack() as opened:
        end = opened.enter_context(caller)
        try:
            if tls is not None:
                end = opened.enter_context(tls.called.wrap_socket(end, server_side=True))
            theirs = _hear(end, mine)
            _say(end, mine)
            _accept(end, mine, theirs)
        except (OSError, _StrangerError):
            return None
        opened.pop_all()
    return end


class _StrangerError(Exception):
    """Whoever called does not belong to this chain."""


def _say(end: socket.socket, mine: Hello) -> None:
    text = json.dumps(asdict(mine)).encode()
    end.sendall(HELLO.pack(MAGIC, len(text)) + text)


def _hear(end: socket.socket, mine: Hello) -> Hello:
    """What the other side says of itself, which has the key."""
    magic, size = HELLO.unpack(_exactly(end, HELLO.size))
    if magic != MAGIC or size > MOST_HELLO:
        raise _StrangerError("it is no stage")
    try:
        theirs = Hello(**json.loads(_exactly(end, size)))
    except (ValueError, TypeError):
        raise _StrangerError("it is no stage") from None
    if not hmac.compare_digest(mine.key, str(theirs.key)):
        raise _StrangerError("it has another key")
    return theirs


def _accept(end: socket.socket, mine: Hello, theirs: Hello) -> None:
    """Make a connection ready for messages; StageError if the other side does not fit."""
    mine.check(theirs)
    end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    end.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    end.settimeout(None)


def _exactly(end: socket.socket, count: int) -> bytes:
    found = b""
    while len(found) < count:
        more = end.recv(count - len(found))
        if not more:
            raise OSError("the other side hung up")
        found += more
    return found

"""Who may ask, from which pages and under which names, and how much they may send.

A page of any site can make a browser send requests to this machine, and by a name of its own that
it points here (DNS rebinding) read the answers too. The browser tells both: the page in `Origin`,
the name in `Host`.
"""

import asyncio
import hashlib
import hmac
import re
from collections.abc import Sequence
from dataclasses import dataclass

from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect, Request
from starlette.types import ASGIApp, Receive, Scope, Send

from outrider.config.settings import ServerConfig, is_loopback
from outrider.server.problems import Problem


def owner(request: Request, keys: Sequence[str]) -> str:
    """Whose key a request carries, as a digest; "" where no key is asked for.

    Every key is compared, and in constant time. Raises Problem 401.
    """
    if not keys:
        return ""
    kind, _, given = request.headers.get("authorization", "").partition(" ")
    digest = hashlib.sha256(given.strip().encode()).digest()
    matches = [hmac.compare_digest(digest, hashlib.sha256(key.encode()).digest()) for key in keys]
    if not any(matches) or kind.lower() != "bearer":
        raise Problem(
            401,
            "no valid API key: send one in the header 'Authorization: Bearer KEY'.",
            "invalid_api_key",
            headers={"WWW-Authenticate": "Bearer"},
        )
    return digest.hex()


def check_json(request: Request) -> None:
    """Raise Problem 415 unless the body is declared as JSON.

    A web page elsewhere may send other types without asking first.
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if not re.fullmatch(r"application/([\w.+-]+\+)?json", kind):
        raise Problem(
            415,
            f"the body has the Content-Type {kind!r}: send JSON as 'application/json'.",
            "unsupported_media_type",
        )
    coding = request.headers.get("content-encoding", "identity").strip().lower()
    if coding != "identity":
        raise Problem(
            415,
            f"the body has the Content-Encoding {coding!r}: send it as it is.",
            "unsupported_media_type",
        )


async def read(request: Request, most_bytes: int, seconds: float) -> bytes:
    """The body; raises Problem 413 where it is too large, 408 where it comes too slowly."""
    declared = request.headers.get("content-length", "")
    if declared.isdigit() and int(declared) > most_bytes:
        raise _too_large(most_bytes)
    body = bytearray()
    try:
        async with asyncio.timeout(seconds):
            async for part in request.stream():
                body += part
                if len(body) > most_bytes:
                    raise _too_large(most_bytes)
    except TimeoutError:
        raise Problem(
            408,
            f"the body did not arrive within {seconds:g} s.",
            "body_timeout",
            headers={"Connection": "close"},
        ) from None
    except ClientDisconnect:
        raise Problem(400, "the client left before the body was complete.") from None
    return bytes(body)


def _too_large(most_bytes: int) -> Problem:
    return Problem(
        413,
        f"the body is larger than {most_bytes >> 20} MiB (server.max_body_mib): send less.",
        "body_too_large",
        headers={"Connection": "close"},
    )


ANY = "*"


@dataclass(frozen=True, slots=True)
class Gate:
    """An ASGI application before another one: refuses requests by their names alone."""

    app: ASGIApp
    config: ServerConfig

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        refusal = self._refusal(Headers(scope=scope)) if scope["type"] == "http" else None
        await (refusal.response() if refusal else self.app)(scope, receive, send)

    def _refusal(self, headers: Headers) -> Problem | None:
        host, origin, config = headers.get("host"), headers.get("origin"), self.config
        if host is not None and not names_server(host, config):
            return Problem(
                403,
                f"the host {host!r} is not a name of this server: ask it as localhost, or put the "
                "name into server.allowed_hosts.",
                "host_not_allowed",
            )
        if origin is not None and not may_ask(origin, host, config.origins()):
            return Problem(
                403,
                f"pages of {origin!r} may not ask this server: put the origin into "
                "server.allowed_origins.",
                "origin_not_allowed",
            )
        return None


def names_server(host: str, config: ServerConfig) -> bool:
    """True if a `Host` header names this server.

    Asked where names are allowed by the settings, and on loopback without an API key, where being
    able to ask is all that is needed. Loopback's own names always do: nobody can point them here.
    """
    allowed = config.hosts()
    open_here = is_loopback(config.host) and not config.keys()
    if ANY in allowed or not (allowed or open_here):
        return True
    found = re.fullmatch(r"(\[[^\]]*\]|[^:]*)(:\d*)?", host)
    name = found[1].lower().strip("[]").removesuffix(".") if found else ""
    return is_loopback(name) or name in (*allowed, config.host.lower())


def may_ask(origin: str, host: str | None, allowed: Sequence[str]) -> bool:
    """True if a page may: one of this server's own (scheme://Host), or an allowed one."""
    asks = origin.lower()
    own = {f"{scheme}://{host.lower()}" for scheme in ("http", "https")} if host else set()
    return ANY in allowed or asks in allowed or asks in own

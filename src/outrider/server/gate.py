"""Which names the server answers to, and which web pages may ask it.

A page of any site can make a browser send requests to this machine, and by a name of its own that
it points here (DNS rebinding) read the answers too. The browser tells both: the page in `Origin`,
the name in `Host`.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from outrider.config.settings import ServerConfig, is_loopback
from outrider.server.problems import Problem

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

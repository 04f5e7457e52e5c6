"""Listening: a socket, signals, the times of a connection, and an end that finishes what it can."""

import asyncio
import json
import logging
import socket
from types import FrameType
from typing import Any

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import STATUS_PHRASES, H11Protocol

from outrider.config.settings import RunConfig, ServerConfig
from outrider.engine.scheduler import Scheduler
from outrider.errors import ConfigError
from outrider.server.app import Service, application
from outrider.server.problems import Problem


class ConnectionConfig(uvicorn.Config):
    """uvicorn's settings with those that its connections lack; made once for a server."""

    def __init__(self, app: Any, limits: ServerConfig, **settings: Any) -> None:
        super().__init__(app, http=Connection, ws="none", **settings)
        self.limits = limits


class Connection(H11Protocol):
    """uvicorn's connection, closed where the headers of a request do not come in time.

    The time counts from the connection's begin, and later from the first byte after an answer, so
    that neither silence nor single bytes hold a connection open. A client that takes nothing of
    its answer for long is hung up on: what waits for it is memory.
    """

    config: ConnectionConfig
    _timer: asyncio.TimerHandle | None = None
    _stalled: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to wait for a request; refuse where too many are connected."""
        super().connection_made(transport)
        most = self.config.limits.max_connections
        if len(self.connections) <= most:
            self._wait()
            return
        self._end(
            Problem(
                503,
                f"{most} connections are open (server.max_connections): try again later.",
                "too_many_connections",
                headers={"Retry-After": "1"},
            )
        )

    def data_received(self, data: bytes) -> None:
        """Take bytes in; the clock runs while they do not belong to a request at work."""
        super().data_received(data)
        if self.cycle is not None and not self.cycle.response_complete:
            self._stop()
        elif self._timer is None:
            self._wait()

    def pause_writing(self) -> None:
        """The client takes its answer more slowly than it comes."""
        super().pause_writing()
        self._hang_up_later()

    def resume_writing(self) -> None:
        """The client has taken some."""
        if self._stalled is not None:
            self._stalled.cancel()
            self._stalled = None
        super().resume_writing()

    def timeout_keep_alive_handler(self) -> None:
        """Close a connection on which nothing came for long, though not all was taken."""
        super().timeout_keep_alive_handler()
        self._hang_up_later()

    def _hang_up_later(self) -> None:
        if self._stalled is None:
            seconds = self.config.limits.send_seconds
            self._stalled = self.loop.call_later(seconds, self.transport.abort)

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the client."""
        self._stop()
        if self._stalled is not None:
            self._stalled.cancel()
        super().connection_lost(exc)

    def send_400_response(self, msg: str) -> None:
        """Answer what is no HTTP."""
        self._end(Problem(400, f"{msg.rstrip('.')}: send HTTP/1.1.", "invalid_request"))

    def _wait(self) -> None:
        self._timer = self.loop.call_later(self.config.limits.header_seconds, self._late)

    def _stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _late(self) -> None:
        """Close; a client that began a request is told why, one that said nothing is not."""
        self._timer = None
        if self.transport.is_closing():
            return
        if not self.conn.trailing_data[0]:
            self.transport.close()
            return
        seconds = self.config.limits.header_seconds
        told = f"the headers did not arrive within {seconds:g} s (server.header_seconds)."
        self._end(Problem(408, told, "header_timeout"))

    def _end(self, problem: Problem) -> None:
        """Answer where no answer has begun, and close."""
        self._stop()
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            body = json.dumps(problem.body()).encode()
            headers = {
                **problem.headers,
                "content-type": "application/json",
                "content-length": str(len(body)),
                "connection": "close",
            }
            answer = h11.Response(
                status_code=problem.status,
                headers=list(headers.items()),
                reason=STATUS_PHRASES[problem.status],
            )
            for event in (answer, h11.Data(data=body), h11.EndOfMessage()):
                self.transport.write(self.conn.send(event) or b"")
        self.transport.close()


GRACE = 5.0
"""Seconds to hand out what ended when the time for finishing was over."""


class Listener(uvicorn.Server):
    """uvicorn, told by a signal to take no more requests, finish those at hand and end."""

    def __init__(self, config: uvicorn.Config, service: Service) -> None:
        super().__init__(config)
        self._service = service

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """End in good order; at once on the second signal."""
        del sig, frame
        self.force_exit = self.should_exit
        self.should_exit = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Let requests finish for a while, then end them with an error that says why."""
        self._service.scheduler.drain()
        seconds = 0.0 if self.force_exit else self._service.config.shutdown_seconds
        timer = asyncio.ensure_future(self._end_after(seconds))
        await super().shutdown(sockets)
        timer.cancel()

    async def _end_after(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
        await asyncio.to_thread(self._service.scheduler.close)


def bind(host: str, port: int) -> socket.socket:
    """A listening socket; raises ConfigError where the address cannot be used."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=2048)
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise ConfigError(
            f"server.host = {host!r} with server.port = {port} cannot be listened on "
            f"({reason.lower()}): choose another port, 0 for a free one, or an address of this "
            "machine."
        ) from None


def settings(service: Service) -> ConnectionConfig:
    """uvicorn's settings for a service."""
    return ConnectionConfig(
        application(service),
        service.config,
        log_config=None,
        log_level=logging.WARNING,
        access_log=False,
        lifespan="off",
        server_header=False,
        timeout_keep_alive=30,
        timeout_graceful_shutdown=int(service.config.shutdown_seconds + GRACE) + 1,
    )


def serve(scheduler: Scheduler, config: RunConfig, sock: socket.socket) -> None:
    """Serve until a signal comes; closes the scheduler."""
    model = config.server.model_name or config.target.path
    service = Service(scheduler=scheduler, config=config.server, model=model)
    try:
        Listener(settings(service), service).run(sockets=[sock])
    finally:
        scheduler.close()
        sock.close()

"""Listening: a socket, signals, and an end that finishes what it can."""

import asyncio
import logging
import socket
from types import FrameType

import uvicorn

from outrider.config.settings import RunConfig
from outrider.engine.scheduler import Scheduler
from outrider.errors import ConfigError
from outrider.server.app import Service, application
from outrider.server.connection import ConnectionConfig

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

"""The application: paths, and what happens on each of them."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from importlib.resources import files
from typing import Any

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route

from outrider.config.settings import ServerConfig
from outrider.engine.scheduler import Scheduler, SchedulerFigures
from outrider.errors import OutriderError
from outrider.server import access
from outrider.server.access import Gate
from outrider.server.exchange import Exchange, Message, Receive, Send
from outrider.server.metrics import Metrics
from outrider.server.openapi import description
from outrider.server.places import Names
from outrider.server.problems import Problem, problem_of, unknown_model
from outrider.server.sequences import Maker, Plan
from outrider.server.writing import give_back

LOG = logging.getLogger(__name__)
METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"
STARTED = int(time.time())
PAGE_POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; "
    "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'"
)
PATIENCE = 30.0
"""Seconds that figures may keep a reader waiting: a pass over long prompts is in between."""
LONG_BODY = 1 << 18
"""Bytes from which a body is planned in a lane of its own."""
RETRY = {"Retry-After": "1"}

Planner = Callable[[Maker, bytes], Plan]


@dataclass(slots=True, kw_only=True)
class Service:
    """State shared by all paths."""

    scheduler: Scheduler
    config: ServerConfig
    model: str
    metrics: Metrics = field(default_factory=Metrics)
    lane: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(1))
    names: Names = field(init=False)

    def __post_init__(self) -> None:
        self.names = Names(self.scheduler.tokenizer)

    async def complete(self, request: Request, planner: Planner) -> Response | Exchange:
        """Check, plan and run a request; the engine is asked only once all of it is well."""
        config = self.config
        owner = access.owner(request, config.keys())
        access.check_json(request)
        data = await access.read(request, config.max_body_mib << 20, config.body_seconds)
        maker = Maker(scheduler=self.scheduler, model=self.model, owner=owner)
        plan = await self._plan(planner, maker, data)
        if config.log_prompts:
            LOG.info("%s %s", plan.id, data.decode(errors="replace"))
        seconds = config.request_seconds
        return Exchange(plan, self.scheduler, self.metrics, self.names, seconds)

    async def chat(self, request: Request) -> Response | Exchange:
        return await self.complete(request, Maker.chat)

    async def completion(self, request: Request) -> Response | Exchange:
        return await self.complete(request, Maker.completion)

    async def models(self, request: Request) -> Response:
        access.owner(request, self.config.keys())
        return JSONResponse({"object": "list", "data": [self._model()]})

    async def one_model(self, request: Request) -> Response:
        access.owner(request, self.config.keys())
        name = request.path_params["model"]
        if name != self.model:
            raise unknown_model(name, self.model)
        return JSONResponse(self._model())

    async def health(self, request: Request) -> Response:
        del request
        snapshot = await self._snapshot()
        told = {"status": "ok", "running": snapshot.running, "waiting": snapshot.waiting}
        return JSONResponse(told)

    async def figures(self, request: Request) -> Response:
        del request
        snapshot = await self._snapshot()
        return Response(self.metrics.page(snapshot), media_type=METRICS_TYPE)

    async def openapi(self, request: Request) -> Response:
        del request
        return JSONResponse(description(bool(self.config.keys())))

    async def page(self, request: Request) -> Response:
        del request
        html = files("outrider.server").joinpath("page.html").read_text(encoding="utf-8")
        headers = {"Content-Security-Policy": PAGE_POLICY, "X-Content-Type-Options": "nosniff"}
        return HTMLResponse(html, headers=headers)

    async def _plan(self, planner: Planner, maker: Maker, data: bytes) -> Plan:
        """A plan, made in a thread; those of long bodies one after the other.

        Such a one takes seconds and many times its size in memory, and must not hold back others.
        """
        if len(data) < LONG_BODY:
            return await run_in_threadpool(planner, maker, data)
        async with self.lane:
            try:
                found = await run_in_threadpool(_planned, planner, maker, data)
            finally:
                await run_in_threadpool(give_back)
        if isinstance(found, Problem):
            raise found
        return found

    async def _snapshot(self) -> SchedulerFigures:
        """Figures so far; raises Problem 503 where the engine does not say."""
        try:
            asked = asyncio.wrap_future(self.scheduler.snapshot())
            return await asyncio.wait_for(asked, PATIENCE)
        except TimeoutError:
            told = (
                f"the engine did not answer within {PATIENCE:g} s: it hangs, or is in a long pass."
            )
            raise Problem(503, told, "engine_silent", headers=RETRY) from None
        except OutriderError as error:
            known = problem_of(error)
            code = known.code if known.status >= 500 else "engine_unavailable"
            raise Problem(503, known.message, code, headers=RETRY) from None

    def _model(self) -> dict[str, Any]:
        scheduler = self.scheduler
        return {
            "id": self.model,
            "object": "model",
            "created": STARTED,
            "owned_by": "outrider",
            "max_model_len": scheduler.max_length,
            "method": scheduler.method,
            "exact": scheduler.exact,
            "chat": scheduler.tokenizer.has_chat_template,
        }


def _planned(planner: Planner, maker: Maker, data: bytes) -> Plan | Problem:
    """A plan, or why there is none: as an answer that holds nothing of the body any more."""
    try:
        return planner(maker, data)
    except Exception as error:
        if problem_of(error).status >= 500:
            raise
        # No name for it: an error that a frame of its own traceback names lives on with the body.
        return replace(problem_of(error))


def application(service: Service) -> Starlette:
    """An ASGI application that serves one scheduler; it does not close it."""
    posts = (("/v1/chat/completions", service.chat), ("/v1/completions", service.completion))
    gets = (
        ("/v1/models", service.models),
        ("/v1/models/{model:path}", service.one_model),
        ("/health", service.health),
        ("/metrics", service.figures),
        ("/openapi.json", service.openapi),
        ("/", service.page),
    )
    routes = [
        *[Route(path, Endpoint(service, path, ask), methods=["POST"]) for path, ask in posts],
        *[Route(path, Endpoint(service, path, ask), methods=["GET"]) for path, ask in gets],
    ]
    return Starlette(
        routes=routes,
        middleware=[Middleware(Gate, service.config), *_cors(service.config)],
        exception_handlers={HTTPException: _refuse, Exception: _refuse},
    )


def _cors(config: ServerConfig) -> list[Middleware]:
    """Headers that tell browsers that pages of allowed origins may read answers."""
    origins = config.origins()
    if not origins:
        return []
    # Methods and headers that nothing here knows are left to the routes, which say so.
    return [
        Middleware(CORSMiddleware, allow_origins=origins, allow_methods=["*"], allow_headers=["*"])
    ]


async def _refuse(request: Request, error: Exception) -> Response:
    del request
    return problem_of(error).response()


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One path as an ASGI application: problems become answers, and every answer is counted.

    `path` is as routed, so that what clients put into it makes no figure of its own.
    """

    service: Service
    path: str
    handler: Callable[[Request], Awaitable[Response | Exchange]]

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        statuses: list[int] = []

        async def counted(message: Message) -> None:
            if message["type"] == "http.response.start":
                statuses.append(message["status"])
            await send(message)

        try:
            answer = await self.handler(Request(scope, receive))
            await answer(scope, receive, counted)
        except Exception as error:
            await self._fail(error, bool(statuses), scope, receive, counted)
        finally:
            status = str(statuses[0]) if statuses else "client left"
            path = self.path.replace(":path", "")
            self.service.metrics.requests.labels(path, status).inc()

    async def _fail(
        self, error: Exception, begun: bool, scope: Message, receive: Receive, send: Send
    ) -> None:
        problem = problem_of(error)
        if problem.status >= 500:
            LOG.error("%s failed", self.path, exc_info=error)
        if not begun:
            await problem.response()(scope, receive, send)

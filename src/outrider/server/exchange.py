"""One HTTP request from its plan to its last byte, whatever its client does meanwhile."""

import asyncio
import time
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Awaitable,
    Callable,
    Iterable,
    MutableMapping,
    Sequence,
)
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from starlette.concurrency import run_in_threadpool

from outrider.engine.scheduler import Event, GenerationResult, Piece, Scheduler
from outrider.errors import OutriderError
from outrider.server import writing
from outrider.server.answers import Answer, Choice, Part
from outrider.server.metrics import Metrics
from outrider.server.places import Names
from outrider.server.problems import Problem, problem_of
from outrider.server.sequences import Plan

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
SSE = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-store")]
DONE = b"data: [DONE]\n\n"
AT_ONCE = 32
"""Events whose chunks are made in the event loop: more of them would hold up other requests."""


@dataclass(slots=True)
class Exchange:
    """An ASGI application for one planned request."""

    plan: Plan
    scheduler: Scheduler
    metrics: Metrics
    names: Names
    seconds: float
    _queue: asyncio.Queue[tuple[int, Event]] = field(default_factory=asyncio.Queue)

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Answer, or stop as soon as the client has left."""
        del scope
        work = asyncio.ensure_future(self._answer(send))
        gone = asyncio.ensure_future(_gone(receive))
        try:
            await asyncio.wait({work, gone}, return_when=asyncio.FIRST_COMPLETED)
            if work.done():
                work.result()
        finally:
            for task in (work, gone):
                task.cancel()
            await asyncio.gather(work, gone, return_exceptions=True)

    async def _answer(self, send: Send) -> None:
        events = self._events()
        try:
            first = await anext(events)
            if self.plan.stream:
                await self._stream(first, events, send)
            else:
                await self._whole(first, events, send)
        finally:
            await events.aclose()

    async def _events(self) -> AsyncGenerator[list[tuple[int, Event]], None]:
        """Events as they come, all that are there at once; raises the error that ended it."""
        loop, deadline = asyncio.get_running_loop(), time.monotonic() + self.seconds
        sinks = [partial(self._post, loop, index) for index in range(len(self.plan.sequences))]
        watch = self.metrics.watch(len(sinks))
        tickets = self.scheduler.submit(list(zip(self.plan.sequences, sinks, strict=True)))
        left = len(tickets)
        try:
            while left:
                found = await self._next(deadline)
                for index, event in found:
                    watch.see(index, event)
                    if isinstance(event, OutriderError):
                        raise event
                    left -= isinstance(event, GenerationResult)
                yield found
        finally:
            self.scheduler.cancel(tickets)

    def _post(self, loop: asyncio.AbstractEventLoop, index: int, event: Event) -> None:
        loop.call_soon_threadsafe(self._queue.put_nowait, (index, event))

    async def _next(self, deadline: float) -> list[tuple[int, Event]]:
        try:
            async with asyncio.timeout(max(deadline - time.monotonic(), 0.0)):
                found = [await self._queue.get()]
        except TimeoutError:
            raise Problem(
                408,
                f"the request took longer than {self.seconds:g} s (server.request_seconds).",
                "request_timeout",
            ) from None
        while not self._queue.empty():
            found.append(self._queue.get_nowait())
        return found

    async def _whole(
        self, first: Sequence[tuple[int, Event]], events: AsyncIterator[Any], send: Send
    ) -> None:
        choices, taken = Choices(self.plan, self.scheduler, self.names), list(first)
        async for found in events:
            taken += found
        parts = await run_in_threadpool(choices.whole, taken)
        size = sum(map(len, parts))
        headers = [
            (b"content-type", b"application/json"),
            (b"content-length", str(size).encode()),
        ]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await _push(send, parts)
        await send({"type": "http.response.body", "body": b""})

    async def _stream(
        self, first: Sequence[tuple[int, Event]], events: AsyncIterator[Any], send: Send
    ) -> None:
        choices = Choices(self.plan, self.scheduler, self.names)
        await send({"type": "http.response.start", "status": 200, "headers": SSE})
        try:
            await self._pass_on(choices, first, send)
            async for found in events:
                await self._pass_on(choices, found, send)
            last = choices.closing()
        except (OutriderError, Problem) as error:
            self.metrics.fail(self.plan.id, problem_of(error))
            last = b"".join(writing.event(problem_of(error).body()))
        await send({"type": "http.response.body", "body": last})

    async def _pass_on(
        self, choices: "Choices", found: Sequence[tuple[int, Event]], send: Send
    ) -> None:
        """Send the chunks of some events, many at a time or long ones from another thread."""
        for start in range(0, len(found), AT_ONCE):
            some = found[start : start + AT_ONCE]
            if len(found) > AT_ONCE or any(map(_long, some)):
                await _push(send, await run_in_threadpool(choices.chunks, some))
            else:
                await _push(send, choices.chunks(some))


@dataclass(slots=True)
class Choices:
    """The choices of one answer as bytes: in chunks, or whole."""

    plan: Plan
    scheduler: Scheduler
    names: Names
    _answer: Answer = field(init=False)
    _choices: list[Choice] = field(init=False)

    def __post_init__(self) -> None:
        self._answer = Answer(self.plan, self.names)
        self._choices = [
            Choice(plan=self.plan, index=index, scheduler=self.scheduler, names=self.names)
            for index in range(len(self.plan.sequences))
        ]

    def chunks(self, found: Iterable[tuple[int, Event]]) -> list[bytes]:
        """Server-sent events of some events, in parts."""
        return [
            part
            for index, event in found
            for taken in self._choices[index].take(event)
            for part in writing.event(self._answer.chunk(index, taken))
        ]

    def closing(self) -> bytes:
        """The lines after all chunks."""
        wanted = self._answer.plan.include_usage
        return b"".join(writing.event(self._answer.usage_chunk()) if wanted else []) + DONE

    def whole(self, found: Iterable[tuple[int, Event]]) -> list[bytes]:
        """The whole answer from all events, in parts."""
        parts: list[list[Part]] = [[] for _ in self._choices]
        for index, event in found:
            parts[index] += self._choices[index].take(event)
        return writing.parts(self._answer.whole(parts))


def _long(event: tuple[int, Event]) -> bool:
    """True if an event brings the log-probabilities of a prompt, which may be many."""
    return isinstance(event[1], Piece) and bool(event[1].prompt_logprobs)


async def _push(send: Send, parts: Sequence[bytes]) -> None:
    """Send what there is: short parts together, long ones one by one."""
    if sum(map(len, parts)) < writing.PART:
        parts = [b"".join(parts)]
    for part in filter(None, parts):
        await send({"type": "http.response.body", "body": part, "more_body": True})


async def _gone(receive: Receive) -> None:
    """Wait until the client leaves."""
    while (await receive())["type"] != "http.disconnect":
        pass

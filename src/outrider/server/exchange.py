"""One HTTP request from its plan to its last byte, whatever its client does meanwhile."""

import asyncio
import json
import time
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Awaitable,
    Callable,
    MutableMapping,
    Sequence,
)
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from outrider.engine.scheduler import Event, GenerationResult, Piece, Scheduler
from outrider.errors import OutriderError
from outrider.server.answers import Answer
from outrider.server.metrics import Metrics
from outrider.server.plan import Plan
from outrider.server.problems import Problem, problem_of

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
SSE = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-store")]
DONE = b"data: [DONE]\n\n"


@dataclass(slots=True)
class Exchange:
    """An ASGI application for one planned request."""

    plan: Plan
    scheduler: Scheduler
    metrics: Metrics
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
        answer = Answer(self.plan, self.scheduler.tokenizer)
        _collect(answer, first)
        async for found in events:
            _collect(answer, found)
        body = json.dumps(answer.whole(), ensure_ascii=False).encode()
        headers = [
            (b"content-type", b"application/json"),
            (b"content-length", str(len(body)).encode()),
        ]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    async def _stream(
        self, first: Sequence[tuple[int, Event]], events: AsyncIterator[Any], send: Send
    ) -> None:
        stream = Stream(Answer(self.plan, self.scheduler.tokenizer), self.scheduler)
        await send({"type": "http.response.start", "status": 200, "headers": SSE})
        try:
            await _push(send, stream.opening() + stream.chunks(first))
            async for found in events:
                await _push(send, stream.chunks(found))
            last = stream.closing()
        except (OutriderError, Problem) as error:
            last = _sse(problem_of(error).body())
        await send({"type": "http.response.body", "body": last})


@dataclass(slots=True)
class Stream:
    """Server-sent events of one answer."""

    answer: Answer
    scheduler: Scheduler
    spelling: dict[int, Callable[[int], str]] = field(default_factory=dict)

    def opening(self) -> bytes:
        """What precedes all pieces."""
        plan = self.answer.plan
        wanted = plan.kind == "chat" or plan.echo
        count = len(plan.sequences) if wanted else 0
        return b"".join(_sse(self.answer.opening(index)) for index in range(count))

    def chunks(self, found: Sequence[tuple[int, Event]]) -> bytes:
        """The chunks of some events."""
        return b"".join(_sse(chunk) for index, event in found for chunk in self._of(index, event))

    def closing(self) -> bytes:
        """What follows all pieces."""
        usage = _sse(self.answer.usage_chunk()) if self.answer.plan.include_usage else b""
        return usage + DONE

    def _of(self, index: int, event: Event) -> list[dict[str, Any]]:
        if isinstance(event, GenerationResult):
            return [self.answer.end(index, event)]
        if not isinstance(event, Piece) or self.answer.plan.discards:
            return []
        if not (event.text or self.answer.plan.logprobs or self.answer.plan.trace):
            return []
        return [self.answer.piece(index, event, self._texts(index, event))]

    def _texts(self, index: int, piece: Piece) -> list[str] | None:
        plan = self.answer.plan
        if not plan.trace:
            return None
        if index not in self.spelling:
            self.spelling[index] = self.scheduler.speller(plan.sequences[index].tokens)
        return [self.spelling[index](token) for token in piece.tokens]


def _collect(answer: Answer, found: Sequence[tuple[int, Event]]) -> None:
    for index, event in found:
        if isinstance(event, GenerationResult):
            answer.results[index] = event


def _sse(value: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(value, ensure_ascii=False).encode() + b"\n\n"


async def _push(send: Send, body: bytes) -> None:
    if body:
        await send({"type": "http.response.body", "body": body, "more_body": True})


async def _gone(receive: Receive) -> None:
    """Wait until the client leaves."""
    while (await receive())["type"] != "http.disconnect":
        pass

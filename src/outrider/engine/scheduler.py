"""One thread that owns an engine: a queue, admission, the loop, and events to whoever asked.

What a server stands on, and the only part of the engine that it knows. All sequences move through
the same loop as `Engine.generate`, packed into one pass; who is admitted is decided by the bytes of
their states, and beside running ones prompts get a small share of each pass.
"""

import logging
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Protocol

from outrider.core_types import TokenLogprob
from outrider.engine.engine import (
    TEXT_CONTEXT,
    Engine,
    Generation,
    GenerationResult,
    Prepared,
    Tokenizer,
)
from outrider.engine.session import PREFILL_ROWS, Piece
from outrider.engine.text import Detokenizer
from outrider.errors import BusyError, OutriderError, RequestError, StageError
from outrider.telemetry.counters import Counters, merge

__all__ = [
    "Admission",
    "ChatTokenizer",
    "Event",
    "GenerationResult",
    "Piece",
    "Prepared",
    "Scheduler",
    "Snapshot",
    "Ticket",
    "TokenLogprob",
]
LOG = logging.getLogger(__name__)

Event = Piece | GenerationResult | OutriderError
"""What comes of a request: pieces, then its result, or the error that ended it."""

Sink = Callable[[Event], None]
"""Takes the events of one request; called in the engine's thread, so it must not block."""


class ChatTokenizer(Tokenizer, Protocol):
    """What a server needs of a tokenizer."""

    @property
    def has_chat_template(self) -> bool: ...
    def encode_chat(self, messages: Sequence[Mapping[str, Any]], **options: Any) -> list[int]: ...
    def decode(self, ids: Sequence[int], *, skip_special: bool = True) -> str: ...
    def token_bytes(self, token_id: int, *, skip_special: bool = True) -> bytes: ...
    def token_name(self, token_id: int) -> str: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Admission:
    """How much runs at once: sequences, bytes of their states (as `state_bytes` says of a length),
    requests that may wait, and rows of prompts in a pass beside running sequences."""

    max_sequences: int
    max_queue: int
    max_bytes: int
    prompt_rows: int
    state_bytes: Callable[[int], int]


@dataclass(slots=True, kw_only=True, eq=False)
class Ticket:
    """One sequence that was asked for; `size` bytes of state at most."""

    request: Prepared
    sink: Sink
    size: int
    cancelled: bool = False
    generation: Generation | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """What happened so far, running requests included; counters by method."""

    counters: Mapping[str, Counters]
    running: int
    waiting: int
    state_bytes: int
    prefixes: int
    prefix_bytes: int


@dataclass(slots=True)
class Shared:
    """What callers and the engine's thread both touch, under one lock."""

    lock: threading.Condition = field(default_factory=threading.Condition)
    waiting: list[Ticket] = field(default_factory=list)
    running: list[Ticket] = field(default_factory=list)
    asked: list[Future[Snapshot]] = field(default_factory=list)
    draining: bool = False
    closing: bool = False


class Scheduler:
    """Runs requests of many callers on one engine; `close` it."""

    def __init__(self, engine: Engine, tokenizer: ChatTokenizer, admission: Admission) -> None:
        self.tokenizer = tokenizer
        self.admission = admission
        self._engine = engine
        self._shared = Shared()
        self._totals: dict[str, Counters] = {}
        self._thread = threading.Thread(target=self._run, name="outrider-engine", daemon=True)
        self._thread.start()

    @property
    def method(self) -> str:
        """What drafts unless a request says otherwise."""
        return self._engine.speculation.method

    @property
    def max_length(self) -> int:
        """Tokens that a sequence can have."""
        return self._engine.stage.max_length

    @property
    def exact(self) -> bool:
        """Whether speculation gives the same bits as plain decoding."""
        return self._engine.stage.exact

    @property
    def defaults(self) -> Any:
        """Sampling of requests that say nothing (`SamplingParams`)."""
        return self._engine.sampling_defaults

    def speller(self, prompt: Sequence[int]) -> Callable[[int], str]:
        """A function that gives the text of one token after the other from the end of a prompt on,
        half characters held back."""
        text = Detokenizer(self.tokenizer, prompt[-TEXT_CONTEXT:])
        return lambda token: text.push((token,))

    def prepare(self, prompt: str | Sequence[int], **options: Any) -> Prepared:
        """`Engine.prepare`; also refuses what could never be admitted. In any thread."""
        request = self._engine.prepare(prompt, **options)
        size, most = self.admission.state_bytes(request.longest), self.admission.max_bytes
        if size > most:
            raise RequestError(
                f"a sequence of up to {request.longest} tokens needs {size >> 20} MiB of state and "
                f"the server has {most >> 20}: ask for fewer max_tokens, or shorten the prompt."
            )
        return request

    def check_room(self, sequences: int) -> None:
        """Raise RequestError for more sequences in one request than could ever be queued."""
        limits = self.admission
        if sequences > limits.max_sequences + limits.max_queue:
            raise RequestError(
                f"the request asks for {sequences} sequences (prompts times n), and the server "
                f"holds {limits.max_sequences + limits.max_queue} at once: ask for fewer, or raise "
                "server.max_sequences or server.max_queue."
            )

    def submit(self, requests: Sequence[tuple[Prepared, Sink]]) -> list[Ticket]:
        """Queue the sequences of one request, all or none; raises BusyError where that is full,
        and RequestError for more than `check_room` allows."""
        self.check_room(len(requests))
        cost = self.admission.state_bytes
        tickets = [
            Ticket(request=request, sink=sink, size=cost(request.longest))
            for request, sink in requests
        ]
        shared, room = self._shared, self.admission.max_sequences + self.admission.max_queue
        with shared.lock:
            if shared.draining:
                raise BusyError("the server is going down and takes no more requests.")
            if len(shared.waiting) + len(shared.running) + len(tickets) > room:
                raise BusyError(
                    f"the queue of {self.admission.max_queue} is full: try again later, or raise "
                    "server.max_queue."
                )
            shared.waiting += tickets
            shared.lock.notify()
        return tickets

    def cancel(self, tickets: Sequence[Ticket]) -> None:
        """Stop sequences and free their states; those that have ended are left alone."""
        with self._shared.lock:
            for ticket in tickets:
                ticket.cancelled = True
            self._shared.lock.notify()

    def snapshot(self) -> "Future[Snapshot]":
        """What happened so far, taken between two passes."""
        asked: Future[Snapshot] = Future()
        with self._shared.lock:
            if self._shared.closing:
                asked.set_exception(BusyError("the server is going down."))
            else:
                self._shared.asked.append(asked)
            self._shared.lock.notify()
        return asked

    def drain(self) -> None:
        """Take no more requests; those that wait or run go on."""
        with self._shared.lock:
            self._shared.draining = True

    def close(self) -> None:
        """End everything that waits or runs with an error, and the thread with it."""
        with self._shared.lock:
            self._shared.draining = self._shared.closing = True
            self._shared.lock.notify()
        self._thread.join()

    def _run(self) -> None:
        while self._wait():
            self._drop_cancelled()
            self._answer()
            self._admit()
            if self._shared.running:
                self._pass()
        error = BusyError("the server is going down: the request was ended.")
        for ticket in [*self._shared.running, *self._shared.waiting]:
            self._end(ticket, error)
        self._answer()
        self._engine.close()

    def _wait(self) -> bool:
        """Sleep until there is something to do; False once that is to leave."""
        shared = self._shared
        with shared.lock:
            while not (shared.running or shared.waiting or shared.asked or shared.closing):
                shared.lock.wait()
            return not shared.closing

    def _answer(self) -> None:
        with self._shared.lock:
            asked, self._shared.asked = self._shared.asked, []
        for one in asked:
            if one.set_running_or_notify_cancel():
                one.set_result(self._count())

    def _count(self) -> Snapshot:
        shared, prefixes = self._shared, self._engine.prefixes
        parts = {method: [counters] for method, counters in self._totals.items()}
        for ticket in shared.running:
            if ticket.generation:
                method = ticket.request.speculation.method
                parts.setdefault(method, []).append(ticket.generation.counters)
        return Snapshot(
            counters={method: merge(found) for method, found in parts.items()},
            running=len(shared.running),
            waiting=len(shared.waiting),
            state_bytes=sum(ticket.size for ticket in shared.running),
            prefixes=prefixes.held if prefixes else 0,
            prefix_bytes=prefixes.bytes if prefixes else 0,
        )

    def _drop_cancelled(self) -> None:
        with self._shared.lock:
            both = (*self._shared.running, *self._shared.waiting)
            cancelled = [ticket for ticket in both if ticket.cancelled]
        for ticket in cancelled:
            self._end(ticket, None)

    def _admit(self) -> None:
        """Begin what fits: of the owners that wait, the one with the fewest sequences first.

        Nobody overtakes a sequence that does not fit yet, or a large one would never run.
        """
        limits, shared = self.admission, self._shared
        while shared.waiting and len(shared.running) < limits.max_sequences:
            owners = Counter(ticket.request.owner for ticket in shared.running)
            ticket = min(shared.waiting, key=lambda waits: owners[waits.request.owner])
            if sum(one.size for one in shared.running) + ticket.size > limits.max_bytes:
                return
            with shared.lock:
                shared.waiting.remove(ticket)
                shared.running.append(ticket)
            try:
                ticket.generation = self._engine.begin(ticket.request)
            except Exception as error:
                self._end(ticket, _told(error))

    def _pass(self) -> None:
        """One pass over all that runs, and what came of it to those who asked."""
        rows = self.admission.prompt_rows if self._engine.decoding else PREFILL_ROWS
        try:
            self._engine.step(rows)
        except Exception as error:
            told = _told(error)
            for ticket in list(self._shared.running):
                self._end(ticket, told)
            return
        for ticket in list(self._shared.running):
            generation = ticket.generation
            assert generation is not None
            for piece in generation.take():
                _tell(ticket, piece)
            if generation.done:
                self._end(ticket, generation.result)

    def _end(self, ticket: Ticket, event: Event | None) -> None:
        """Free what a sequence holds, and tell why it ended unless its caller left."""
        with self._shared.lock:
            for tickets in (self._shared.running, self._shared.waiting):
                if ticket in tickets:
                    tickets.remove(ticket)
        if ticket.generation is not None:
            ticket.generation.close()
            method, counters = ticket.request.speculation.method, ticket.generation.counters
            self._totals[method] = merge([*filter(None, [self._totals.get(method)]), counters])
            ticket.generation = None
        if event is not None:
            _tell(ticket, event)


def _told(error: Exception) -> OutriderError:
    """The error as callers may see it; what was not foreseen goes to the log only."""
    if isinstance(error, OutriderError):
        return error
    LOG.exception("a request failed", exc_info=error)
    return StageError("the engine failed on this request; the server's log says why.")


def _tell(ticket: Ticket, event: Event) -> None:
    try:
        ticket.sink(event)
    except Exception:  # Its caller is gone: it gets nothing more.
        ticket.cancelled = True

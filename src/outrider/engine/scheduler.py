"""One thread that owns an engine: a queue, admission, the loop, and events to whoever asked.

A server stands on this, and knows no other part of the engine. All sequences move through the same
loop as `EngineFacade.generate`, packed into one pass; who is admitted is decided by the bytes of
their states, and beside running ones prompts get a small share of each pass.

A failure of one request ends that one. What fails beyond that ends all of them with an error, and
the engine is made anew where the scheduler was told how; meanwhile, and where that fails, requests
are refused with the reason. The thread ends only when it is closed.
"""

import gc
import logging
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from outrider.engine.detokenizer import Detokenizer
from outrider.engine.facade import (
    TEXT_CONTEXT,
    EngineFacade,
    Generation,
    GenerationResult,
    Prepared,
)
from outrider.engine.session import PREFILL_ROWS, Piece
from outrider.errors import BusyError, DownError, OutriderError, RequestError, StageError
from outrider.formats.tokenizer import Tokenizer
from outrider.records import TokenLogprob
from outrider.telemetry.counters import Counters, merge

__all__ = [
    "Admission",
    "Event",
    "GenerationResult",
    "Piece",
    "Prepared",
    "Scheduler",
    "SchedulerFigures",
    "Ticket",
    "TokenLogprob",
]
LOG = logging.getLogger(__name__)

Event = Piece | GenerationResult | OutriderError
"""Events of a request: pieces, then its result, or the error that ended it."""

LEAVE_SECONDS = 1.0
"""How long closing waits for an engine that is being loaded."""
MOST_REMAKES = 3
"""How often in a row the engine is made anew without one request that ended well."""

Sink = Callable[[Event], None]
"""Takes the events of one request; called in the engine's thread, so it must not block."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Admission:
    """Limits of what runs at once: sequences, bytes of their states (as `state_bytes` says of a
    length), requests that may wait, and rows of prompts in a pass beside running sequences."""

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
class SchedulerFigures:
    """Figures so far, running requests included; counters by method."""

    counters: Mapping[str, Counters]
    running: int
    waiting: int
    state_bytes: int
    prefixes: int
    prefix_bytes: int


@dataclass(slots=True)
class Shared:
    """State that callers and the engine's thread share, under one lock. `down` is why there is no
    engine now."""

    lock: threading.Condition = field(default_factory=threading.Condition)
    waiting: list[Ticket] = field(default_factory=list)
    running: list[Ticket] = field(default_factory=list)
    asked: list[Future[SchedulerFigures]] = field(default_factory=list)
    draining: bool = False
    closing: bool = False
    down: str | None = None


class Scheduler:
    """Runs requests of many callers on one engine; `close` it.

    method: what drafts unless a request says otherwise. max_length: tokens that a sequence can
    have. exact: speculation gives the same bits as plain decoding. defaults: the sampling of
    requests that say nothing (`SamplingParams`).
    """

    def __init__(
        self,
        engine: EngineFacade,
        tokenizer: Tokenizer,
        admission: Admission,
        remake: Callable[[], EngineFacade] | None = None,
    ) -> None:
        """`remake` makes the same engine anew after it has failed."""
        self.tokenizer = tokenizer
        self.admission = admission
        self.method = engine.speculation.method
        self.max_length = engine.stage.max_length
        self.exact = engine.stage.exact
        self.defaults: Any = engine.sampling_defaults
        self._engine: EngineFacade | None = engine
        self._remake = remake
        self._remakes = 0
        self._shared = Shared()
        self._totals: dict[str, Counters] = {}
        self._thread = threading.Thread(target=self._run, name="outrider-engine", daemon=True)
        self._thread.start()

    @property
    def engine(self) -> EngineFacade:
        """The engine; DownError while there is none."""
        engine = self._engine
        if engine is None:
            raise DownError(self._shared.down or "the engine is being started again.")
        return engine

    def speller(self, prompt: Sequence[int]) -> Callable[[int], str]:
        """A function that gives the text of one token after the other from the end of a prompt on,
        half characters held back."""
        text = Detokenizer(self.tokenizer, prompt[-TEXT_CONTEXT:])
        return lambda token: text.push((token,))

    def prepare(self, prompt: str | Sequence[int], **options: Any) -> Prepared:
        """`EngineFacade.prepare`; also refuses what could never be admitted. In any thread."""
        request = self.engine.prepare(prompt, **options)
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
            if shared.down is not None:
                raise DownError(shared.down)
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

    def snapshot(self) -> "Future[SchedulerFigures]":
        """Figures so far, taken between two passes."""
        asked: Future[SchedulerFigures] = Future()
        with self._shared.lock:
            if self._shared.closing:
                asked.set_exception(BusyError("the server is going down."))
            elif self._shared.down is not None:
                asked.set_exception(DownError(self._shared.down))
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
        if self._engine is None:  # It may be loading for minutes, and dies with the process.
            self._thread.join(LEAVE_SECONDS)
        else:
            self._thread.join()

    def _run(self) -> None:
        """Serve until this is closed, whatever fails meanwhile."""
        while not self._shared.closing:
            try:
                self._serve()
            except BaseException as error:  # Nothing may end this thread in silence.
                self._replace(error)
        self._end_all(BusyError("the server is going down: the request was ended."))
        self._let_go()

    def _serve(self) -> None:
        while self._wait():
            self._drop_cancelled()
            self._answer()
            self._admit()
            if self._shared.running:
                self._pass()

    def _replace(self, error: BaseException) -> None:
        """Go on after the engine failed: with a new one, or refusing requests with the reason."""
        LOG.critical("the engine failed", exc_info=error)
        error.__traceback__ = None  # Its frames hold the engine.
        reason = f"the engine failed ({type(error).__name__}: {error})"
        self._go_down(f"{reason} and is being started again.")
        self._end_all(StageError(f"{reason}: the request was ended."))
        self._let_go()
        gc.collect()  # Its memory must be free before another one is loaded.
        try:
            self._engine = self._make_anew()
        except BaseException as again:
            LOG.critical("the engine cannot be started again", exc_info=again)
            self._go_down(f"{reason} and cannot be started again ({again}): restart the server.")
            self._end_all(StageError(f"{reason}: the request was ended."))
            with self._shared.lock:
                self._shared.lock.wait_for(lambda: self._shared.closing)
        else:
            self._go_down(None)

    def _let_go(self) -> None:
        """Close the engine."""
        engine, self._engine = self._engine, None
        try:
            if engine is not None:
                engine.close()
        except Exception:
            LOG.exception("the engine could not be closed")

    def _go_down(self, reason: str | None) -> None:
        """Refuse requests with `reason` from now on; None: take them again."""
        with self._shared.lock:
            self._shared.down = reason

    def _make_anew(self) -> EngineFacade:
        if self._remake is None:
            raise StageError("nobody said how")
        if self._remakes >= MOST_REMAKES:
            raise StageError(f"it failed {self._remakes} times in a row")
        self._remakes += 1
        return self._remake()

    def _end_all(self, error: OutriderError) -> None:
        """End whatever waits or runs, and answer whoever asked for figures."""
        for ticket in [*self._shared.running, *self._shared.waiting]:
            try:
                self._end(ticket, error)
            except Exception:  # It is out of the lists; the others must hear of it, too.
                LOG.exception("a request could not be ended")
                _tell(ticket, error)
        with self._shared.lock:
            asked, self._shared.asked = self._shared.asked, []
        for one in asked:
            if one.set_running_or_notify_cancel():
                one.set_exception(error)

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
                try:
                    one.set_result(self._count())
                except Exception as error:
                    one.set_exception(error)

    def _count(self) -> SchedulerFigures:
        shared, prefixes = self._shared, self.engine.prefixes
        parts = {method: [counters] for method, counters in self._totals.items()}
        for ticket in shared.running:
            if ticket.generation:
                method = ticket.request.speculation.method
                parts.setdefault(method, []).append(ticket.generation.counters)
        return SchedulerFigures(
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
                ticket.generation = self.engine.begin(ticket.request)
            except Exception as error:
                self._end(ticket, _told(error))

    def _pass(self) -> None:
        """One pass over all that runs, and what came of it to those who asked."""
        engine = self.engine
        engine.step(self.admission.prompt_rows if engine.decoding else PREFILL_ROWS)
        for ticket in list(self._shared.running):
            try:
                self._hand_out(ticket)
            except Exception as error:
                self._end(ticket, _told(error))

    def _hand_out(self, ticket: Ticket) -> None:
        """Tell a caller what the pass brought its request."""
        generation = ticket.generation
        assert generation is not None
        for piece in generation.take():
            _tell(ticket, piece)
        if generation.fault is not None:
            self._end(ticket, _told(generation.fault))
        elif generation.done:
            self._remakes = 0
            self._end(ticket, generation.result)

    def _end(self, ticket: Ticket, event: Event | None) -> None:
        """Free what a sequence holds, and tell why it ended unless its caller left."""
        with self._shared.lock:
            for tickets in (self._shared.running, self._shared.waiting):
                if ticket in tickets:
                    tickets.remove(ticket)
        generation, ticket.generation = ticket.generation, None
        if generation is not None:
            generation.close()
            method, counters = ticket.request.speculation.method, generation.counters
            self._totals[method] = merge([*filter(None, [self._totals.get(method)]), counters])
        if event is not None:
            _tell(ticket, event)


def _told(error: Exception) -> OutriderError:
    """The error as callers may see it; what was not foreseen goes to the log only."""
    if isinstance(error, OutriderError):
        return error
    LOG.error("a request failed", exc_info=error)
    return StageError("the engine failed on this request; the server's log says why.")


def _tell(ticket: Ticket, event: Event) -> None:
    try:
        ticket.sink(event)
    except Exception:  # Its caller is gone: it gets nothing more.
        ticket.cancelled = True

"""The facade that the command line, the server and the benchmarks stand on. Synchronous.

Which stage and drafter it was given is decided in `outrider.assemble`.
"""

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count

from outrider.draft.base import Drafter
from outrider.engine.detokenizer import TextStream, stop_strings
from outrider.engine.draft_budget import Budget, FixedBudget
from outrider.engine.ledger import Ledger
from outrider.engine.loop import step, survivors
from outrider.engine.prefix import Prefix, PrefixCache, place_to_keep
from outrider.engine.request_checks import check_count, check_flag, check_sampling, encode_prompt
from outrider.engine.session import (
    PREFILL_ROWS,
    FinishReason,
    Limits,
    Piece,
    Session,
)
from outrider.errors import ConfigError, RequestError
from outrider.formats.tokenizer import Tokenizer
from outrider.records import TokenLogprob
from outrider.sampling.params import SamplingParams
from outrider.stage.base import Stage
from outrider.telemetry.counters import Counters, timings

LOG = logging.getLogger(__name__)
OFF = "off"
MOST_FAILURES = 5
"""Passes that fail in a row, after which it is not the requests' fault."""
TEXT_CONTEXT = 5
"""Prompt tokens shown to the detokeniser: some tokenizers decode a token by the ones before it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowLimits:
    """Rows of a window, live windows at once, or a budget of rows in flight instead."""

    width: int
    depth: int = 1
    runahead: int | None = None

    @property
    def serial(self) -> bool:
        """True if a window is judged before the next one is issued."""
        return self.depth == 1 and self.runahead is None


DrafterFactory = Callable[[SamplingParams, Budget], Drafter]
"""Makes a session's drafter from its sampling settings (seed) and what limits its drafts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Speculation:
    """How requests are speculated on unless they say otherwise.

    `drafter` and `budget` make one object per session. `fallback` names the source whose drafts
    are counted as fallback.
    """

    method: str
    drafter: DrafterFactory | None
    budget: Callable[[], Budget]
    windows: WindowLimits
    fallback: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationResult:
    """Everything about a request, whether it ended or was left early.

    `budget` says how many drafts were chosen and why. `prompt_logprobs`, where asked for, begin
    with the prompt's second token: nothing says how likely the first one was.
    """

    text: str
    token_ids: tuple[int, ...]
    prompt_token_ids: tuple[int, ...]
    finish_reason: FinishReason
    usage: dict[str, int]
    timings: dict[str, object]
    seed: int | None
    budget: tuple[str, ...] = ()
    logprobs: tuple[TokenLogprob, ...] = ()
    prompt_logprobs: tuple[TokenLogprob, ...] = ()
    counters: Counters = field(default_factory=Counters)


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """A request that was checked and can begin; may be made in any thread."""

    tokens: tuple[int, ...]
    sampling: SamplingParams
    limits: Limits
    stop: tuple[str, ...]
    speculation: Speculation
    owner: str = ""
    score_prompt: bool = False

    @property
    def longest(self) -> int:
        """Tokens that its sequence may grow to."""
        return min(len(self.tokens) + self.limits.max_tokens, self.limits.max_length)


@dataclass(slots=True)
class Generation:
    """A running request: iterate for its pieces; `result` is valid at any time.

    Leaving early (`close`, or dropping the object) frees its state. Iterating raises the error that
    ended the request (`fault`), after the pieces that came before it.
    """

    _engine: "EngineFacade"
    _session: Session
    _given: list[Piece] = field(default_factory=list)

    def __iter__(self) -> Iterator[Piece]:
        session = self._session
        while True:
            while session.pieces:
                piece = session.pieces.pop(0)
                self._given.append(piece)
                yield piece
            if session.done:
                self.close()
                if session.fault is not None:
                    raise session.fault
                return
            self._engine.step()

    def close(self) -> None:
        """End the request, cancelling it if it still runs."""
        if not self._session.done:
            self._session.finish("cancelled")
        self._engine.release(self._session)

    def __del__(self) -> None:
        self.close()

    def take(self) -> list[Piece]:
        """The pieces that came since they were last asked for; runs nothing."""
        pieces, self._session.pieces = self._session.pieces, []
        self._given += pieces
        return pieces

    @property
    def done(self) -> bool:
        """True if no more pieces will come than `take` returns now."""
        return self._session.done

    @property
    def fault(self) -> Exception | None:
        """The error that ended the request, None unless one did."""
        return self._session.fault

    @property
    def counters(self) -> Counters:
        return self._session.counters

    @property
    def result(self) -> GenerationResult:
        session = self._session
        pieces = [*self._given, *session.pieces]
        generated = tuple(session.tokens[session.prompt_len :])
        used = {"prompt_tokens": session.prompt_len, "completion_tokens": len(generated)}
        return GenerationResult(
            text="".join(piece.text for piece in pieces),
            token_ids=generated,
            prompt_token_ids=tuple(session.tokens[: session.prompt_len]),
            finish_reason=session.finish_reason or "cancelled",
            usage={**used, "total_tokens": sum(used.values())},
            timings=timings(session.counters) | {"backend": self._engine.backend},
            seed=session.sampling.seed,
            budget=_explain(session),
            logprobs=tuple(entry for piece in pieces for entry in piece.logprobs),
            prompt_logprobs=tuple(session.scores or ()),
            counters=session.counters,
        )


class EngineFacade:
    """Generates text with a target, speculating where it was told to."""

    backend = "torch"

    def __init__(
        self,
        stage: Stage,
        tokenizer: Tokenizer,
        speculation: Speculation,
        defaults: SamplingParams | None = None,
        prefixes: PrefixCache | None = None,
    ) -> None:
        self.stage = stage
        self.tokenizer = tokenizer
        self.speculation = speculation
        self.sampling_defaults = defaults or SamplingParams()
        self.prefixes = prefixes
        self.sessions: dict[int, Session] = {}
        self._ids = count()
        self._to_close: list[int] = []
        self._failures = 0
        self._closed = False

    def generate(
        self,
        prompt: str | Sequence[int],
        *,
        sampling: SamplingParams | None = None,
        max_tokens: int | None = None,
        stop: str | Sequence[str] | None = None,
        ignore_eos: bool = False,
        method: str | None = None,
    ) -> Generation:
        """Start a request; nothing runs until the result is iterated.

        `max_tokens` None runs to the end of the context. `stop` is one string or several. `method`
        "off" decodes plainly. Raises RequestError where the prompt is empty, too long or holds
        unknown tokens or the engine is closed, and ConfigError where sampling values are out of
        range.
        """
        return self.begin(
            self.prepare(
                prompt,
                sampling=sampling,
                max_tokens=max_tokens,
                stop=stop,
                ignore_eos=ignore_eos,
                method=method,
            )
        )

    def prepare(
        self,
        prompt: str | Sequence[int],
        *,
        sampling: SamplingParams | None = None,
        max_tokens: int | None = None,
        stop: str | Sequence[str] | None = None,
        ignore_eos: bool = False,
        method: str | None = None,
        max_draft_tokens: int | None = None,
        owner: str = "",
        score_prompt: bool = False,
    ) -> Prepared:
        """Check a request as `generate` does, and draw its seed, without starting it.

        `max_draft_tokens` drafts a fixed number, 0 decodes plainly. `owner` shares prompts that
        were seen with itself only. `score_prompt` asks for the prompt's log-probabilities too, and
        needs `sampling.logprobs`.
        """
        sizes = {"max_length": self.stage.max_length, "vocab_size": self.stage.vocab_size}
        encode = partial(self.tokenizer.encode, most=self.stage.max_length)
        tokens = encode_prompt(prompt, encode, **sizes)
        sampling = self.sampling_defaults if sampling is None else sampling
        check_sampling(sampling, score_prompt=score_prompt)
        sampling.check_vocabulary(self.stage.vocab_size)
        return Prepared(
            tokens=tuple(tokens),
            sampling=sampling.with_seed(),
            limits=self._limits(len(tokens), max_tokens, ignore_eos),
            stop=stop_strings(stop),
            speculation=self._speculation(method, max_draft_tokens),
            owner=owner,
            score_prompt=score_prompt,
        )

    def begin(self, request: Prepared) -> Generation:
        """Open a session for a prepared request; where that fails, nothing is left of it.

        Raises RequestError where the engine is closed.
        """
        if self._closed:
            raise RequestError("the engine is closed and runs no more requests: load one anew.")
        with ExitStack() as opened:
            session = self._session(request)
            self.sessions[session.id] = session
            opened.callback(self.release, session)
            session.drafter = self._drafter(session, request)
            if not self._open_kept(session, request):
                self._open(session)
            if self.prefixes and not request.score_prompt:
                session.keep_at = place_to_keep(session.prompt_len, session.prefilled)
            opened.pop_all()
        return Generation(self, session)

    def _open(self, session: Session) -> None:
        self.stage.open(session.id, session.sampling, session.prompt_len, session.taps)

    def _open_kept(self, session: Session, request: Prepared) -> bool:
        """Begin from a prefix that was kept; False where there is none, or it cannot be used."""
        prefixes = self.prefixes
        if prefixes is None or request.score_prompt:
            return False
        prompt, taps = session.tokens, session.taps
        known = prefixes.attempt(lambda: prefixes.find(request.owner, prompt, taps))
        if known is None:
            return False
        if prefixes.attempt(lambda: _begin_from(known, session, prefixes.stage)):
            return True
        self._close_on_stage(session.id)
        if session.drafter is not None:
            self._quietly(session.drafter.close)
        session.drafter = self._drafter(session, request)
        return False

    def _limits(self, prompt_len: int, max_tokens: int | None, ignore_eos: bool) -> Limits:
        check_count("max_tokens", max_tokens, least=1)
        check_flag("ignore_eos", ignore_eos)
        ends = frozenset[int]() if ignore_eos else self.tokenizer.end_tokens
        return Limits(
            max_tokens=self.stage.max_length - prompt_len if max_tokens is None else max_tokens,
            max_length=self.stage.max_length,
            end_tokens=ends,
        )

    def _speculation(self, method: str | None, drafts: int | None) -> Speculation:
        """The speculation of one request: as loaded, with a fixed number of drafts, or off."""
        loaded = self.speculation
        check_count("max_draft_tokens", drafts, least=0)
        if method not in (None, OFF, loaded.method):
            raise RequestError(
                f"method = {method!r} is not the one loaded ({loaded.method!r}): "
                "ask for that one or for 'off'."
            )
        if drafts and OFF in (method, loaded.method):
            raise RequestError(
                f"max_draft_tokens = {drafts} needs something that drafts, but the method is "
                "'off': leave one of the two out."
            )
        if method == OFF or drafts == 0:
            return replace(loaded, method=OFF, drafter=None, budget=lambda: FixedBudget(0))
        if drafts is None:
            return loaded
        if loaded.windows.serial and drafts >= loaded.windows.width:
            raise RequestError(
                f"max_draft_tokens = {drafts} is out of range: windows have "
                f"{loaded.windows.width} rows, one for the pending token; use fewer."
            )
        return replace(loaded, budget=lambda: FixedBudget(drafts))

    def _session(self, request: Prepared) -> Session:
        speculation, tokens = request.speculation, list(request.tokens)
        windows = speculation.windows
        ledger = Ledger(
            length=len(tokens),
            width=windows.width,
            depth=windows.depth,
            runahead=windows.runahead,
        )
        return Session(
            id=next(self._ids),
            prompt_len=len(tokens),
            prefill_end=len(tokens),
            tokens=tokens,
            sampling=request.sampling,
            limits=request.limits,
            ledger=ledger,
            text=TextStream(self.tokenizer, request.stop, tokens[-TEXT_CONTEXT:]),
            drafter=None,
            budget=speculation.budget(),
            fallback=speculation.fallback,
            owner=request.owner,
            scores=[] if request.score_prompt else None,
            counters=Counters(exact=self.stage.exact),
        )

    def _drafter(self, session: Session, request: Prepared) -> Drafter | None:
        """The drafter of a session; None where it cannot be made, which is said."""
        speculation = request.speculation
        if speculation.drafter is None:
            return None
        try:
            drafter = speculation.drafter(request.sampling, session.budget)
        except ConfigError:
            raise
        except Exception as error:
            session.end_drafting(error)
            return None
        if drafter.needs.taps and not speculation.windows.serial:
            raise ConfigError(
                f"{drafter.name} reads the target's hidden states of each window before it drafts "
                "the next: use speculative.verify_window.depth = 1 and no runahead_tokens."
            )
        return drafter

    def step(self, prompt_rows: int = PREFILL_ROWS) -> None:
        """Move every running request forward by one pass; prompts get `prompt_rows` rows of it.

        A request that fails ends with its `fault`; nothing of it is raised here. Raises what passes
        fail with where none succeeds any more: the engine is of no use then.
        """
        try:
            step(self.sessions, self.stage, prompt_rows)
        except Exception as error:
            self._recover(error)
            return
        self._failures = 0
        if self.prefixes:
            for session in self.sessions.values():
                if session.prefilled == session.keep_at > 0 and not session.done:
                    self.prefixes.attempt(partial(self.prefixes.snapshot, session))
                    session.keep_at = 0

    def _recover(self, error: Exception) -> None:
        """Go on after a pass failed, with those of its sessions that are not to blame."""
        self._failures += 1
        lost = survivors(self.sessions.values(), error)
        LOG.error("a pass failed, %d requests begin it anew", len(lost), exc_info=error)
        for session in lost:
            self._restart(session)
        if self._failures >= MOST_FAILURES:
            raise error

    def _restart(self, session: Session) -> None:
        """Bring a session back whose state the stage has lost, under a number of its own: what is
        on its way under the old one is nobody's any more."""
        self._close_on_stage(session.id)
        del self.sessions[session.id]
        session.restart(next(self._ids))
        self.sessions[session.id] = session
        try:
            self._open(session)
        except Exception as error:
            session.fail(error)

    @property
    def decoding(self) -> bool:
        """True if a request runs that is past its prompt."""
        return any(not (s.prefilling or s.done) for s in self.sessions.values())

    def release(self, session: Session) -> None:
        """Free what a request holds; harmless if done twice."""
        if self.sessions.pop(session.id, None) is None:
            return
        self._close_on_stage(session.id)
        if self.prefixes and not session.taps and session.fault is None:
            self.prefixes.attempt(partial(self.prefixes.snapshot_drafter, session))
        for part in (session.budget, session.drafter):
            if part is not None:
                self._quietly(part.close)

    def _close_on_stage(self, number: int) -> None:
        """Close a session there; where that fails, it is tried again at once, and once more with
        the next one, so that no state is left over."""
        again, self._to_close = self._to_close, []
        for one in again:
            self._quietly(partial(self.stage.close, one))
        close = partial(self.stage.close, number)
        if not (self._quietly(close) or self._quietly(close)):
            self._to_close.append(number)

    def _quietly(self, close: Callable[[], None]) -> bool:
        """Free something; a failure is logged, since nobody's request is to end with it."""
        try:
            close()
        except Exception:
            LOG.exception("what a request held could not be freed")
            return False
        return True

    def close(self) -> None:
        """Cancel what still runs and free everything; no request begins any more."""
        self._closed = True
        for session in list(self.sessions.values()):
            if not session.done:
                session.finish("cancelled")
            self.release(session)
        if self.prefixes:
            self._quietly(self.prefixes.clear)
        self.stage.shutdown()


def _begin_from(known: Prefix, session: Session, stage: Stage) -> bool:
    """Open a session on the stage where a kept prefix ends, its drafter with it."""
    stage.open_from(known.key, session.id, session.sampling, session.tokens, session.taps)
    if known.drafter and session.drafter:
        session.drafter.restore(known.drafter)
    session.prefix, reused = known.key, len(known.tokens)
    session.prefilled = session.answered = session.observed = session.counters.reused = reused
    return True


def _explain(session: Session) -> tuple[str, ...]:
    """Number of drafts that were chosen and why, or why there are none any more."""
    if session.drafting_ended is not None:
        return (f"the drafter failed ({session.drafting_ended}): the rest was decoded plainly",)
    return tuple(session.budget.explain())

"""The facade that the command line, the server and the benchmarks stand on. Synchronous.

Knows protocols only: which stage, drafter or tokenizer it was given is decided in
`outrider.assemble`.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Protocol

from outrider.core_types import TokenLogprob
from outrider.draft.base import Drafter
from outrider.engine.budget import Budget, FixedBudget
from outrider.engine.loop import step
from outrider.engine.session import FinishReason, Limits, Piece, Session, finish
from outrider.engine.text import TextStream
from outrider.engine.windows import Ledger
from outrider.errors import ConfigError, RequestError
from outrider.sampling.params import SamplingParams
from outrider.stage.base import Stage
from outrider.telemetry.counters import Counters, timings

OFF = "off"
TEXT_CONTEXT = 5
"""Prompt tokens shown to the detokeniser: some tokenizers decode a token by the ones before it."""


class Tokenizer(Protocol):
    """What the engine needs of a tokenizer."""

    @property
    def end_tokens(self) -> frozenset[int]: ...
    def encode(self, text: str, *, add_special: bool = True) -> list[int]: ...
    def decode(self, ids: Sequence[int]) -> str: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowLimits:
    """Rows of a window, live windows at once, or a budget of rows in flight instead."""

    width: int
    depth: int = 1
    runahead: int | None = None

    @property
    def serial(self) -> bool:
        """Whether a window is judged before the next one is issued."""
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

    `budget` says how many drafts were chosen and why.
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


@dataclass(slots=True)
class Generation:
    """A running request: iterate for its pieces; `result` is valid at any time.

    Leaving early (`close`, or dropping the object) frees its state.
    """

    _engine: "Engine"
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
                return
            self._engine.step()

    def close(self) -> None:
        """End the request, cancelling it if it still runs."""
        if not self._session.done:
            finish(self._session, "cancelled")
        self._engine.release(self._session)

    def __del__(self) -> None:
        self.close()

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
            timings=timings(session.counters),
            seed=session.sampling.seed,
            budget=tuple(session.budget.explain()),
            logprobs=tuple(entry for piece in pieces for entry in piece.logprobs),
        )


class Engine:
    """Generates text with a target, speculating where it was told to."""

    def __init__(
        self,
        stage: Stage,
        tokenizer: Tokenizer,
        speculation: Speculation,
        defaults: SamplingParams | None = None,
    ) -> None:
        self.stage = stage
        self.tokenizer = tokenizer
        self.speculation = speculation
        self.sampling_defaults = defaults or SamplingParams()
        self._sessions: dict[int, Session] = {}
        self._ids = count()

    def generate(
        self,
        prompt: str | Sequence[int],
        *,
        sampling: SamplingParams | None = None,
        max_tokens: int | None = None,
        stop: Sequence[str] = (),
        ignore_eos: bool = False,
        method: str | None = None,
    ) -> Generation:
        """Start a request; nothing runs until the result is iterated.

        `max_tokens` None runs to the end of the context. `method` "off" decodes plainly. Raises
        RequestError where the prompt is empty, too long or holds unknown tokens, and ConfigError
        where sampling values are out of range.
        """
        tokens = self._encode(prompt)
        limits = self._limits(len(tokens), max_tokens, ignore_eos)
        sampling = (sampling or self.sampling_defaults).with_seed()
        sampling.check_vocabulary(self.stage.vocab_size)
        session = self._session(tokens, sampling, limits, stop, self._speculation(method))
        self.stage.open(session.id, sampling, len(tokens), session.taps)
        self._sessions[session.id] = session
        return Generation(self, session)

    def _encode(self, prompt: str | Sequence[int]) -> list[int]:
        tokens = self.tokenizer.encode(prompt) if isinstance(prompt, str) else list(prompt)
        if not tokens:
            raise RequestError("the prompt is empty: give at least one token to continue from.")
        if len(tokens) >= self.stage.max_length:
            raise RequestError(
                f"the prompt has {len(tokens)} tokens and the context {self.stage.max_length}: "
                "shorten it, or raise target.max_length where the model allows."
            )
        unknown = [token for token in tokens if not 0 <= token < self.stage.vocab_size]
        if unknown:
            raise RequestError(
                f"prompt token {unknown[0]} is outside the vocabulary of {self.stage.vocab_size}."
            )
        return tokens

    def _limits(self, prompt_len: int, max_tokens: int | None, ignore_eos: bool) -> Limits:
        if max_tokens is not None and max_tokens < 1:
            raise RequestError(f"max_tokens = {max_tokens} must be 1 or more.")
        room = self.stage.max_length - prompt_len
        ends = frozenset[int]() if ignore_eos else self.tokenizer.end_tokens
        return Limits(
            max_tokens=room if max_tokens is None else max_tokens,
            max_length=self.stage.max_length,
            end_tokens=ends,
        )

    def _speculation(self, method: str | None) -> Speculation:
        if method is None or method == self.speculation.method:
            return self.speculation
        if method != OFF:
            raise RequestError(
                f"method = {method!r} is not the one loaded ({self.speculation.method!r}): "
                "ask for that one or for 'off'."
            )
        return replace(self.speculation, method=OFF, drafter=None, budget=lambda: FixedBudget(0))

    def _session(
        self,
        tokens: list[int],
        sampling: SamplingParams,
        limits: Limits,
        stop: Sequence[str],
        speculation: Speculation,
    ) -> Session:
        windows, budget = speculation.windows, speculation.budget()
        drafter = speculation.drafter(sampling, budget) if speculation.drafter else None
        if drafter is not None and drafter.needs.taps and not windows.serial:
            raise ConfigError(
                f"{drafter.name} reads the target's hidden states of each window before it drafts "
                "the next: use speculative.verify_window.depth = 1 and no runahead_tokens."
            )
        ledger = Ledger(
            length=len(tokens),
            width=windows.width,
            depth=windows.depth,
            runahead=windows.runahead,
        )
        return Session(
            id=next(self._ids),
            prompt_len=len(tokens),
            tokens=tokens,
            sampling=sampling,
            limits=limits,
            ledger=ledger,
            text=TextStream(self.tokenizer, stop, tokens[-TEXT_CONTEXT:]),
            drafter=drafter,
            budget=budget,
            fallback=speculation.fallback,
            counters=Counters(exact=self.stage.exact),
        )

    def step(self) -> None:
        """Move every running request forward by one pass."""
        step(self._sessions, self.stage)

    def release(self, session: Session) -> None:
        """Free what a request holds; harmless if done twice."""
        if self._sessions.pop(session.id, None) is None:
            return
        self.stage.close(session.id)
        session.budget.close()
        if session.drafter is not None:
            session.drafter.close()

    def close(self) -> None:
        """Cancel what still runs and free everything."""
        for session in list(self._sessions.values()):
            if not session.done:
                finish(session, "cancelled")
            self.release(session)
        self.stage.shutdown()

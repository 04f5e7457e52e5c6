"""One request: its tokens, its windows in flight, its drafter, and when it ends."""

import logging
import time
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Literal

from outrider.draft.base import Drafter
from outrider.engine.detokenizer import TextStream
from outrider.engine.draft_budget import Budget
from outrider.engine.ledger import Ledger
from outrider.records import Draft, TokenLogprob
from outrider.sampling.params import SamplingParams
from outrider.telemetry.counters import Counters

LOG = logging.getLogger(__name__)
FinishReason = Literal["stop", "length", "cancelled", "error"]
TARGET = "target"
PREFILL_ROWS = 256
GRID = 64
"""Prompts are cut at multiples of this only, so that a cut changes nothing."""
PREFILL_ID = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """Additions of one commit: text that became final, tokens, and who proposed each of them
    (`target` for the target's own). Where `corrected`, the target's token replaces a draft.
    The first piece brings the log-probabilities of the prompt, where they were asked for."""

    text: str
    tokens: tuple[int, ...] = ()
    sources: tuple[str, ...] = ()
    corrected: bool = False
    logprobs: tuple[TokenLogprob, ...] = ()
    prompt_logprobs: tuple[TokenLogprob, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Where a request ends: new tokens, total length, end tokens."""

    max_tokens: int
    max_length: int
    end_tokens: frozenset[int]


@dataclass(slots=True, kw_only=True)
class Session:
    """Mutable state of one request; `outrider.engine.loop` moves it forward.

    `boundary` is the log-probability of a draft that the window before it judged, where asked for.
    `observed` counts the prompt rows whose hidden states the drafter has got, where it asked.
    `owner` is whose prefixes it shares; its state is kept once `keep_at` tokens were prefilled, and
    `prefix` is the key under which it was, or under which it found what it began from.
    `served` is when the prompt last moved on. `scores`, where wanted, are the log-probabilities of
    the prompt's tokens from the second on.

    The stage is sent the tokens up to `prefill_end` as a prompt: at first the prompt, and all but
    the pending token once the stage has lost the session's state (`restart`). `answered` counts the
    rows of it that a reply has come for, where hidden states are handed over; `in_flight` counts
    windows without a reply. A `suspect` was in a pass that failed for an unknown session's sake and
    runs alone until it has brought a token. `fault` is the error that ended the request,
    `drafting_ended` why nothing is drafted any more.
    """

    id: int
    prompt_len: int
    tokens: list[int]
    sampling: SamplingParams
    limits: Limits
    ledger: Ledger
    text: TextStream
    drafter: Drafter | None
    budget: Budget
    fallback: str | None = None
    counters: Counters = field(default_factory=Counters)
    finish_reason: FinishReason | None = None
    pieces: list[Piece] = field(default_factory=list)
    owner: str = ""
    keep_at: int = 0
    prefix: int = -1
    prefilled: int = 0
    prefill_end: int = 0
    answered: int = 0
    observed: int = 0
    in_flight: int = 0
    suspect: bool = False
    fault: Exception | None = None
    drafting_ended: str | None = None
    served: float = 0.0
    scores: list[TokenLogprob] | None = None
    sampled: Draft | None = None
    drafting: tuple[int, float] = (0, 0.0)
    boundary: tuple[TokenLogprob, ...] = ()
    occupied_at: float = 0.0
    opened_at: float = 0.0
    began: float = field(default_factory=time.perf_counter)
    first_token_at: float | None = None

    @property
    def done(self) -> bool:
        return self.finish_reason is not None

    @property
    def has_prompt(self) -> bool:
        """True if rows are still to be sent as a prompt."""
        return self.prefilled < self.prefill_end

    @property
    def generated(self) -> int:
        return len(self.tokens) - self.prompt_len

    @property
    def remaining(self) -> int:
        """Tokens that may still be generated."""
        by_length = self.limits.max_length - len(self.tokens)
        return min(self.limits.max_tokens - self.generated, by_length)

    @property
    def taps(self) -> tuple[int, ...]:
        """Layers whose hidden states the drafter asked for."""
        return self.drafter.needs.taps if self.drafter is not None else ()

    @property
    def prefilling(self) -> bool:
        return self.first_token_at is None

    def finish(self, reason: FinishReason) -> None:
        """End the request; figures are final from here on."""
        self.finish_reason = reason
        if self.first_token_at is not None:
            self.counters.predicted_ms = (time.perf_counter() - self.first_token_at) * 1e3

    def fail(self, error: Exception) -> None:
        """End the request with an error, which is its own."""
        if not self.done:
            self.fault = error
            self.finish("error")

    def end_drafting(self, error: Exception) -> None:
        """Go on without a drafter that failed, and say so."""
        drafter, self.drafter = self.drafter, None
        self.drafting_ended = f"{type(error).__name__}: {error}"
        self.counters.drafter_faults += 1
        LOG.warning(
            "the drafter of a request failed, which goes on without drafts (%s)",
            self.drafting_ended,
            exc_info=error,
        )
        if drafter is not None:
            with suppress(Exception):  # It has failed once already, and that was said.
                drafter.close()

    def restart(self, number: int) -> None:
        """Begin anew on the stage as session `number`, after the stage has lost the state.

        What was committed stays; what was in flight never happened. All but the pending token is
        sent again as a prompt, which gives the same bits as before (docs/losslessness.md).
        """
        self.id = number
        self.counters.windows_voided += self.ledger.restart()
        self.in_flight = self.prefilled = self.answered = self.keep_at = 0
        self.sampled, self.boundary, self.drafting = None, (), (0, 0.0)
        self.opened_at = 0.0
        if self.prefilling:
            self.prefill_end = self.prompt_len
            self.scores = None if self.scores is None else []
        else:
            self.prefill_end = len(self.tokens) - 1
        self.suspect = True
        self.counters.restarts += 1

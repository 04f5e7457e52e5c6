"""One request: its tokens, its windows in flight, its drafter, and when it ends."""

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Literal

from torch import Tensor

from outrider.draft.base import Drafter
from outrider.engine.budget import Budget
from outrider.engine.ledger import Issued, Ledger, Verdict
from outrider.engine.text import TextStream
from outrider.errors import StageError
from outrider.records import Commit, Context, Draft, Reply, TokenLogprob, Window
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


def next_prefill(session: Session, rows: int = PREFILL_ROWS) -> Window:
    """The next piece of the prompt; the target's token is wanted after the last one.

    Pieces end on the grid, at the place to keep, and have `rows` rows at most, a multiple of it.
    """
    start = session.prefilled
    end = min(start - start % GRID + rows, session.prefill_end)
    if start < session.keep_at < end:
        end = session.keep_at
    session.prefilled = end
    session.served = time.perf_counter()
    wanted, given = int(session.prefilling and end == session.prompt_len), tuple[int, ...]()
    if session.scores is not None and session.prefilling:
        wanted, given = end - start, tuple(session.tokens[start + 1 : end + 1])
    return Window(
        session=session.id,
        id=PREFILL_ID,
        epoch=0,
        start=start,
        floor=end,
        tokens=tuple(session.tokens[start:end]),
        wanted=wanted,
        given=given,
    )


def to_window(session: Session, issued: Issued) -> Window:
    """An issued window as the stage takes it. Positions up to the pending one are final."""
    probs = None
    if session.sampled is not None and issued.drafts:
        probs = session.sampled.probs
    return Window(
        session=session.id,
        id=issued.id,
        epoch=issued.epoch,
        start=issued.start,
        floor=len(session.tokens) - 1 if issued.drafts else issued.start + 1,
        tokens=issued.tokens,
        wanted=len(issued.tokens),
        opens_epoch=issued.opens_epoch,
        draft_probs=probs,
    )


def fill(session: Session) -> Iterator[Window]:
    """All windows that can be issued now, refilling the queue of drafts as it runs low.

    Each goes out before the next is drafted.
    """
    ledger = session.ledger
    if not ledger.begun and (shape := session.budget.shape()):
        ledger.width, ledger.depth = shape
    while ledger.row_room:
        session.sampled = None
        while _refill(session) and ledger.runs_ahead:
            pass  # More would follow at once in a window of its own, at the price of a pass.
        if ledger.begun and not ledger.queued:
            break
        _occupy(session)
        window = to_window(session, ledger.issue(session.tokens[-1]))
        if window.opens_epoch:
            session.opened_at = session.occupied_at
        session.counters.windows_opened += 1
        session.counters.max_in_flight = max(session.counters.max_in_flight, ledger.in_flight)
        yield window


def _occupy(session: Session) -> None:
    """Count the time since the number of windows in flight last changed."""
    now = time.perf_counter()
    session.counters.occupy(session.ledger.in_flight, (now - session.occupied_at) * 1e3)
    session.occupied_at = now


def _refill(session: Session) -> bool:
    """Ask the drafter for what the next window still needs, within what may be generated.

    Returns whether it had something.
    """
    ledger, drafter = session.ledger, session.drafter
    wanted = session.budget.choose()
    if drafter is None or wanted < 1:
        return False
    suffix = ledger.suffix
    # The last token of an epoch is the target's own, so one fewer than remain can be drafts.
    wanted = min(wanted, ledger.draft_room) - ledger.queued
    wanted = min(wanted, session.remaining - 1 - len(suffix))
    if wanted < 1:
        return False
    began = time.perf_counter()
    context = Context(session.tokens, suffix)
    draft = _ask(session, lambda: drafter.propose(context, wanted))
    elapsed = (time.perf_counter() - began) * 1e3
    session.counters.draft_ms += elapsed
    session.counters.draft_rollback_ms += draft.rollback_ms if draft else 0.0
    drafted, spent = session.drafting
    session.drafting = (drafted + (len(draft.tokens) if draft else 0), spent + elapsed)
    _count_refill(session, draft, elapsed, refill=ledger.begun)
    if draft is None or not draft.tokens:
        return False
    session.sampled = draft if draft.probs is not None else None
    ledger.offer(draft.tokens, draft.source)
    return True


def _ask(session: Session, what: Callable[[], Draft | None]) -> Draft | None:
    """Call the session's drafter. A drafter that fails is let go, and the session goes on plainly:
    what the target says does not depend on it."""
    try:
        return what()
    except Exception as error:
        end_drafting(session, error)
        return None


def end_drafting(session: Session, error: Exception) -> None:
    """Go on without a drafter that failed, and say so."""
    drafter, session.drafter = session.drafter, None
    session.drafting_ended = f"{type(error).__name__}: {error}"
    session.counters.drafter_faults += 1
    LOG.warning(
        "the drafter of a request failed, which goes on without drafts (%s)",
        session.drafting_ended,
        exc_info=error,
    )
    if drafter is not None:
        with suppress(Exception):  # It has failed once already, and that was said.
            drafter.close()


def _tell(session: Session, commit: Commit) -> None:
    """Let the drafter know of a commit."""
    drafter = session.drafter
    if drafter is not None:
        _ask(session, lambda: drafter.observe(commit))


def _count_refill(session: Session, draft: Draft | None, ms: float, *, refill: bool) -> None:
    counters, found = session.counters, len(draft.tokens) if draft else 0
    if refill:
        counters.refill_attempts += 1
        counters.refill_hits += found > 0
        counters.refill_misses += found == 0
        counters.refill_tokens += found
    if draft is None or not found:
        return
    counters.propose(draft.source, found)
    if draft.source == session.fallback:
        counters.fallback_proposals += 1
        counters.fallback_tokens += found
        counters.fallback_ms += ms


def absorb(session: Session, reply: Reply) -> int | None:
    """Take a reply in: commit, observe, emit. Returns an epoch that became void, if one did.

    Raises the fault that a reply carries.
    """
    session.in_flight -= 1
    if reply.fault is not None:
        raise reply.fault
    counters = session.counters
    counters.verify_ms += reply.verify_ms
    if reply.rollback in ("log", "snapshots", "checkpoint"):
        counters.roll_back(reply.rollback, reply.rollback_ms)
    elif reply.rollback:
        counters.rollback_ms += reply.rollback_ms
    if reply.id == PREFILL_ID:
        _absorb_prefill(session, reply)
        return None
    epoch = session.ledger.epoch
    _occupy(session)
    verdict = session.ledger.judge(reply.id, reply.tokens)
    if verdict.stale:
        counters.windows_skipped += reply.skipped
        counters.stale_ms += reply.verify_ms
        return None
    counters.rejected += verdict.rejected
    counters.judge(verdict.sources, verdict.accepted)
    counters.epochs_closed += verdict.closes
    counters.windows_voided += verdict.voided
    source = verdict.sources[0] if verdict.sources else None
    rows = max(reply.pass_rows, len(reply.tokens))
    session.budget.share(rows, max(reply.pass_sessions, 1), reply.pass_prompts)
    session.budget.timed(rows + reply.pass_prompts, reply.verify_ms, *session.drafting)
    session.drafting = (0, 0.0)
    if session.opened_at:
        waited = (session.occupied_at - session.opened_at) * 1e3
        session.budget.answered(waited, reply.verify_ms)
        session.opened_at = 0.0
    # The boundary may have judged one draft more than the window held.
    judged = max(verdict.verified, verdict.accepted + verdict.rejected)
    session.budget.learn(source, judged, verdict.accepted)
    position = len(session.tokens)
    _commit(session, verdict, _logprobs(session, verdict, reply))
    _observe(session, verdict, position, reply)
    return epoch if verdict.voided else None


def _logprobs(session: Session, verdict: Verdict, reply: Reply) -> tuple[TokenLogprob, ...]:
    """One entry for each committed token. What a reply says of its boundary belongs to the next
    window's first draft, if the epoch goes on."""
    entries = (*session.boundary, *reply.logprobs)
    count = len(verdict.tokens)
    session.boundary = () if verdict.closes else entries[count : count + 1]
    return entries[:count]


def _absorb_prefill(session: Session, reply: Reply) -> None:
    if not session.prefilling:
        return  # Rows that were run again after the stage had lost them.
    picked, logprobs = reply.tokens, reply.logprobs
    if session.scores is not None:
        given = min(len(picked), session.prompt_len - 1 - len(session.scores))
        session.scores += logprobs[:given]
        picked, logprobs = picked[given:], logprobs[given:]
    if picked:
        _first_token(session, picked, logprobs)
    if session.drafter is None or session.done:
        return
    if session.taps:
        if (piece := _prompt_piece(session, reply)) is not None:
            _tell(session, piece)
    elif picked:
        _tell(session, Commit(position=0, tokens=tuple(session.tokens)))


def _first_token(
    session: Session, picked: tuple[int, ...], logprobs: tuple[TokenLogprob, ...]
) -> None:
    now = time.perf_counter()
    session.first_token_at = session.occupied_at = now
    counters = session.counters
    counters.prompt_n, counters.prompt_ms = session.prompt_len, (now - session.began) * 1e3
    counters.verify_ms = 0.0  # the prefill's time is prompt_ms
    counters.first_tokens = 1
    session.ledger.length = len(session.tokens) + 1
    _commit(session, Verdict(tokens=picked), logprobs)
    if session.scores:
        session.pieces[-1] = replace(session.pieces[-1], prompt_logprobs=tuple(session.scores))


def _prompt_piece(session: Session, reply: Reply) -> Commit | None:
    """The rows of one piece of the prompt, each with the token after it; those that the drafter has
    got before are left out."""
    features = _features(reply)
    known = session.observed - session.answered
    session.answered += len(features)
    features = features[known:]
    if not len(features):
        return None
    start = session.observed
    session.observed += len(features)
    position = start + 1 if start else 0
    tokens = tuple(session.tokens[position : session.observed + 1])
    return Commit(position=position, tokens=tokens, features=features)


def _features(reply: Reply, rows: int | None = None) -> Tensor:
    """The first `rows` hidden states of a reply, or all."""
    if not isinstance(reply.taps, Tensor):
        raise StageError(
            f"the reply to window {reply.id} has no hidden states, but the drafter reads them; "
            "use a stage that hands them over, or a method that needs none."
        )
    return reply.taps if rows in (None, reply.taps.shape[0]) else reply.taps[:rows]


def _observe(session: Session, verdict: Verdict, position: int, reply: Reply) -> None:
    if session.drafter is None or session.done:
        return
    _tell(
        session,
        Commit(
            position=position,
            tokens=verdict.tokens,
            accepted=verdict.accepted,
            source=verdict.sources[0] if verdict.sources else None,
            features=_features(reply, len(verdict.tokens)) if session.taps else None,
        ),
    )


def _commit(session: Session, verdict: Verdict, logprobs: Sequence[TokenLogprob]) -> None:
    """Append what was committed, cut at the first end token, stop string or limit."""
    tokens = verdict.tokens
    kept, reason = _cut_by_limits(session, tokens)
    piece = session.text.push(tokens[:kept])
    text = piece.text
    if piece.stop is not None:
        kept, reason = piece.kept, "stop"
    elif reason is not None:
        end = session.text.flush()
        text += end.text
        reason = "stop" if end.stop is not None else reason
    counters = session.counters
    counters.emitted += kept
    counters.cut += len(tokens) - kept
    session.suspect = False
    session.tokens.extend(tokens[:kept])
    sources = (*verdict.sources[: verdict.accepted], *[TARGET] * (len(tokens) - verdict.accepted))
    session.pieces.append(
        Piece(
            text=text,
            tokens=tokens[:kept],
            sources=sources[:kept],
            corrected=verdict.rejected,
            logprobs=tuple(logprobs[:kept]),
        )
    )
    if reason is not None:
        finish(session, reason)


def _cut_by_limits(session: Session, tokens: tuple[int, ...]) -> tuple[int, FinishReason | None]:
    """Number of `tokens` that stay, and why the request ends with them if it does."""
    room = session.remaining
    for index, token in enumerate(tokens[:room]):
        if token in session.limits.end_tokens:
            return index + 1, "stop"
    return (room, "length") if len(tokens) >= room else (len(tokens), None)


def finish(session: Session, reason: FinishReason) -> None:
    """End the request; figures are final from here on."""
    session.finish_reason = reason
    if session.first_token_at is not None:
        session.counters.predicted_ms = (time.perf_counter() - session.first_token_at) * 1e3


def fail(session: Session, error: Exception) -> None:
    """End the request with an error, which is its own."""
    if not session.done:
        session.fault = error
        finish(session, "error")


def restart(session: Session, number: int) -> None:
    """Begin anew on the stage as session `number`, after the stage has lost the state.

    What was committed stays; what was in flight never happened. All but the pending token is sent
    again as a prompt, which gives the same bits as before (docs/losslessness.md).
    """
    session.id = number
    session.counters.windows_voided += session.ledger.restart()
    session.in_flight = session.prefilled = session.answered = session.keep_at = 0
    session.sampled, session.boundary, session.drafting = None, (), (0, 0.0)
    session.opened_at = 0.0
    if session.prefilling:
        session.prefill_end = session.prompt_len
        session.scores = None if session.scores is None else []
    else:
        session.prefill_end = len(session.tokens) - 1
    session.suspect = True
    session.counters.restarts += 1

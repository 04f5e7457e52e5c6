"""The one production loop: propose, issue, run, judge, commit, emit, observe, settle.

Each verb is a function here, and `step` calls them; docs/architecture.md follows one window through
them. A serial run is depth 1 and one session; everything else is more of the same.

A failure ends the session that it belongs to and no other: what is raised while a session is served
is its own, and a reply carries the fault of its window. Where a stage fails without saying whose
failure it was, `step` raises; the caller brings the `survivors` back from their tokens, and they
run one at a time until each has brought a token or failed alone.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from torch import Tensor

from outrider.engine.ledger import Outcome
from outrider.engine.session import (
    GRID,
    PREFILL_ID,
    PREFILL_ROWS,
    TARGET,
    FinishReason,
    Piece,
    Session,
)
from outrider.errors import StageError
from outrider.records import Commit, Context, Draft, Reply, TokenLogprob, Window
from outrider.stage.base import Stage

MOST_RESTARTS = 2
"""How often a session is brought back after a pass that failed for an unknown session's sake."""


def step(sessions: Mapping[int, Session], stage: Stage, prompt_rows: int = PREFILL_ROWS) -> None:
    """Issue what can be issued for every live session, then take in what the stage answers.

    Prompts get `prompt_rows` rows together, so that running sessions move on beside long ones.
    Raises what the stage fails with; the states of all sessions that were in it are lost then.
    """
    live = _in_turn(sessions.values())
    for session in live:
        if not session.has_prompt and not session.prefilling:
            issue(session, stage)
    for session, window in _prompts(live, prompt_rows):
        _submit(session, window, stage)
    run(sessions, stage)


def survivors(sessions: Iterable[Session], error: Exception) -> list[Session]:
    """After `step` raised: the sessions that were in the pass, to be closed on the stage and
    restarted. One that was alone there, or has been brought back too often, ends with the error.

    Raises the error where nothing was in flight, so that it is nobody's.
    """
    flying = [session for session in sessions if session.in_flight and not session.done]
    if not flying:
        raise error
    for session in flying:
        if len(flying) == 1 or session.counters.restarts >= MOST_RESTARTS:
            session.fail(error)
    return [session for session in flying if not session.done]


def propose(session: Session) -> bool:
    """Ask the drafter for what the next window still needs, within what may be generated.

    Returns whether it had something, which the ledger then has queued.
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


def issue(session: Session, stage: Stage) -> None:
    """Send the windows of one session that can be sent now, each before the next is drafted.

    Raises what the stage fails with.
    """
    opens = not session.ledger.begun
    while not session.done:
        try:
            if opens and (shape := session.budget.shape()):
                session.ledger.width, session.ledger.depth = shape
            opens = False
            window = _next_window(session)
        except Exception as error:
            session.fail(error)
            return
        if window is None:
            return
        _submit(session, window, stage)
        if session.done or stage.run_ready():
            return  # What a reply says may change what is worth drafting.


def run(sessions: Mapping[int, Session], stage: Stage) -> None:
    """Run what is due on the stage, and take in what it answers; raises what the stage does."""
    for reply in stage.run_batch():
        owner = sessions.get(reply.session)
        if owner is None or owner.done:
            continue
        try:
            take(owner, reply, stage)
        except Exception as error:
            owner.fail(error)


def take(session: Session, reply: Reply, stage: Stage) -> None:
    """Take a reply in: judge, commit, emit, observe, settle. Raises the fault that it carries."""
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
        _take_prompt(session, reply)
        return
    epoch, position = session.ledger.epoch, len(session.tokens)
    outcome = judge(session, reply)
    if outcome.stale:
        return
    logprobs = _logprobs(session, outcome, reply)
    text, kept = commit(session, outcome.tokens)
    emit(session, outcome, text, kept, logprobs)
    observe(session, outcome, position, reply)
    if outcome.voided:
        settle(session, epoch, stage)


def judge(session: Session, reply: Reply) -> Outcome:
    """Compare the drafts of a window with what the target says, and learn from it."""
    counters = session.counters
    _occupy(session)
    outcome = session.ledger.judge(reply.id, reply.tokens)
    if outcome.stale:
        counters.windows_skipped += reply.skipped
        counters.stale_ms += reply.verify_ms
        return outcome
    counters.rejected += outcome.rejected
    counters.judge(outcome.sources, outcome.accepted)
    counters.epochs_closed += outcome.closes
    counters.windows_voided += outcome.voided
    rows = max(reply.pass_rows, len(reply.tokens))
    session.budget.share(rows, max(reply.pass_sessions, 1), reply.pass_prompts)
    session.budget.timed(rows + reply.pass_prompts, reply.verify_ms, *session.drafting)
    session.drafting = (0, 0.0)
    if session.opened_at:
        waited = (session.occupied_at - session.opened_at) * 1e3
        session.budget.answered(waited, reply.verify_ms)
        session.opened_at = 0.0
    # The boundary may have judged one draft more than the window held.
    judged = max(outcome.verified, outcome.accepted + outcome.rejected)
    session.budget.learn(outcome.source, judged, outcome.accepted)
    return outcome


def commit(session: Session, tokens: tuple[int, ...]) -> tuple[str, int]:
    """Append what became final, cut at the first end token, stop string or limit; the request ends
    there. Returns the text that it completes, and how many of `tokens` stay."""
    kept, reason = _cut_by_limits(session, tokens)
    final = session.text.push(tokens[:kept])
    text = final.text
    if final.stop is not None:
        kept, reason = final.kept, "stop"
    elif reason is not None:
        end = session.text.flush()
        text += end.text
        reason = "stop" if end.stop is not None else reason
    session.counters.emitted += kept
    session.counters.cut += len(tokens) - kept
    session.suspect = False
    session.tokens.extend(tokens[:kept])
    if reason is not None:
        session.finish(reason)
    return text, kept


def emit(
    session: Session, outcome: Outcome, text: str, kept: int, logprobs: Sequence[TokenLogprob]
) -> None:
    """Hand the first `kept` tokens of an outcome to the caller, with their text."""
    own = len(outcome.tokens) - outcome.accepted
    sources = (*outcome.sources[: outcome.accepted], *[TARGET] * own)
    session.pieces.append(
        Piece(
            text=text,
            tokens=outcome.tokens[:kept],
            sources=sources[:kept],
            corrected=outcome.rejected,
            logprobs=tuple(logprobs[:kept]),
        )
    )


def observe(session: Session, outcome: Outcome, position: int, reply: Reply) -> None:
    """Tell the drafter what became final, whoever drafted it."""
    if session.drafter is None or session.done:
        return
    _tell(
        session,
        Commit(
            position=position,
            tokens=outcome.tokens,
            accepted=outcome.accepted,
            source=outcome.source,
            features=_features(reply, len(outcome.tokens)) if session.taps else None,
        ),
    )


def settle(session: Session, epoch: int, stage: Stage) -> None:
    """Let the stage skip what is in flight of an epoch that ended with a rejected draft.

    No row is taken back by this: the next window's `start` says where each state settles
    (`StageSession.roll_back`).
    """
    stage.void(session.id, epoch)


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


def _next_window(session: Session) -> Window | None:
    """The next window, its drafts proposed; None where none can be issued now."""
    ledger = session.ledger
    if not ledger.row_room:
        return None
    session.sampled = None
    while propose(session) and ledger.runs_ahead:
        pass  # More would follow at once in a window of its own, at the price of a pass.
    if ledger.begun and not ledger.queued:
        return None
    _occupy(session)
    probs = session.sampled.probs if session.sampled is not None else None
    window = ledger.issue(session.tokens[-1], session.id, probs)
    if window.opens_epoch:
        session.opened_at = session.occupied_at
    session.counters.windows_opened += 1
    session.counters.max_in_flight = max(session.counters.max_in_flight, ledger.in_flight)
    return window


def _submit(session: Session, window: Window, stage: Stage) -> None:
    try:
        stage.submit(window)
        session.in_flight += 1
    except Exception as error:
        session.fail(error)


def _prompts(live: Iterable[Session], rows: int) -> Iterator[tuple[Session, Window]]:
    """Pieces of prompts in equal shares on the grid, the one that waited longest first."""
    waiting = [session for session in live if session.has_prompt and not session.done]
    waiting.sort(key=lambda session: session.served)
    for place, session in enumerate(waiting):
        if rows < GRID:
            return
        share = rows // (len(waiting) - place) // GRID * GRID
        window = next_prefill(session, max(share, GRID))
        rows -= len(window.tokens)
        yield session, window


def _in_turn(sessions: Iterable[Session]) -> list[Session]:
    """The sessions that this pass is for: all that live, or one suspect alone."""
    live = [session for session in sessions if not session.done]
    suspect = next((session for session in live if session.suspect), None)
    return [suspect] if suspect else live


def _occupy(session: Session) -> None:
    """Count the time since the number of windows in flight last changed."""
    now = time.perf_counter()
    session.counters.occupy(session.ledger.in_flight, (now - session.occupied_at) * 1e3)
    session.occupied_at = now


def _ask(session: Session, what: Callable[[], Draft | None]) -> Draft | None:
    """Call the session's drafter. A drafter that fails is let go, and the session goes on plainly:
    what the target says does not depend on it."""
    try:
        return what()
    except Exception as error:
        session.end_drafting(error)
        return None


def _tell(session: Session, final: Commit) -> None:
    """Let the drafter know of a commit."""
    drafter = session.drafter
    if drafter is not None:
        _ask(session, lambda: drafter.observe(final))


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


def _logprobs(session: Session, outcome: Outcome, reply: Reply) -> tuple[TokenLogprob, ...]:
    """One entry for each committed token. What a reply says of its boundary belongs to the next
    window's first draft, if the epoch goes on."""
    entries = (*session.boundary, *reply.logprobs)
    count = len(outcome.tokens)
    session.boundary = () if outcome.closes else entries[count : count + 1]
    return entries[:count]


def _take_prompt(session: Session, reply: Reply) -> None:
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
    text, kept = commit(session, picked)
    emit(session, Outcome(tokens=picked), text, kept, logprobs)
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


def _cut_by_limits(session: Session, tokens: tuple[int, ...]) -> tuple[int, FinishReason | None]:
    """Number of `tokens` that stay, and why the request ends with them if it does."""
    room = session.remaining
    for index, token in enumerate(tokens[:room]):
        if token in session.limits.end_tokens:
            return index + 1, "stop"
    return (room, "length") if len(tokens) >= room else (len(tokens), None)

"""The one production loop: propose, issue, run, judge, commit, settle, observe, emit.

A serial run is depth 1 and one session; everything else is more of the same.

A failure ends the session that it belongs to and no other: what is raised while a session is served
is its own, and a reply carries the fault of its window. Where a stage fails without saying whose
failure it was, `step` raises; the caller brings the `survivors` back from their tokens, and they
run one at a time until each has brought a token or failed alone.
"""

from collections.abc import Iterable, Iterator, Mapping

from outrider.engine.session import (
    GRID,
    PREFILL_ROWS,
    Session,
    absorb,
    fail,
    fill,
    next_prefill,
)
from outrider.records import Reply, Window
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
            _issue(session, stage)
    for session, window in _prompts(live, prompt_rows):
        _submit(session, window, stage)
    for reply in stage.poll():
        owner = sessions.get(reply.session)
        if owner is not None and not owner.done:
            _take(owner, reply, stage)


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
            fail(session, error)
    return [session for session in flying if not session.done]


def _issue(session: Session, stage: Stage) -> None:
    """Send the windows of one session that can be sent now; raises what the stage fails with."""
    windows = fill(session)
    while (window := _next(session, windows)) is not None:
        _submit(session, window, stage)
        if session.done or stage.replied:
            return  # What a reply says may change what is worth drafting.


def _next(session: Session, windows: Iterator[Window]) -> Window | None:
    try:
        return next(windows, None)
    except Exception as error:
        fail(session, error)
        return None


def _submit(session: Session, window: Window, stage: Stage) -> None:
    try:
        stage.submit(window)
        session.in_flight += 1
    except Exception as error:
        fail(session, error)


def _take(session: Session, reply: Reply, stage: Stage) -> None:
    try:
        void = absorb(session, reply)
        if void is not None:
            stage.void(session.id, void)
    except Exception as error:
        fail(session, error)


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

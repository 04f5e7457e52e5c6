"""The one production loop: propose, issue, run, judge, commit, settle, observe, emit.

A serial run is depth 1 and one session; everything else is more of the same.
"""

from collections.abc import Iterable, Iterator, Mapping

from outrider.core_types import Window
from outrider.engine.session import (
    GRID,
    PREFILL_ROWS,
    Session,
    absorb,
    fill,
    next_prefill,
)
from outrider.stage.base import Stage


def step(sessions: Mapping[int, Session], stage: Stage, prompt_rows: int = PREFILL_ROWS) -> None:
    """Issue what can be issued for every live session, then take in what the stage answers.

    Prompts get `prompt_rows` rows together, so that running sessions move on beside long ones.
    """
    live = _live(sessions.values())
    for session in live:
        if not session.prefilling:
            for window in fill(session):
                stage.submit(window)
                if stage.replied:
                    break  # What it says may change what is worth drafting.
    for window in _prompts(live, prompt_rows):
        stage.submit(window)
    for reply in stage.poll():
        session = sessions[reply.session]
        if session.done:
            continue
        void = absorb(session, reply)
        if void is not None:
            stage.void(session.id, void)


def _prompts(live: Iterable[Session], rows: int) -> Iterator[Window]:
    """Pieces of prompts in equal shares on the grid, the one that waited longest first."""
    waiting = [session for session in live if session.prefilled < session.prompt_len]
    waiting.sort(key=lambda session: session.served)
    for place, session in enumerate(waiting):
        if rows < GRID:
            return
        share = rows // (len(waiting) - place) // GRID * GRID
        window = next_prefill(session, max(share, GRID))
        rows -= len(window.tokens)
        yield window


def _live(sessions: Iterable[Session]) -> list[Session]:
    return [session for session in sessions if not session.done]

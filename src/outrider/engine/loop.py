"""The one production loop: propose, issue, run, judge, commit, settle, observe, emit.

A serial run is depth 1 and one session; everything else is more of the same.
"""

from collections.abc import Iterable, Mapping

from outrider.engine.session import Session, absorb, fill, next_prefill
from outrider.stage.base import Stage


def step(sessions: Mapping[int, Session], stage: Stage) -> None:
    """Issue what can be issued for every live session, then take in what the stage answers."""
    for session in _live(sessions.values()):
        if session.prefilling:
            if session.prefilled < session.prompt_len:
                stage.submit(next_prefill(session))
        else:
            for window in fill(session):
                stage.submit(window)
                if stage.replied:
                    break  # What it says may change what is worth drafting.
    for reply in stage.poll():
        session = sessions[reply.session]
        if session.done:
            continue
        void = absorb(session, reply)
        if void is not None:
            stage.void(session.id, void)


def _live(sessions: Iterable[Session]) -> list[Session]:
    return [session for session in sessions if not session.done]

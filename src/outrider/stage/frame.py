"""A window on its way through the stages of a chain."""

from dataclasses import dataclass

from torch import Tensor

from outrider.records import Reply, Window
from outrider.stage.base import Picked


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """A window with what the stages before made of it.

    hidden: tensor [rows, hidden] to start from; None before the first stage and where skipped.
    taps: tensor [rows, tapped widths so far]. picked: set by the last stage. Times in milliseconds
    are sums over the stages; `rollback` is the costliest kind that any of them needed. The pass of
    the last stage decoded `pass_sessions` in `pass_rows` rows beside `pass_prompts` of prompts.
    `fault`: the error that this window ended with; later stages pass it on and run nothing.
    """

    window: Window
    hidden: Tensor | None = None
    taps: Tensor | None = None
    picked: Picked | None = None
    skipped: bool = False
    verify_ms: float = 0.0
    pass_rows: int = 0
    pass_sessions: int = 0
    pass_prompts: int = 0
    rollback_ms: float = 0.0
    rollback: str | None = None
    fault: Exception | None = None

    @property
    def is_answered(self) -> bool:
        """True if the coordinator hears of it: not of prompt rows that tell it nothing."""
        return self.window.wanted > 0 or self.taps is not None or self.fault is not None

    @property
    def nbytes(self) -> int:
        """Bytes of its tensors and token ids on a wire."""
        tensors = [part for part in (self.hidden, self.taps) if part is not None]
        return 4 * len(self.window.tokens) + sum(part.nbytes for part in tensors)


@dataclass(frozen=True, slots=True)
class Void:
    """Windows of `session` up to `epoch` need not run."""

    session: int
    epoch: int

    @property
    def nbytes(self) -> int:
        return 16


def to_reply(frame: Frame) -> Reply:
    """The reply that the last stage gives."""
    window, picked = frame.window, frame.picked
    return Reply(
        session=window.session,
        id=window.id,
        skipped=frame.skipped,
        tokens=picked.tokens if picked else (),
        logprobs=picked.logprobs if picked else (),
        taps=frame.taps,
        verify_ms=frame.verify_ms,
        pass_rows=frame.pass_rows,
        pass_sessions=frame.pass_sessions,
        pass_prompts=frame.pass_prompts,
        rollback_ms=frame.rollback_ms,
        rollback=frame.rollback,
        fault=frame.fault,
    )


def take_oldest(replies: list[Reply]) -> list[Reply]:
    """Remove and return the oldest reply of each session: more can be issued before the next."""
    oldest: dict[int, Reply] = {}
    for reply in replies:
        oldest.setdefault(reply.session, reply)
    replies[:] = [reply for reply in replies if oldest[reply.session] is not reply]
    return list(oldest.values())

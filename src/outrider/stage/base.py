"""A stage as the engine sees it: something that runs windows and answers them in order.

The whole model in one process is the one-stage case. A stage owns its part of every sequence's
state, settles it to each window's `start` and forgets what lies below `floor`; the last stage of
a chain picks the tokens. Between the stages of a chain a window travels in a `Frame`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from torch import Tensor

from outrider.errors import StageError
from outrider.records import Reply, Window
from outrider.sampling.params import SamplingParams

NO_SNAPSHOTS = "this stage holds states elsewhere and copies none of them."


class Stage(Protocol):
    """Runs windows of many sessions; replies to the windows of one session keep their order.

    vocab_size: rows of the target's head. max_length: positions that a sequence can have. exact: a
    verify row has bit for bit the logits of plain decoding. has_snapshots: a session can begin from
    a copy of another one's state; without it, what is said of snapshots raises StageError.
    """

    vocab_size: int
    max_length: int
    exact: bool
    has_snapshots: bool = False

    def open(
        self, session: int, sampling: SamplingParams, prompt_len: int, taps: Sequence[int] = ()
    ) -> None:
        """Begin a session; `sampling` has its seed. `taps` are handed over for all rows."""

    def submit(self, window: Window) -> None:
        """Queue a window; returns at once."""

    def void(self, session: int, epoch: int) -> None:
        """Windows of `session` up to `epoch` need not run; each is still answered, as skipped."""

    def run_ready(self) -> bool:
        """Run what is due already, where that does not wait for a `run_batch`.

        Returns whether a reply that was under way has come, so that issuing more should wait.
        """

    def run_batch(self) -> list[Reply]:
        """Run what is due and return what came of it, one reply of a session at most; blocks until
        there is one, if any is owed.

        A failure that belongs to one session is a reply with a `fault`. Raises only where it cannot
        be told whose failure it was: the states of all sessions with windows in flight are lost
        then, and they must be closed.
        """

    def close(self, session: int) -> None:
        """End a session and free its state; its windows in flight are not answered any more.

        Harmless for a session that is not open. A stage that turns out to be lost here says so at
        the next `run_batch`.
        """

    def check(self) -> None:
        """Raise if a session's state contradicts its bookkeeping (tests, idle checks)."""

    @property
    def num_sessions(self) -> int:
        """Sessions open now."""

    def shutdown(self) -> None:
        """End what the stage started, its processes for one; harmless if done twice."""

    def snapshot_nbytes(self, session: int) -> int:
        """Bytes that a copy of a session's state would have."""
        raise StageError(NO_SNAPSHOTS)

    def snapshot(self, session: int, key: int) -> int:
        """Copy the state of a session that has nothing in flight under `key`; returns its bytes."""
        raise StageError(NO_SNAPSHOTS)

    def open_from(
        self,
        key: int,
        session: int,
        sampling: SamplingParams,
        prompt: Sequence[int],
        taps: Sequence[int] = (),
    ) -> None:
        """As `open`, restoring snapshot `key`: a state with a part of `prompt`."""
        raise StageError(NO_SNAPSHOTS)

    def drop_snapshot(self, key: int) -> None:
        """Free what was copied under `key`."""
        raise StageError(NO_SNAPSHOTS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """A window on its way through the stages of a chain, and the reply as far as it is known.

    hidden: tensor [rows, hidden] to start from; None before the first stage and where skipped.
    Of the reply, the taps are of the widths tapped so far, times are sums over the stages so far,
    and `rollback` is the costliest kind that any of them needed. The tokens are the last stage's,
    whose pass it also counts. A frame with a `fault` is passed on and runs nothing.
    """

    window: Window
    reply: Reply
    hidden: Tensor | None = None

    @classmethod
    def of(cls, window: Window, hidden: Tensor | None = None, **known: Any) -> "Frame":
        """The frame of a window whose reply has the `known` fields so far."""
        reply = Reply(session=window.session, id=window.id, **known)
        return cls(window=window, reply=reply, hidden=hidden)

    def ended(self, **known: Any) -> "Frame":
        """The frame of a window that runs no further, with `known` fields of the reply."""
        return replace(self, hidden=None, reply=replace(self.reply, **known))

    @property
    def taps(self) -> Tensor | None:
        """Tensor [rows, tapped widths so far]."""
        return self.reply.taps if isinstance(self.reply.taps, Tensor) else None

    @property
    def is_answered(self) -> bool:
        """True if the coordinator hears of it: not of prompt rows that tell it nothing."""
        reply = self.reply
        return self.window.wanted > 0 or reply.taps is not None or reply.fault is not None

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


def take_oldest(replies: list[Reply]) -> list[Reply]:
    """Remove and return the oldest reply of each session: more can be issued before the next."""
    oldest: dict[int, Reply] = {}
    for reply in replies:
        oldest.setdefault(reply.session, reply)
    replies[:] = [reply for reply in replies if oldest[reply.session] is not reply]
    return list(oldest.values())

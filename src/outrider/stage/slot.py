"""One session's place on a local stage: its state, its picker and its way back."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from torch import Tensor

from outrider.errors import StageError
from outrider.records import Window
from outrider.stage.base import Picker
from outrider.stage.frame import Frame
from outrider.state.base import State
from outrider.state.rollback import Rollback
from outrider.state.sequence import Checkpoint

Row = int | Tensor
"""Input of a row on a stage: a token id, or the hidden state [hidden] of the stage before."""


@dataclass(slots=True)
class Replay:
    """Checkpoints of windows that cannot be taken back otherwise, oldest first, and the rows
    from position `first` on: all that a settle could keep of what is in flight."""

    first: int = 0
    checkpoints: list[Checkpoint] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)

    def reaches(self, length: int) -> bool:
        """True if a checkpoint lies at or below `length`."""
        return bool(self.checkpoints) and self.checkpoints[0].length <= length

    def drop_below(self, floor: int) -> None:
        """Forget what no settle can need: all checkpoints but the newest at or below `floor`.

        This is the floor of the session, below which no window starts. The state's own may be
        higher: it also counts rows whose way back is a checkpoint.
        """
        while len(self.checkpoints) > 1 and self.checkpoints[1].length <= floor:
            self.checkpoints.pop(0)
        first = min(floor, self.checkpoints[0].length) if self.checkpoints else floor
        del self.rows[: max(first - self.first, 0)]
        self.first = max(first, self.first)

    def cut(self, length: int) -> None:
        """Forget what lies after `length`; a state that stands there needs no checkpoint of it."""
        while self.checkpoints and self.checkpoints[-1].length >= length:
            self.checkpoints.pop()
        del self.rows[max(length - self.first, 0) :]

    def restart(self, length: int) -> None:
        """Forget everything: what lies below `length` is final."""
        self.checkpoints.clear()
        self.rows.clear()
        self.first = length


@dataclass(slots=True)
class Slot:
    """A session's state with everything that its windows need; `void_epoch` and below are stale,
    `newest` is the window that came last. After a `fault` nothing runs here any more."""

    state: State
    picker: Picker
    taps: tuple[int, ...]
    queue: deque[Frame] = field(default_factory=deque)
    void_epoch: int = -1
    newest: int = -1
    replay: Replay = field(default_factory=Replay)
    fault: Exception | None = None

    def add(self, frame: Frame) -> None:
        """Queue a frame; StageError for a window that came after a later one.

        Windows of the prompt share one number below 0.
        """
        number = frame.window.id
        if 0 <= number <= self.newest:
            raise StageError(
                f"the stage before it sent window {number} of session {frame.window.session} "
                f"behind window {self.newest}, out of order."
            )
        self.newest = number
        self.queue.append(frame)

    def is_stale(self, frame: Frame) -> bool:
        return frame.skipped or frame.window.epoch <= self.void_epoch

    def judge_oldest(self) -> None:
        """Take the oldest window's predecessors as judged: it is stale, or all of them stay and so
        does its first row, as if it began an epoch."""
        window = self.queue[0].window if self.queue else None
        if window and not window.opens_epoch and not self.is_stale(self.queue[0]):
            judged = replace(window, floor=window.start, opens_epoch=True)
            self.queue[0] = replace(self.queue[0], window=judged)

    def return_to(self, start: int) -> tuple[Rollback | None, Sequence[Row]]:
        """Settle the state at `start`, or as close below as it can be brought without a pass.

        Returns how rows were taken back (None: nothing was) and the rows to run again.
        """
        state = self.state
        if state.length < start:
            raise StageError(f"a window starts at {start}, but only {state.length} tokens came.")
        if state.length == start:
            return None, ()
        if start >= max(state.restorable, state.floor):
            kind = state.rollback(state.length - state.floor)
            state.settle(start)
            self.replay.cut(start)
            return kind, ()
        return Rollback.CHECKPOINT, self._restore(start)

    def _restore(self, start: int) -> Sequence[Row]:
        """Bring the newest checkpoint at or below `start` back; returns the rows up to there."""
        replay = self.replay
        usable = [saved for saved in replay.checkpoints if saved.length <= start]
        if not usable:
            raise StageError(f"no checkpoint reaches back to {start}.")
        self.state.restore(usable[-1])
        replay.checkpoints = usable
        del replay.rows[start - replay.first :]
        return replay.rows[usable[-1].length - replay.first :]

    def cover(self, window: Window) -> Sequence[Row]:
        """Give rows in flight a checkpoint if this window would put them out of the state's reach.

        The state then stands at that checkpoint; returns the rows to run again.
        """
        state, replay = self.state, self.replay
        state.raise_floor(min(window.floor, state.length))
        replay.drop_below(window.floor)
        if not self._needs_checkpoint(window):
            return ()
        # What could not be taken back by now will not have to be: it began an epoch.
        low = max(window.floor, state.floor, state.restorable)
        if state.length <= low or replay.reaches(low):
            return ()
        state.settle(low)
        replay.checkpoints.append(state.checkpoint())
        return replay.rows[low - replay.first :]

    def _needs_checkpoint(self, window: Window) -> bool:
        end = window.end
        if end <= window.floor:
            return False
        # An epoch begins with the pending token, which is not a draft.
        way = self.state.rollback(end - self.state.floor, int(window.opens_epoch))
        return way is Rollback.CHECKPOINT

    def prepare(self, window: Window, rows: Sequence[Row] | Tensor) -> bool:
        """Take a checkpoint if this window needs one; returns whether its rows count as revocable
        by the state itself. `cover` went before."""
        state, replay = self.state, self.replay
        if window.end <= window.floor:
            replay.restart(window.end)  # final rows: no settle goes back after them
            return False
        revocable = not self._needs_checkpoint(window)
        if not revocable:
            replay.checkpoints.append(state.checkpoint())
        if not replay.rows:
            replay.first = window.start
        replay.rows.extend(rows)
        return revocable

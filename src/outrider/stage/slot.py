"""One session's place on a local stage: its state, its picker and its way back."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from outrider.core_types import Window
from outrider.errors import StageError
from outrider.stage.base import Picker
from outrider.state.rollback import Rollback
from outrider.state.sequence import Checkpoint, SequenceState


@dataclass(slots=True)
class Replay:
    """Checkpoints of windows that cannot be taken back otherwise, oldest first, and the tokens
    from position `first` on: all that a settle could keep of what is in flight."""

    first: int = 0
    checkpoints: list[Checkpoint] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)

    def reaches(self, length: int) -> bool:
        """Whether a checkpoint lies at or below `length`."""
        return bool(self.checkpoints) and self.checkpoints[0].length <= length

    def drop_below(self, floor: int) -> None:
        """Forget what no settle can need: all checkpoints but the newest at or below `floor`.

        This is the floor of the session, below which no window starts. The state's own may be
        higher: it also counts rows whose way back is a checkpoint.
        """
        while len(self.checkpoints) > 1 and self.checkpoints[1].length <= floor:
            self.checkpoints.pop(0)
        first = min(floor, self.checkpoints[0].length) if self.checkpoints else floor
        del self.tokens[: max(first - self.first, 0)]
        self.first = max(first, self.first)

    def cut(self, length: int) -> None:
        """Forget what lies behind `length`; a state that stands there needs no checkpoint of it."""
        while self.checkpoints and self.checkpoints[-1].length >= length:
            self.checkpoints.pop()
        del self.tokens[max(length - self.first, 0) :]

    def restart(self, length: int) -> None:
        """Forget everything: what lies below `length` is final."""
        self.checkpoints.clear()
        self.tokens.clear()
        self.first = length


@dataclass(slots=True)
class Slot:
    """A session's state with everything that its windows need; `void_epoch` and below are stale."""

    state: SequenceState
    picker: Picker
    taps: tuple[int, ...]
    queue: deque[Window] = field(default_factory=deque)
    void_epoch: int = -1
    replay: Replay = field(default_factory=Replay)

    def is_stale(self, window: Window) -> bool:
        return window.epoch <= self.void_epoch

    def return_to(self, start: int) -> tuple[Rollback | None, Sequence[int]]:
        """Settle the state at `start`, or as close below as it can be brought without a pass.

        Returns how rows were taken back (None: nothing was) and the tokens to run again.
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

    def _restore(self, start: int) -> Sequence[int]:
        """Bring the newest checkpoint at or below `start` back; returns the tokens up to there."""
        replay = self.replay
        usable = [saved for saved in replay.checkpoints if saved.length <= start]
        if not usable:
            raise StageError(f"no checkpoint reaches back to {start}.")
        self.state.restore(usable[-1])
        replay.checkpoints = usable
        del replay.tokens[start - replay.first :]
        return replay.tokens[usable[-1].length - replay.first :]

    def cover(self, window: Window) -> Sequence[int]:
        """Give rows in flight a checkpoint if this window would put them out of the state's reach.

        The state then stands at that checkpoint; returns the tokens to run again.
        """
        state, replay = self.state, self.replay
        state.raise_floor(min(window.floor, state.length))
        replay.drop_below(window.floor)
        low = max(window.floor, state.floor)
        if not self._needs_checkpoint(window) or state.length <= low or replay.reaches(low):
            return ()
        state.settle(low)
        replay.checkpoints.append(state.checkpoint())
        return replay.tokens[low - replay.first :]

    def _needs_checkpoint(self, window: Window) -> bool:
        if window.end <= window.floor:
            return False
        return self.state.rollback(window.end - self.state.floor) is Rollback.CHECKPOINT

    def prepare(self, window: Window) -> bool:
        """Take a checkpoint if this window needs one; returns whether its rows count as revocable
        by the state itself. `cover` went before."""
        state, replay = self.state, self.replay
        if window.end <= window.floor:
            replay.restart(window.end)  # final rows: no settle goes back behind them
            return False
        revocable = not self._needs_checkpoint(window)
        if not revocable:
            replay.checkpoints.append(state.checkpoint())
        if not replay.tokens:
            replay.first = window.start
        replay.tokens.extend(window.tokens)
        return revocable

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
    """Checkpoints of windows that cannot be taken back otherwise, oldest first, with the tokens
    consumed since the oldest one."""

    checkpoints: list[Checkpoint] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)

    def drop_below(self, floor: int) -> None:
        """Forget checkpoints that no settle can need: all but the newest at or below `floor`."""
        while len(self.checkpoints) > 1 and self.checkpoints[1].length <= floor:
            first = self.checkpoints.pop(0)
            del self.tokens[: self.checkpoints[0].length - first.length]


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
            self._forget_from(start)
            return kind, ()
        return Rollback.CHECKPOINT, self._restore(start)

    def _forget_from(self, length: int) -> None:
        replay = self.replay
        while replay.checkpoints and replay.checkpoints[-1].length >= length:
            replay.checkpoints.pop()
        if replay.checkpoints:
            del replay.tokens[length - replay.checkpoints[0].length :]
        else:
            replay.tokens.clear()

    def _restore(self, start: int) -> Sequence[int]:
        replay = self.replay
        usable = [saved for saved in replay.checkpoints if saved.length <= start]
        if not usable:
            raise StageError(f"no checkpoint reaches back to {start}.")
        first, saved = replay.checkpoints[0].length, usable[-1]
        again = replay.tokens[saved.length - first : start - first]
        self.state.restore(saved)
        replay.checkpoints = usable
        del replay.tokens[start - first :]
        return again

    def prepare(self, window: Window) -> bool:
        """Raise the floor and take a checkpoint if this window needs one.

        Returns whether the window's rows count as revocable by the state itself.
        """
        state = self.state
        state.raise_floor(min(window.floor, state.length))
        self.replay.drop_below(state.floor)
        if window.end <= window.floor:
            self._forget_from(0)  # final rows: no settle goes back behind them
            return False
        kind = state.rollback(window.end - state.floor)
        if kind is not Rollback.CHECKPOINT:
            return True
        self.replay.checkpoints.append(state.checkpoint())
        self.replay.tokens.extend(window.tokens)
        return False

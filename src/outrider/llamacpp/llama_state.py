"""One sequence of a llama.cpp context, with the interface of our own states."""

import weakref

from outrider.errors import StateError
from outrider.llamacpp.llama_context import PARTIAL, BatchPiece, Copy, LlamaContext, Snapshots
from outrider.state.sequence import Checkpoint
from outrider.state.spec import Rollback


class LlamaState:
    """A `State` that lies in a context from its first pass on, and before it in a copy.

    Rows of attention are cut off. Recurrent layers go back to a snapshot of the newest pass, or to
    a checkpoint, which holds their part alone. The sequence is free again once nobody holds this.
    """

    attention: None = None
    delta: None = None

    def __init__(
        self, context: LlamaContext, capacity: int, copy: Copy | None = None, length: int = 0
    ) -> None:
        """Of `capacity` snapshots, or what was copied at `length`."""
        self._context, self._copy = context, copy
        self.length = self.floor = length
        recurrent = context.weights.is_recurrent
        self._snapshots = Snapshots(capacity) if recurrent else None
        self._sequence: int | None = None
        self._give_back: weakref.finalize[..., LlamaState] | None = None

    def begin(self, rows: int, wanted: int, *, revocable: bool) -> BatchPiece:
        """The place of a pass's rows; raises StateError where they could not be taken back."""
        if revocable and self.rollback(self.length + rows - self.floor, 1) is Rollback.CHECKPOINT:
            raise StateError(f"{rows} rows cannot be taken back: take a checkpoint first.")
        sequence = self._occupy()
        start = self._context.end(sequence)
        if start != self.length:
            raise StateError(f"the context holds {start} rows of a sequence of {self.length}.")
        return BatchPiece(sequence, start, rows, wanted)

    def advance(self, rows: int, *, revocable: bool = True) -> None:
        """Count the rows of a pass that was run."""
        self.length += rows
        if not revocable:
            self.floor = self.length
        if self._snapshots:
            self._snapshots.ran(rows)

    def _occupy(self) -> int:
        """Its sequence in the context; what was copied is brought back to it."""
        if self._sequence is None:
            self._sequence = self._context.take()
            self._give_back = weakref.finalize(self, self._context.give_back, self._sequence)
            if self._copy is not None:
                self._context.load(self._sequence, self._copy)
                self._copy = None
        return self._sequence

    def rollback(self, rows_in_flight: int, certain: int = 0) -> Rollback:
        """As `SequenceState.rollback`: of rows that have run, how they are taken back."""
        if self._snapshots is None:
            return Rollback.TRUNCATE
        before = self.length - self.floor
        new = rows_in_flight - before
        if new <= 0:
            return Rollback.SNAPSHOTS
        held = not before and self._snapshots.reaches(rows_in_flight - certain, new)
        return Rollback.SNAPSHOTS if held else Rollback.CHECKPOINT

    def raise_floor(self, floor: int) -> None:
        """Declare positions below `floor` final; a floor never falls."""
        if floor > self.length:
            raise StateError(f"floor {floor} lies beyond the {self.length} tokens consumed.")
        self.floor = max(self.floor, floor)

    @property
    def restorable(self) -> int:
        """The lowest length that `settle` can go back to."""
        return self.length - self._snapshots.rows if self._snapshots else 0

    def settle(self, length: int) -> None:
        """Keep the first `length` tokens; the rest never happened. Raises if it cannot."""
        if length == self.length:
            return
        if not max(self.restorable, self.floor) <= length < self.length:
            raise StateError(
                f"cannot go from {self.length} to {length} tokens: final below {self.floor}, "
                f"restorable from {self.restorable} on."
            )
        self._cut(length)
        if self._snapshots:
            self._snapshots.forget()
        self.length = length

    def _cut(self, length: int) -> None:
        if self._sequence is None:
            raise StateError("a copy of a sequence cannot be cut before it is used.")
        if length == 0:
            self._context.clear(self._sequence)
        elif not self._context.cut(self._sequence, length):
            raise StateError(f"llama.cpp does not go back to {length} tokens.")

    def checkpoint(self) -> Checkpoint:
        """Copy what cutting off cannot bring back."""
        if self._snapshots is None or not self.length:
            return Checkpoint(self.length, None)
        return Checkpoint(self.length, self._context.save(self._occupy(), PARTIAL))

    def restore(self, saved: Checkpoint) -> None:
        """Go back to a checkpoint of this state taken at a length that it still holds."""
        if saved.length > self.length:
            raise StateError(f"checkpoint at {saved.length} lies beyond length {self.length}.")
        if isinstance(saved.recurrent, bytearray):
            # First the recurrent part: it refuses to be cut where it has no snapshot.
            self._context.load(self._occupy(), saved.recurrent, PARTIAL)
        self._cut(saved.length)
        if self._snapshots:
            self._snapshots.forget()
        self.length = self.floor = saved.length

    def copy(self) -> "LlamaState":
        """An independent state that consumed the same tokens, all of them final."""
        capacity = self._snapshots.capacity if self._snapshots else 0
        copy = self._copy
        if self._sequence is not None and self.length:
            copy = self._context.save(self._sequence)
        return LlamaState(self._context, capacity, copy, self.length)

    def reset(self) -> None:
        """Forget everything."""
        if self._sequence is not None:
            self._context.clear(self._sequence)
        if self._snapshots:
            self._snapshots.forget()
        self.length = self.floor = 0
        self._copy = None

    def nbytes(self) -> int:
        """Bytes of the sequence, or of its copy."""
        if self._sequence is None:
            return len(self._copy or b"")
        return self._context.nbytes(self._sequence)

    def copy_nbytes(self) -> int:
        """Bytes of a copy: those of the sequence."""
        return self.nbytes()

    def free(self) -> None:
        """Give the sequence back now, in the thread that runs passes: an error on its way to
        somebody else may hold this object for long."""
        if self._give_back is not None:
            self._give_back()
        self._copy = None

    def check(self) -> None:
        """Raise StateError where the context holds something else than is counted here."""
        if self._sequence is not None and self._context.end(self._sequence) != self.length:
            raise StateError(
                f"the context holds {self._context.end(self._sequence)} rows of a sequence of "
                f"{self.length}."
            )

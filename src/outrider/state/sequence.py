"""The state of one sequence: every layer's memory and one length.

A state is an argument of a model pass, never a part of a model. `length` is the number of tokens
consumed. A pass advances it; `settle` takes it back to what was kept. The one length serves all
layers: no layer can lag.
"""

from dataclasses import dataclass

import torch

from outrider.errors import StateError
from outrider.state.delta_log import DeltaCopy, DeltaState
from outrider.state.kv_pages import AttentionState
from outrider.state.spec import Rollback, StateSpec, rollback_for


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A copy of the recurrent layers at `length`; attention truncates and needs none.

    Its owner alone knows what a copy is: tensors of ours, bytes of a library's.
    """

    length: int
    recurrent: DeltaCopy | bytearray | None


class SequenceState:
    """Memory of one sequence under one rollback policy."""

    def __init__(
        self,
        spec: StateSpec,
        *,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
    ) -> None:
        place = torch.device(device)
        self.spec, self._dtype, self._device = spec, dtype, place
        self.length = 0
        self.floor = 0
        self._peak = 0
        self.attention = AttentionState(spec.attention, dtype, place) if spec.attention else None
        self.delta = DeltaState(spec, place) if spec.delta else None

    def advance(self, rows: int, *, revocable: bool = True) -> None:
        """Count `rows` rows that a pass is about to write.

        Rows that are final, or whose way back is a checkpoint, are not `revocable`. Revocable rows
        beyond the capacity are refused: they would overwrite what taking them back needs.
        """
        end = self.length + rows
        if not revocable:
            self.floor = end
        elif self.rollback(end - self.floor) is Rollback.CHECKPOINT:
            raise StateError(
                f"{end - self.floor} rows above the floor exceed the rollback capacity of "
                f"{self.spec.row_capacity}: take a checkpoint first or raise state.capacity."
            )
        if self.delta:
            self.delta.columns.reserve(self.length, rows)
        self.length = end
        self._peak = max(self._peak, end)
        if self.attention:
            self.attention.reserve(end)

    def rollback(self, rows_in_flight: int, certain: int = 0) -> Rollback:
        """Which way back applies when `rows_in_flight` rows above the floor may be rejected, but
        for the `certain` first of them."""
        return rollback_for(self.spec, rows_in_flight)

    def raise_floor(self, floor: int) -> None:
        """Declare positions below `floor` final; a floor never falls."""
        if floor > self.length:
            raise StateError(f"floor {floor} lies beyond the {self.length} tokens consumed.")
        self.floor = max(self.floor, floor)

    @property
    def restorable(self) -> int:
        """The lowest length that `settle` can go back to."""
        if self.delta is None or self._peak == 0:
            return 0
        newest = (self._peak - 1) // self.spec.chunk
        oldest = max(newest - self.spec.slots + 1, 0)
        in_log = oldest * self.spec.chunk + 1 if oldest else 0
        return max(in_log, self._peak - self.spec.row_capacity)

    def settle(self, length: int) -> None:
        """Keep the first `length` tokens; the rest never happened. Raises if it cannot."""
        if length > self.length:
            raise StateError(f"cannot keep {length} tokens: only {self.length} were consumed.")
        if length < self.length and length < max(self.restorable, self.floor):
            raise StateError(
                f"cannot go back to {length} tokens: final below {self.floor}, restorable from "
                f"{self.restorable} on (capacity {self.spec.row_capacity})."
            )
        self.length = length

    def checkpoint(self) -> Checkpoint:
        """Copy what truncation cannot bring back."""
        return Checkpoint(self.length, self.delta.copy() if self.delta else None)

    def restore(self, saved: Checkpoint) -> None:
        """Go back to a checkpoint of this state taken at a length that it still holds."""
        if saved.length > self.length:
            raise StateError(f"checkpoint at {saved.length} lies beyond length {self.length}.")
        if self.delta and isinstance(saved.recurrent, DeltaCopy):
            self.delta.restore(saved.recurrent)
        self.length = self.floor = self._peak = saved.length

    def copy(self) -> "SequenceState":
        """Return an independent state that consumed the same tokens, all of them final."""
        twin = SequenceState(self.spec, dtype=self._dtype, device=self._device)
        twin.length = twin.floor = twin._peak = self.length
        if twin.attention and self.attention:
            twin.attention.take(self.attention, self.length)
        if twin.delta and self.delta:
            twin.delta.restore(self.delta.view())
        return twin

    def reset(self) -> None:
        """Forget everything; storage is kept."""
        self.length = self.floor = self._peak = 0
        if self.delta:
            self.delta.clear()

    def nbytes(self) -> int:
        """Bytes of tensor storage held now."""
        return sum(part.nbytes() for part in (self.attention, self.delta) if part)

    def copy_nbytes(self) -> int:
        """Bytes of tensor storage that a `copy` would hold."""
        attention = self.attention.bytes_of(self.length) if self.attention else 0
        return attention + (self.delta.nbytes() if self.delta else 0)

    def free(self) -> None:
        """Let go of all storage; the state is not used afterwards."""
        self.attention = self.delta = None

    def check(self) -> None:
        """Raise StateError if the bookkeeping contradicts itself (tests, idle checks)."""
        if not 0 <= self.floor <= self.length <= self._peak:
            raise StateError(
                f"state is inconsistent: floor {self.floor}, length {self.length}, "
                f"peak {self._peak}."
            )
        if self.attention and self.attention.capacity < self.length:
            raise StateError(f"attention pages hold fewer than {self.length} positions.")

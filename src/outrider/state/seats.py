"""Where sequences that run side by side keep what every pass touches, one beside another."""

from collections.abc import Sequence

import torch
from torch import Tensor

from outrider.kernels.delta_group import Stack
from outrider.state.delta import DeltaState, Seat, chunk_tensors, column_tensor, slot_of
from outrider.state.spec import StateSpec


class Seats:
    """Seats 0, 1, .. of the states of one spec, with one more behind them for what nobody reads.

    A state that has a seat moves into it when a pass needs it there (`DeltaState.bring`). Seats
    that were taken have no gaps: who leaves is replaced by the last one.
    """

    def __init__(self, spec: StateSpec, device: torch.device) -> None:
        self.spec, self._device = spec, device
        self.taken: list[DeltaState] = []
        self._stacks: list[Stack] = []
        self._make(0)

    def _make(self, count: int) -> None:
        self._chunks = chunk_tensors(self.spec, count + 1, self._device)
        columns = column_tensor(self.spec, self._device, (count + 1,))
        self.columns = list(columns.flatten(1, 2).unbind())
        self._seats = [self._seat(number, columns[:, number]) for number in range(count)]

    def _seat(self, number: int, columns: Tensor) -> Seat:
        parts = tuple(tensor[:, number] for tensor in self._chunks)
        slots = [slot_of(*layer) for layer in zip(*parts, strict=True)]
        return Seat(number, parts, columns, slots)

    def take(self, states: Sequence[DeltaState]) -> None:
        """Give a seat to each of `states` that has none."""
        new = [state for state in states if state.seat is None]
        if not new:
            return
        if len(self.taken) + len(new) > len(self._seats):
            self._clear()
            self._make(len(self.taken) + len(new))
        self.taken += new
        self._settle()

    def _clear(self) -> None:
        """Let go of all storage, which is about to be made anew."""
        for state in self.taken:
            state.leave()
            state.seat = None
        self._stacks.clear()
        self._seats, self._chunks, self.columns = [], (), []

    def free(self, state: DeltaState) -> None:
        """Take a state's seat away, if it has one."""
        if state.seat is None:
            return
        state.leave()
        last = self.taken.pop()
        if last is not state:
            last.leave()
            self.taken[state.seat.number] = last
        state.seat = None
        self._settle()

    def _settle(self) -> None:
        """Tell everyone their seat; what was stacked is out of date."""
        for state, seat in zip(self.taken, self._seats, strict=False):
            state.seat = seat
        self._stacks.clear()

    def stack(self, layer: int) -> Stack:
        """The chunks that are in the seats now, of one layer."""
        if not self._stacks:
            layers = zip(*(tensor.unbind() for tensor in self._chunks), strict=True)
            self._stacks += [Stack.of(parts, len(self.taken)) for parts in layers]
        return self._stacks[layer]

    def nbytes(self) -> int:
        """Bytes of all seats, the one that nobody reads included."""
        return sum(tensor.nbytes for tensor in (*self._chunks, *self.columns))

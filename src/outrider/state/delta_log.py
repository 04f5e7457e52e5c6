"""Recurrent state of all gated-delta-net layers of one sequence: bases, log and columns.

Positions are cut into chunks on an absolute grid. Slot `chunk % slots` holds the base at the
start of a chunk and the log of its rows, so that rows of the newest `slots` chunks can be read.
`outrider.kernels.reference` is the arithmetic.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from outrider.state.memory import zeros
from outrider.state.spec import StateSpec


class Columns:
    """Inputs [layers, size, channels] fp32 of the newest positions, oldest first, in one run.

    Row 0 holds position `origin`; positions before the sequence are zero. A pass reads the `taps`
    - 1 inputs before its first row together with its own as one view. When the rows run out, what
    may still be needed moves to the front, for all layers at once: `size` leaves some slack beyond
    the rollback capacity, so that this happens seldom.
    """

    def __init__(self, storage: Tensor, taps: int, slack: int) -> None:
        self.storage = storage
        self._layers = storage.unbind()
        self.origin = 1 - taps
        self._history, self._slack = taps - 1, slack

    def reserve(self, start: int, rows: int) -> None:
        """Make room for a pass over positions start..start+rows-1; called once, before `extend`.

        A pass longer than the storage finds the inputs before it in the first rows.
        """
        size = self.storage.shape[1]
        end = start + rows
        if end - self.origin <= size:
            return
        kept = min(max(self._history, size - self._slack - rows), start - self.origin)
        first = start - kept - self.origin
        moved = self.storage.narrow(1, first, kept).clone()
        self.storage.narrow(1, 0, kept).copy_(moved)
        self.origin = start - kept if kept + rows <= size else end - size

    def extend(self, layer: int, start: int, new: Tensor) -> Tensor:
        """Store inputs [n, channels] of positions start..; return them after those before.

        The result [taps - 1 + n, channels] is contiguous and valid until the next pass.
        """
        held, rows, history = self._layers[layer], new.shape[0], self._history
        place = start - self.origin
        if place >= history:
            held.narrow(0, place, rows).copy_(new)
            return held.narrow(0, place - history, history + rows)
        joined = torch.cat([held.narrow(0, 0, history), new])
        held.copy_(joined.narrow(0, len(joined) - len(held), len(held)))
        return joined

    def clear(self) -> None:
        """Back to the beginning of a sequence."""
        self.storage.zero_()
        self.origin = -self._history


class ChunkLog(NamedTuple):
    """One chunk of one layer: the base [K, A, V/K D] that it begins with, and of each of its rows
    the correction [V, C, D], the key [K, A, C] and the decay summed up since the base [V, C]."""

    base: Tensor
    corrections: Tensor
    keys: Tensor
    decays: Tensor


@dataclass(frozen=True, slots=True)
class DeltaCopy:
    """Copy that a checkpoint keeps of a `DeltaState`."""

    tensors: tuple[Tensor, ...]
    origin: int


def segments(start: int, rows: int, chunk: int) -> Iterator[tuple[int, int, int]]:
    """Cut positions start..start+rows-1 at multiples of `chunk`: number of the chunk, offset in it,
    rows."""
    end = start + rows
    while start < end:
        number, first = divmod(start, chunk)
        count = min(chunk - first, end - start)
        yield number, first, count
        start += count


class DeltaState:
    """Bases and logs of the newest chunks, and the convolutions' columns."""

    def __init__(self, spec: StateSpec, device: torch.device) -> None:
        assert spec.delta is not None
        self.spec = spec.delta
        self.chunk, self.slots = spec.chunk, spec.slots
        self._chunks = chunk_tensors(spec, self.slots, device)
        self._columns = column_tensor(spec, device)
        self.columns = Columns(self._columns, self.spec.taps, spec.slack)
        # Where the parts of the log are, slots, chunk; columns, and how many they are.
        parts = [tensor.data_ptr() for tensor in self._chunks]
        columns = self._columns.data_ptr(), self._columns.shape[1]
        self.addresses = (*parts, self.slots, self.chunk, *columns)

    def log(self, layer: int, chunk: int) -> ChunkLog:
        """Views of one chunk that is still held."""
        return ChunkLog(*(tensor[layer, chunk % self.slots] for tensor in self._chunks))

    def tensors(self) -> tuple[Tensor, ...]:
        """All storage, that of chunks and of columns."""
        return *self._chunks, self._columns

    def copy(self) -> DeltaCopy:
        """A checkpoint: copies of everything."""
        return DeltaCopy(tuple(tensor.clone() for tensor in self.tensors()), self.columns.origin)

    def view(self) -> DeltaCopy:
        """The same without copying, to be restored elsewhere at once."""
        return DeltaCopy(self.tensors(), self.columns.origin)

    def restore(self, copy: DeltaCopy) -> None:
        for tensor, saved in zip(self.tensors(), copy.tensors, strict=True):
            tensor.copy_(saved)
        self.columns.origin = copy.origin

    def clear(self) -> None:
        for tensor in self.tensors():
            tensor.zero_()
        self.columns.clear()

    def nbytes(self) -> int:
        return sum(tensor.nbytes for tensor in self.tensors())


def chunk_tensors(spec: StateSpec, places: int, device: torch.device) -> ChunkLog:
    """Zeros, fp32, for L layers: each part of a `ChunkLog` after [L, places]."""
    shape, chunk = spec.delta, spec.chunk
    assert shape is not None
    key, value = (shape.key_heads, shape.key_width), shape.value_heads
    wide = value // shape.key_heads * shape.value_width
    sizes = (*key, wide), (value, chunk, shape.value_width), (*key, chunk), (value, chunk)
    return ChunkLog(
        *(zeros((shape.layers, places, *size), torch.float32, device) for size in sizes)
    )


def column_tensor(spec: StateSpec, device: torch.device) -> Tensor:
    """Zeros for the convolutions' inputs [L, columns, channels], fp32."""
    assert spec.delta is not None
    sizes = spec.delta.layers, spec.columns, spec.delta.channels
    return zeros(sizes, torch.float32, device)

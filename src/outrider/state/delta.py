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

from outrider.state.columns import Columns
from outrider.state.memory import zeros
from outrider.state.spec import StateSpec


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

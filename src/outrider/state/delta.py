"""Recurrent state of all gated-delta-net layers of one sequence: bases, log and columns.

Positions are cut into chunks on an absolute grid. Slot `chunk % slots` holds the base at the
start of a chunk and the log of its rows, so that rows of the newest `slots` chunks can be read.
`outrider.kernels.delta` is the arithmetic.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from outrider.kernels.delta import Log, Slot, fold
from outrider.kernels.memory import zeros
from outrider.state.columns import Columns
from outrider.state.spec import DeltaSpec, StateSpec


@dataclass(frozen=True, slots=True)
class Segment:
    """`size` rows of a pass from offset `first` of a chunk on, or `count` whole chunks."""

    chunk: int
    first: int
    size: int
    count: int = 1

    def each_row(self) -> list["Segment"]:
        return [
            Segment(self.chunk + chunk, self.first + row, 1)
            for chunk in range(self.count)
            for row in range(self.size)
        ]


@dataclass(frozen=True, slots=True)
class DeltaCopy:
    """Copy that a checkpoint keeps of a `DeltaState`."""

    tensors: tuple[Tensor, ...]
    origin: int


def segments(start: int, rows: int, chunk: int) -> list[Segment]:
    """Cut positions start..start+rows-1 into a chunk's rest, whole chunks and a chunk's start."""
    number, first = divmod(start, chunk)
    head = min(-start % chunk, rows)
    whole, tail = divmod(rows - head, chunk)
    after = number + (head > 0)
    cut = [Segment(number, first, head), Segment(after, 0, chunk, whole)]
    cut.append(Segment(after + whole, 0, tail))
    return [part for part in cut if part.size * part.count]


class DeltaState:
    """Bases and logs of the newest chunks, and the convolutions' columns."""

    def __init__(self, spec: StateSpec, device: torch.device) -> None:
        assert spec.delta is not None
        self.spec = spec.delta
        self.chunk, self.slots = spec.chunk, spec.slots
        self._chunks = chunk_tensors(spec, self.slots, device)
        self._columns = column_tensor(spec, device)
        self.columns = Columns(self._columns, self.spec.taps, spec.slack)
        # Where base, wanted, keys and decays are, slots, chunk; columns, and how many they are.
        parts = [self._chunks[part].data_ptr() for part in range(4)]
        columns = self._columns.data_ptr(), self._columns.shape[1]
        self.addresses = (*parts, self.slots, self.chunk, *columns)
        # Views are made once: making them anew would cost more than some of the arithmetic.
        layers = zip(*(tensor.unbind() for tensor in self._chunks), strict=True)
        self._views = [[slot_of(*parts) for parts in zip(*layer, strict=True)] for layer in layers]

    def slot(self, layer: int, chunk: int) -> Slot:
        """Base and log of one chunk that is still held."""
        return self._views[layer][chunk % self.slots]

    def open(self, layer: int, chunk: int) -> Slot:
        """The slot of a chunk whose first row is about to run: its base follows from the log of
        the chunk before."""
        slot = self.slot(layer, chunk)
        if chunk > 0:
            slot.base.copy_(fold(self.slot(layer, chunk - 1)))
        return slot

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
        return sum(tensor.nbytes for tensor in (*self._chunks, self._columns))


def chunk_tensors(spec: StateSpec, places: int, device: torch.device) -> tuple[Tensor, ...]:
    """Zeros, fp32, for L layers of K key and V value heads: base [L, places, K, A, V/K D],
    wanted [L, places, V, C, D], keys [L, places, K, A, C], decays [L, places, V, C], inverse
    [L, places, V, C, C]."""
    shape, chunk = spec.delta, spec.chunk
    assert shape is not None
    key, value = (shape.key_heads, shape.key_width), shape.value_heads
    sizes = (
        (*key, _wide(shape)),
        (value, chunk, shape.value_width),
        (*key, chunk),
        (value, chunk),
        (value, chunk, chunk),
    )
    return tuple(zeros((shape.layers, places, *size), torch.float32, device) for size in sizes)


def column_tensor(spec: StateSpec, device: torch.device) -> Tensor:
    """Zeros for the convolutions' inputs [L, columns, channels], fp32."""
    assert spec.delta is not None
    sizes = spec.delta.layers, spec.columns, spec.delta.channels
    return zeros(sizes, torch.float32, device)


def slot_of(base: Tensor, wanted: Tensor, keys: Tensor, decays: Tensor, inverse: Tensor) -> Slot:
    """The slot in the tensors of one layer and place."""
    return Slot(base, wanted, Log.over(keys, decays, inverse))


def _wide(shape: DeltaSpec) -> int:
    """Columns of the bases of all value heads that one key head serves."""
    return shape.value_heads // shape.key_heads * shape.value_width

"""Recurrent state of all gated-delta-net layers of one sequence: bases, log and columns.

Positions are cut into chunks on an absolute grid. Slot `chunk % slots` holds the base at the
start of a chunk and the log of its rows, so that rows of the newest `slots` chunks can be read.
`outrider.ops.delta` is the arithmetic.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from outrider.ops.delta import Log, Slot, fold
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
    """What a checkpoint keeps of a `DeltaState`."""

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
    """Tensors, fp32, for L layers of K key and V value heads: base [L, slots, K, A, V/K D],
    wanted [L, slots, V, C, D], keys [L, slots, K, A, C], decays [L, slots, V, C], inverse
    [L, slots, V, C, C], and the convolutions' columns."""

    def __init__(self, spec: StateSpec, device: torch.device) -> None:
        assert spec.delta is not None
        self.spec, shape = spec.delta, spec.delta
        self.chunk, self.slots = spec.chunk, spec.slots

        def zeros(*sizes: int) -> Tensor:
            return torch.zeros(shape.layers, *sizes, device=device)

        keys, values = (self.slots, shape.key_heads), (self.slots, shape.value_heads)
        self.base = zeros(*keys, shape.key_width, _wide(shape))
        self.wanted = zeros(*values, self.chunk, shape.value_width)
        self.keys = zeros(*keys, shape.key_width, self.chunk)
        self.decays = zeros(*values, self.chunk)
        self.inverse = zeros(*values, self.chunk, self.chunk)
        self.columns = Columns(zeros(spec.columns, shape.channels), shape.taps, spec.slack)
        self._views = [self._slots_of(layer) for layer in range(shape.layers)]

    def _slots_of(self, layer: int) -> list[Slot]:
        """Views are made once: making them anew would cost more than some of the arithmetic."""
        parts = (tensor[layer] for tensor in self.tensors()[:-1])
        return [
            Slot(base, wanted, Log.over(*log)) for base, wanted, *log in zip(*parts, strict=True)
        ]

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
        log = self.keys, self.decays, self.inverse
        return self.base, self.wanted, *log, self.columns.storage

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


def _wide(shape: DeltaSpec) -> int:
    """Columns of the bases of all value heads that one key head serves."""
    return shape.value_heads // shape.key_heads * shape.value_width

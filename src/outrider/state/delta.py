"""Recurrent state of all gated-delta-net layers of one sequence: bases, log and columns.

Positions are cut into chunks on an absolute grid. Slot `chunk % slots` holds the base at the
start of a chunk and the log of its rows, so that rows of the newest `slots` chunks can be read;
column `position % columns` holds a convolution input. `outrider.ops.delta` is the arithmetic.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from outrider.ops import delta as ops
from outrider.state.spec import DeltaSpec, StateSpec


@dataclass(frozen=True, slots=True)
class Segment:
    """Rows `rows` of a pass that lie in one chunk, from offset `first` of it on."""

    chunk: int
    first: int
    rows: slice


def segments(start: int, rows: int, chunk: int) -> list[Segment]:
    """Cut positions start..start+rows-1 at multiples of `chunk`."""
    cut, done = [], 0
    while done < rows:
        number, first = divmod(start + done, chunk)
        count = min(chunk - first, rows - done)
        cut.append(Segment(number, first, slice(done, done + count)))
        done += count
    return cut


class DeltaState:
    """Tensors, fp32: bases [layers, slots, V, A, D], log keys [layers, slots, K, C, A],
    corrections [layers, slots, V, C, D], decays [layers, slots, V, C], and columns
    [layers, columns, channels] in the model's dtype widened to fp32."""

    def __init__(self, spec: StateSpec, device: torch.device) -> None:
        assert spec.delta is not None
        self.spec, shape = spec.delta, spec.delta
        self.chunk, self.slots = spec.chunk, spec.slots

        def zeros(*sizes: int) -> Tensor:
            return torch.zeros(shape.layers, *sizes, device=device)

        self.bases = zeros(self.slots, shape.value_heads, shape.key_width, shape.value_width)
        self.keys = zeros(self.slots, shape.key_heads, self.chunk, shape.key_width)
        self.corrections = zeros(self.slots, shape.value_heads, self.chunk, shape.value_width)
        self.decays = zeros(self.slots, shape.value_heads, self.chunk)
        self.columns = zeros(spec.columns, shape.channels)

    def log(self, layer: int, chunk: int) -> tuple[Tensor, Tensor, Tensor]:
        """Views of one chunk's log: keys, corrections, decays."""
        slot = chunk % self.slots
        return self.keys[layer, slot], self.corrections[layer, slot], self.decays[layer, slot]

    def base(self, layer: int, chunk: int, *, opening: bool) -> Tensor:
        """The base of a chunk; folded from the chunk before it when its first row runs."""
        slot = chunk % self.slots
        if opening and chunk > 0:
            before = (chunk - 1) % self.slots
            keys, corrections, decays = self.log(layer, chunk - 1)
            self.bases[layer, slot] = ops.fold(self.bases[layer, before], keys, corrections, decays)
        return self.bases[layer, slot]

    def extend_columns(self, layer: int, start: int, new: Tensor) -> Tensor:
        """Store inputs [n, channels] of positions start..; return them behind the taps-1 before.

        Positions before the sequence count as zero.
        """
        ring, history = self.columns[layer], self.spec.taps - 1
        held = ring.shape[0]
        past = ring[[(start - back) % held for back in range(history, 0, -1)]]
        kept = min(held, new.shape[0])
        first = start + new.shape[0] - kept
        for position, count in _runs(first, kept, held):
            offset = position - start
            ring[position % held : position % held + count] = new[offset : offset + count]
        return torch.cat([past, new])

    def tensors(self) -> tuple[Tensor, ...]:
        return self.bases, self.keys, self.corrections, self.decays, self.columns

    def copy(self) -> tuple[Tensor, ...]:
        """A checkpoint: copies of everything."""
        return tuple(tensor.clone() for tensor in self.tensors())

    def restore(self, copy: tuple[Tensor, ...]) -> None:
        for tensor, saved in zip(self.tensors(), copy, strict=True):
            tensor.copy_(saved)

    def clear(self) -> None:
        for tensor in self.tensors():
            tensor.zero_()

    def nbytes(self) -> int:
        return sum(tensor.nbytes for tensor in self.tensors())


def _runs(first: int, count: int, size: int) -> list[tuple[int, int]]:
    """Positions first..first+count-1 as contiguous runs in a ring of `size` places."""
    until_wrap = size - first % size
    if count <= until_wrap:
        return [(first, count)] if count else []
    return [(first, until_wrap), (first + until_wrap, count - until_wrap)]

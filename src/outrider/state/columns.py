"""The newest inputs of the short convolutions of all recurrent layers of one sequence."""

import torch
from torch import Tensor


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

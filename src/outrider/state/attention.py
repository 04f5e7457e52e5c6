"""Keys and values of all attention layers of one sequence, in pages."""

import torch
from torch import Tensor

from outrider.state.spec import PAGE, AttentionSpec


class AttentionState:
    """Pages [layers, pages, heads, PAGE, width]; grows by doubling, never shrinks.

    What lies at or past the sequence's length is garbage that the causal mask hides, so taking
    rows back needs nothing from this class. Storage starts zeroed: masked entries are multiplied
    by zero and must be finite.
    """

    def __init__(self, spec: AttentionSpec, dtype: torch.dtype, device: torch.device) -> None:
        self.spec = spec
        self._new = {"dtype": dtype, "device": device}
        self.keys = self._pages(0)
        self.values = self._pages(0)

    def _pages(self, count: int) -> Tensor:
        spec = self.spec
        return torch.zeros(spec.layers, count, spec.heads, PAGE, spec.width, **self._new)  # type: ignore[arg-type]

    def reserve(self, length: int) -> None:
        """Make room for `length` positions."""
        needed, held = -(-length // PAGE), self.keys.shape[1]
        if needed <= held:
            return
        more = max(needed, 2 * held) - held
        self.keys = torch.cat([self.keys, self._pages(more)], 1)
        self.values = torch.cat([self.values, self._pages(more)], 1)

    def write(self, layer: int, start: int, keys: Tensor, values: Tensor) -> None:
        """Store rows [n, heads, width] at positions start.. (room was reserved)."""
        done, rows = 0, keys.shape[0]
        while done < rows:
            page, offset = divmod(start + done, PAGE)
            count = min(PAGE - offset, rows - done)
            part = slice(done, done + count)
            place = slice(offset, offset + count)
            self.keys[layer, page, :, place] = keys[part].transpose(0, 1)
            self.values[layer, page, :, place] = values[part].transpose(0, 1)
            done += count

    def nbytes(self) -> int:
        return self.keys.nbytes + self.values.nbytes

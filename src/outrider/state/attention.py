"""Keys and values of all attention layers of one sequence, in pages."""

import torch
from torch import Tensor

from outrider.kernels.memory import copy, zeros
from outrider.state.spec import PAGE, AttentionSpec


class AttentionState:
    """Pages [layers, 2, pages, heads, PAGE, width]; grows by doubling, never shrinks.

    What lies at or past the sequence's length is garbage that the causal mask hides, so taking
    rows back needs nothing from this class. Storage starts zeroed: masked entries are multiplied
    by zero and must be finite.
    """

    def __init__(self, spec: AttentionSpec, dtype: torch.dtype, device: torch.device) -> None:
        self.spec = spec
        self._dtype, self._device = dtype, device
        self._hold(self._pages(0))

    def _pages(self, count: int) -> Tensor:
        sizes = self.spec.layers, 2, count, self.spec.heads, PAGE, self.spec.width
        return zeros(sizes, self._dtype, self._device)

    def _hold(self, pages: Tensor) -> None:
        """Take `pages` as storage; views of it are made once and used by many passes."""
        self.pages = pages
        self._layers = [(layer[0], layer[1]) for layer in pages]
        self._places = [layer.unbind(1) for layer in pages]
        self.address = pages.data_ptr(), pages.shape[2]

    @property
    def capacity(self) -> int:
        """Positions that storage has room for now."""
        return self.pages.shape[2] * PAGE

    def reserve(self, length: int) -> None:
        """Make room for `length` positions."""
        needed, held = -(-length // PAGE), self.pages.shape[2]
        if needed > held:
            pages = self._pages(max(needed, 2 * held))
            copy(self.pages, pages[:, :, :held])
            self._hold(pages)

    def take(self, other: "AttentionState", length: int) -> None:
        """Hold a copy of the first `length` positions of `other`, and room for no more."""
        self._hold(other.pages[:, :, : -(-length // PAGE)].clone())

    def layer(self, layer: int) -> tuple[Tensor, Tensor]:
        """Keys and values of one layer, each [pages, heads, PAGE, width]."""
        return self._layers[layer]

    def write(self, layer: int, start: int, rows: Tensor) -> None:
        """Store keys and values [n, 2, heads, width] at positions start.. (room was reserved)."""
        done, count = 0, rows.shape[0]
        by_place = rows.permute(1, 2, 0, 3)
        while done < count:
            page, offset = divmod(start + done, PAGE)
            fits = min(PAGE - offset, count - done)
            place = self._places[layer][page].narrow(2, offset, fits)
            place.copy_(by_place if fits == count else by_place.narrow(2, done, fits))
            done += fits

    def nbytes(self) -> int:
        return self.pages.nbytes

    def bytes_of(self, length: int) -> int:
        """Bytes of the pages that hold the first `length` positions."""
        held = self.pages.shape[2]
        return self.pages.nbytes // held * -(-length // PAGE) if held else 0

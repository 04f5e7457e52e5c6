"""Keys and values of all attention layers of one sequence, in pages."""

import torch
from torch import Tensor

from outrider.state.memory import copy, zeros
from outrider.state.spec import PAGE, AttentionSpec


class AttentionState:
    """Pages [layers, 2, pages, heads, ..] of keys [width, PAGE] and values [PAGE, width]; grows by
    doubling, never shrinks. Keys lie by column, so that the scores of a page are one product.

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
        self.pages = pages
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

    def write(self, layer: int, start: int, keys: Tensor, values: Tensor) -> None:
        """Store keys and values [n, heads, width] at positions start.. (room was reserved)."""
        at = torch.arange(start, start + len(keys), device=self.pages.device)
        page, place = at // PAGE, at % PAGE
        kept_keys, kept_values = self._layer(layer)
        kept_keys[page, :, :, place] = keys
        kept_values[page, :, place] = values

    def read(self, layer: int, length: int) -> tuple[Tensor, Tensor]:
        """Keys and values [heads, length, width] of the first positions, copied."""
        keys, values = (part[: -(-length // PAGE)] for part in self._layer(layer))
        each = keys.permute(1, 0, 3, 2), values.transpose(0, 1)
        key, value = (part.flatten(1, 2)[:, :length] for part in each)
        return key, value

    def _layer(self, layer: int) -> tuple[Tensor, Tensor]:
        """Keys [pages, heads, width, PAGE] and values [pages, heads, PAGE, width]."""
        keys, values = self.pages[layer]
        return keys.view(*keys.shape[:2], -1, PAGE), values

    def nbytes(self) -> int:
        return self.pages.nbytes

    def bytes_of(self, length: int) -> int:
        """Bytes of the pages that hold the first `length` positions."""
        held = self.pages.shape[2]
        return self.pages.nbytes // held * -(-length // PAGE) if held else 0

"""Memory for weights in pages of 2 MiB, where the system gives these for the asking (Linux).

A step reads every weight once. In pages of 4 KiB the processor looks up an address for each of
them, and does not fetch ahead over their borders.
"""

import math
import mmap
import weakref
from contextlib import suppress
from threading import Lock

import numpy as np
from numpy.typing import NDArray

PIECE = 64 << 20
LINE = 64
"""Bytes that an array begins at a multiple of."""


class Pages:
    """Arrays one after the other in pieces of memory that live as long as an array in them. Models
    may be loaded in several threads."""

    def __init__(self) -> None:
        self._piece: weakref.ref[mmap.mmap] | None = None
        self._used = 0
        self._taking = Lock()

    def empty(self, shape: tuple[int, ...]) -> NDArray[np.float32]:
        """A new array, in large pages where the system has them."""
        advice = getattr(mmap, "MADV_HUGEPAGE", None)
        if advice is None:
            return np.empty(shape, np.float32)
        size = math.prod(shape) * 4
        with self._taking:
            piece = self._piece() if self._piece else None
            if piece is None or self._used + size > len(piece):
                piece = mmap.mmap(-1, max(PIECE, size), flags=mmap.MAP_PRIVATE)
                with suppress(OSError):  # a kernel that was built without them
                    piece.madvise(advice)
                self._piece, self._used = weakref.ref(piece), 0
            found = np.frombuffer(piece, np.float32, size // 4, self._used)
            self._used += -(-size // LINE) * LINE
        return found.reshape(shape)

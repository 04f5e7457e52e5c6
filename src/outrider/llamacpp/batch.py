"""The rows of one `llama_decode`, in arrays that are filled anew for each pass."""

import ctypes
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

INT = ctypes.c_int32


@dataclass(frozen=True, slots=True)
class Piece:
    """Rows of one sequence in a pass: `wanted` of the last ones get logits."""

    sequence: int
    start: int
    rows: int
    wanted: int


class Batch:
    """Up to `size` rows; `given` is what the library reads."""

    def __init__(self, call: Any, size: int) -> None:
        self.size = size
        self._tokens: Any = (INT * size)()
        self._places: Any = (INT * size)()
        self._sequences: Any = (INT * size)()
        self._marks: Any = (ctypes.c_int8 * size)()
        self._counts = (INT * size)(*([1] * size))
        one, start = ctypes.POINTER(INT), ctypes.addressof(self._sequences)
        self._lists = (one * size)(*[ctypes.cast(start + 4 * row, one) for row in range(size)])
        self.given = call.llama_batch(
            token=ctypes.cast(self._tokens, one),
            pos=ctypes.cast(self._places, one),
            n_seq_id=ctypes.cast(self._counts, one),
            seq_id=ctypes.cast(self._lists, ctypes.POINTER(one)),
            logits=ctypes.cast(self._marks, ctypes.POINTER(ctypes.c_int8)),
        )

    def fill(self, tokens: Sequence[int], pieces: Iterable[Piece]) -> int:
        """Take the rows of the pieces, in order; returns how many want logits in all."""
        self.given.n_tokens = count = len(tokens)
        self._tokens[:count] = tokens
        row = outputs = 0
        for piece in pieces:
            rows, end = piece.rows, row + piece.rows
            self._sequences[row:end] = [piece.sequence] * rows
            self._places[row:end] = range(piece.start, piece.start + rows)
            self._marks[row:end] = [0] * (rows - piece.wanted) + [1] * piece.wanted
            row, outputs = end, outputs + piece.wanted
        return outputs

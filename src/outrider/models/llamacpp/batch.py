"""The rows of one `llama_decode`, in buffers that are filled anew for each pass."""

import ctypes
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor


class Batch:
    """Up to `size` rows; `given` is what the library reads. Tensors are views of its arrays."""

    def __init__(self, call: Any, size: int) -> None:
        self.size = size
        self._tokens = torch.zeros(size, dtype=torch.int32)
        self._places = torch.zeros(size, dtype=torch.int32)
        self._counts = torch.ones(size, dtype=torch.int32)
        self._sequences = torch.zeros(size, dtype=torch.int32)
        self._marks = torch.zeros(size, dtype=torch.int8)
        one = ctypes.POINTER(ctypes.c_int32)
        start = self._sequences.data_ptr()
        self._lists = (one * size)(*[ctypes.cast(start + 4 * row, one) for row in range(size)])
        self.given = call.llama_batch()
        self.given.token = _pointer(self._tokens, ctypes.c_int32)
        self.given.pos = _pointer(self._places, ctypes.c_int32)
        self.given.n_seq_id = _pointer(self._counts, ctypes.c_int32)
        self.given.seq_id = ctypes.cast(self._lists, ctypes.POINTER(one))
        self.given.logits = _pointer(self._marks, ctypes.c_int8)

    def fill(self, tokens: Tensor, spans: Sequence[tuple[int, int, int, int]]) -> int:
        """Take rows `tokens` int64 [N]; of each span its sequence, first position, rows, and how
        many of the last ones want logits. Returns how many do in all."""
        self.given.n_tokens = len(tokens)
        self._tokens[: len(tokens)] = tokens
        self._marks[: len(tokens)] = 0
        row = outputs = 0
        for sequence, place, rows, wanted in spans:
            end = row + rows
            self._sequences[row:end] = sequence
            torch.arange(place, place + rows, dtype=torch.int32, out=self._places[row:end])
            self._marks[end - wanted : end] = 1
            row, outputs = end, outputs + wanted
        return outputs


def _pointer(rows: Tensor, kind: Any) -> Any:
    return ctypes.cast(rows.data_ptr(), ctypes.POINTER(kind))

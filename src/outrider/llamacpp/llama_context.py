"""llama.cpp's weights and contexts: a context is the memory of several sequences, and runs passes.

A context made for `n_rs_seq` snapshots of recurrent layers writes, in a pass of T rows, the states
after the last min(T, 1 + n_rs_seq) of them; older ones stay where they are, of other rows, and
would be read without a word. So at most T - 1 rows can be taken back, and not twice: a removal
moves the end, from which the library counts, while the snapshots stay.
"""

import ctypes
import weakref
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from outrider.errors import CheckpointError, ConfigError, StageError
from outrider.kernels.argmax import argmax_of, argmax_rows
from outrider.llamacpp.library import Library, library


class LlamaWeights:
    """Weights that contexts share; freed after the last of them."""

    def __init__(self, path: Path, *, gpu_layers: int = 0) -> None:
        """Load a file, `gpu_layers` of it to an accelerator (-1: all); CheckpointError if it is
        refused, ConfigError where there is no accelerator."""
        self.path = path
        self.library: Library = library()
        call = self.library.call
        if gpu_layers and not call.llama_supports_gpu_offload():
            raise ConfigError(
                f"target.gpu_layers = {gpu_layers} needs a GPU and a llama.cpp for it, but none is "
                "there or this one was compiled for the CPU: leave it out."
            )
        wanted = call.llama_model_default_params()
        wanted.n_gpu_layers = gpu_layers
        self.handle = call.llama_model_load_from_file(str(path).encode(), wanted)
        if not self.handle:
            raise CheckpointError(
                f"{path} cannot be loaded by llama.cpp: it is damaged, of a kind that this version "
                "does not know, or larger than the memory; --log-level debug shows what it said."
            )
        weakref.finalize(self, call.llama_model_free, self.handle)
        self.vocab_size = int(call.llama_vocab_n_tokens(call.llama_model_get_vocab(self.handle)))
        """Rows of the head."""
        recurrent = call.llama_model_is_recurrent(self.handle)
        self.is_recurrent = bool(recurrent or call.llama_model_is_hybrid(self.handle))
        """True if any layer's memory cannot simply be cut off at its end."""

    @property
    def max_length(self) -> int:
        """Positions that the model was trained for."""
        return int(self.library.call.llama_model_n_ctx_train(self.handle))

    @property
    def architecture(self) -> str:
        """The file's `general.architecture`."""
        text = ctypes.create_string_buffer(64)
        self.library.call.llama_model_meta_val_str(
            self.handle, b"general.architecture", text, len(text)
        )
        return text.value.decode("utf-8", "replace")


@dataclass(slots=True)
class Snapshots:
    """`rows` can be taken back now, of the `capacity` that a context is made for."""

    capacity: int
    rows: int = 0

    def reaches(self, lost: int, rows: int) -> bool:
        """True if, after a pass of `rows` rows, the last `lost` of them could be taken back."""
        return lost <= self._written(rows)

    def ran(self, rows: int) -> None:
        """A pass of `rows` rows was run."""
        self.rows = self._written(rows)

    def _written(self, rows: int) -> int:
        return min(rows - 1, self.capacity)

    def forget(self) -> None:
        """Rows were removed, or a state was brought back: until a pass, no more can be."""
        self.rows = 0


INT = ctypes.c_int32


@dataclass(frozen=True, slots=True)
class BatchPiece:
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

    def fill(self, tokens: Sequence[int], pieces: Iterable[BatchPiece]) -> int:
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


PARTIAL = 1
"""`LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY`: what cutting off cannot bring back."""
TYPES = {"f32": 0, "f16": 1}
FLASH_AUTO, FLASH_OFF = -1, 0
_ADDRESS = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)
"""`llama_get_logits` as a number, which takes no pointer object to read."""
Copy = bytearray
"""Bytes of a sequence, or of its recurrent part."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextSettings:
    """Settings of a context; `rollback` is `n_rs_seq`.

    `length` positions for each of `sequences`. A pass takes `batch` rows, of which `micro_batch`
    run at once. Keys and values are kept as `kv`. `threads` None: as torch has.
    """

    length: int
    sequences: int = 1
    batch: int = 2048
    micro_batch: int = 512
    rollback: int = 0
    threads: int | None = None
    kv: str = "f16"

    @property
    def effective_micro_batch(self) -> int:
        """Rows that really run at once, as the library has it for causal models."""
        batch = min(self.length * self.sequences, self.batch)
        return min(batch, self.micro_batch or batch)

    @property
    def holds_snapshots(self) -> bool:
        """True if `rollback` rows can be taken back: the library keeps these and the newest in
        one micro-batch, which must be larger still, or it aborts."""
        return self.rollback + 1 < self.effective_micro_batch


class LlamaContext:
    """Sequences are numbers; their memory is addressed by positions."""

    def __init__(self, weights: LlamaWeights, settings: ContextSettings) -> None:
        """Raises ConfigError where the library refuses, or would abort."""
        self.weights, self._call = weights, weights.library.call
        if weights.is_recurrent and not settings.holds_snapshots:
            raise ConfigError(
                f"target.micro_batch = {settings.micro_batch} runs "
                f"{settings.effective_micro_batch} rows at once, but taking back "
                f"{settings.rollback} needs {settings.rollback + 2} of them: raise it, "
                "target.batch or target.max_length, or lower the number of drafts."
            )
        self.handle = self._call.llama_init_from_model(weights.handle, self._parameters(settings))
        if not self.handle:
            raise ConfigError(
                f"llama.cpp cannot make a context of {settings.length} positions for "
                f"{settings.sequences} sequences of {weights.path}: there is too little memory; "
                "lower target.max_length or the number of sequences."
            )
        weakref.finalize(self, _end, self.handle, weights)
        self._memory = self._call.llama_get_memory(self.handle)
        found = ctypes.cast(self._call.llama_get_logits, ctypes.c_void_p).value
        self._logits: Callable[[Any], int] = _ADDRESS(found or 0)
        self.length = min(settings.length, int(self._call.llama_n_ctx_seq(self.handle)))
        self._batch = Batch(self._call, int(self._call.llama_n_batch(self.handle)))
        self._free = list(range(settings.sequences))
        self._newest = _view(0, 0, weights.vocab_size)
        self._views: dict[int, tuple[Tensor, Any]] = {}
        self._place = 0
        self.snapshots = int(self._call.llama_n_rs_seq(self.handle))
        """States that it keeps after the newest; 0 where its layers or the settings have none."""

    def _parameters(self, settings: ContextSettings) -> object:
        wanted = self._call.llama_context_default_params()
        wanted.n_ctx = settings.length * settings.sequences
        wanted.n_seq_max = settings.sequences
        wanted.n_batch, wanted.n_ubatch = settings.batch, settings.micro_batch
        wanted.n_rs_seq = settings.rollback if self.weights.is_recurrent else 0
        wanted.n_threads = wanted.n_threads_batch = settings.threads or torch.get_num_threads()
        wanted.type_k = wanted.type_v = TYPES[settings.kv]
        wanted.flash_attn_type = FLASH_OFF if settings.kv == "f32" else FLASH_AUTO
        wanted.kv_unified = False
        wanted.no_perf = True
        return wanted

    def take(self) -> int:
        """A sequence that nobody has; raises StageError where all are taken."""
        if not self._free:
            raise StageError("all sequences of the llama.cpp context are in use.")
        sequence = min(self._free)
        self._free.remove(sequence)
        return sequence

    def give_back(self, sequence: int) -> None:
        """Forget a sequence; its number is free again."""
        self.clear(sequence)
        self._free.append(sequence)

    def end(self, sequence: int) -> int:
        """The position after its newest row."""
        return int(self._call.llama_memory_seq_pos_max(self._memory, sequence)) + 1

    def clear(self, sequence: int) -> None:
        self._call.llama_memory_seq_rm(self._memory, sequence, -1, -1)

    def cut(self, sequence: int, length: int) -> bool:
        """Remove the rows from `length` > 0 on; False where the library refuses."""
        return bool(self._call.llama_memory_seq_rm(self._memory, sequence, length, -1))

    def nbytes(self, sequence: int, flags: int = 0) -> int:
        """Size of a copy of a sequence."""
        return int(self._call.llama_state_seq_get_size_ext(self.handle, sequence, flags))

    def save(self, sequence: int, flags: int = 0) -> Copy:
        """A copy of a sequence, or of its recurrent part alone (`PARTIAL`)."""
        size = self.nbytes(sequence, flags)
        copy = bytearray(size)
        place = (ctypes.c_uint8 * size).from_buffer(copy)
        got = self._call.llama_state_seq_get_data_ext(self.handle, place, size, sequence, flags)
        if got != size:
            raise StageError(f"llama.cpp saved {got} of {size} bytes of a sequence.")
        return copy

    def load(self, sequence: int, copy: Copy, flags: int = 0) -> None:
        """Bring a copy back; raises StageError where the library refuses it."""
        data = (ctypes.c_uint8 * len(copy)).from_buffer(copy)
        if not self._call.llama_state_seq_set_data_ext(
            self.handle, data, len(copy), sequence, flags
        ):
            raise StageError("llama.cpp does not take its own copy of a sequence back.")

    def run(self, tokens: Sequence[int], pieces: Sequence[BatchPiece]) -> Tensor:
        """Run the rows of the pieces, in order; logits fp32 [wanted rows, vocab].

        They are a view that the next pass overwrites. Raises StageError where the library fails.
        """
        if len(tokens) <= self._batch.size:
            return self._decode(tokens, pieces)
        found, row = [], 0
        for part in _split(pieces, self._batch.size):
            found.append(self._decode(tokens[row : row + part.rows], [part]).clone())
            row += part.rows
        return torch.cat(found)

    def _decode(self, tokens: Sequence[int], pieces: Sequence[BatchPiece]) -> Tensor:
        wanted = self._batch.fill(tokens, pieces)
        status = self._call.llama_decode(self.handle, self._batch.given)
        if status:
            raise StageError(
                f"llama.cpp could not run {len(tokens)} rows (status {status}); --log-level info "
                "shows what it said."
            )
        place = self._logits(self.handle) if wanted else self._place
        if place != self._place:
            self._views, self._place = {}, place
        if wanted not in self._views:
            self._views[wanted] = _view(place, wanted, self.weights.vocab_size)
        self._newest = self._views[wanted]
        return self._newest[0]

    def argmax(self, logits: Tensor) -> list[int] | None:
        """The likeliest token of each row that `run` gave, as `argmax_rows` has it.

        A pass leaves the caches to its weights: a call of torch takes 60 microseconds after it.
        """
        tensor, values = self._newest
        return argmax_of(values) if tensor is logits else argmax_rows(logits)


def _view(place: int, rows: int, vocab: int) -> tuple[Tensor, Any]:
    """Logits [rows, vocab] where the library keeps them, for torch and for numpy."""
    if not rows:
        tensor = torch.empty(0, vocab)
    else:
        values = (ctypes.c_float * (rows * vocab)).from_address(place)
        tensor = torch.frombuffer(values, dtype=torch.float32).view(rows, vocab)
    return tensor, tensor.numpy()


def _split(pieces: Sequence[BatchPiece], size: int) -> list[BatchPiece]:
    """The pieces cut into ones of at most `size` rows; logits stay with the last rows."""
    parts = []
    for piece in pieces:
        for row in range(0, piece.rows, size):
            rows = min(size, piece.rows - row)
            behind = piece.rows - row - rows
            wanted = min(max(piece.wanted - behind, 0), rows)
            parts.append(BatchPiece(piece.sequence, piece.start + row, rows, wanted))
    return parts


def _end(handle: object, weights: LlamaWeights) -> None:
    """Free a context; `weights` are held until then."""
    weights.library.call.llama_free(handle)

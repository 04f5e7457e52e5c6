"""GGUF files of block drafters, architecture `dflash`, as a folder of the same drafter would be.

Keys and tensors of llama.cpp, and of PrismML's fork for log-SNR conditioning. Target layers count
as entries of transformers' `hidden_states` do. Blocks are not causal there.
"""

import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from outrider.draft.block.formats import GGUF
from outrider.errors import CheckpointError
from outrider.models.gguf_config import dense_words
from outrider.models.gguf_file import GgufFile
from outrider.models.gguf_tensors import ATTENTION, LAYER
from outrider.models.weights import refuse_unexplained

ARCHITECTURE, OLDER = "dflash", "dspark"
MAP = "d2t"
TOP = {
    "fc": "fc",
    "hidden_norm": "enc.output_norm",
    "norm": "output_norm",
    "embed_tokens": "token_embd",
    "lm_head": "output",
    "markov_head.markov_w1": "markov_w1",
    "markov_head.markov_w2": "markov_w2",
    "confidence_head.proj": "conf_proj",
    "log_snr_embed.fc1": "log_snr_fc1",
    "log_snr_embed.fc2": "log_snr_fc2",
}


def words(file: GgufFile) -> dict[str, Any]:
    """The file's metadata in the words of a config.json; CheckpointError for the older kind."""
    if file.text("general.architecture") == OLDER:
        raise CheckpointError(
            f"{file.path}: general.architecture {OLDER!r} is the older form of a block drafter: "
            f"convert it to {ARCHITECTURE!r}."
        )
    found = {**dense_words(file, ARCHITECTURE), "architectures": [GGUF], "is_causal": False}
    layers = file.numbers(f"{ARCHITECTURE}.target_layers")
    found["aux_hidden_state_layer_ids"] = [int(layer) for layer in layers]
    found["mask_token_id"] = file.number("tokenizer.ggml.mask_token_id")
    for key in ("block_size", "sample_from_anchor", "markov_rank", "min_log_snr", "max_log_snr"):
        if (name := f"{ARCHITECTURE}.{key}") in file.values:
            found[key] = file.values[name]
    if window := file.number(f"{ARCHITECTURE}.attention.sliding_window", 0):
        pattern = file.numbers(f"{ARCHITECTURE}.attention.sliding_window_pattern")
        kinds = ["sliding_attention" if slides else "full_attention" for slides in pattern]
        found |= {"sliding_window": window, "layer_types": kinds}
    return found


class BlockTensors:
    """The interface of `Checkpoint` over such a file."""

    def __init__(self, file: GgufFile) -> None:
        self._file = file
        stored = dict(_named(name) for name in file.tensors)
        self.shapes = {name: file.tensors[own].shape for name, own in stored.items()}
        if shape := self.shapes.get("confidence_head.proj.weight"):
            self.shapes["confidence_head.proj.weight"] = (1, shape[-1])
        self._stored, self._taken = stored, set[str]()

    def __enter__(self) -> "BlockTensors":
        return self

    def __exit__(self, *error: object) -> None:
        """Files are open only while a tensor is read."""

    @property
    def names(self) -> frozenset[str]:
        return frozenset(self._stored)

    def count_parameters(self) -> int:
        """Elements of all tensors."""
        return sum(map(math.prod, self.shapes.values()))

    def take(self, name: str, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """The tensor `name` in `dtype`; the map as offsets, which a GGUF file has as ids."""
        if name not in self._stored:
            raise CheckpointError(f"tensor {name} is missing from {self._file.path}.")
        self._taken.add(name)
        entry = self._file.tensors[self._stored[name]]
        if [n for n in entry.shape if n != 1] != [n for n in shape if n != 1]:
            raise CheckpointError(
                f"{self._file.path}: tensor {entry.name} has shape {entry.shape}, but the metadata "
                f"implies {shape}."
            )
        if name != MAP:
            return self._file.read(entry.name).reshape(shape).to(dtype)
        return (self._file.integers(MAP) - torch.arange(shape[0])).to(dtype)

    def leave(self, names: Iterable[str]) -> None:
        """Account for tensors that are deliberately not used."""
        self._taken.update(names)

    def finish(self) -> None:
        """Raise if a tensor was neither taken nor left on purpose."""
        unexplained = self.names - self._taken
        refuse_unexplained(unexplained, origin=self._file.path, explains="metadata")


_NAMES = {stored: name for name, stored in TOP.items()}
_LAYERS = {
    stored: name
    for name, stored in {**LAYER, **ATTENTION, "post_attention_layernorm": "ffn_norm"}.items()
}


def _named(stored: str) -> tuple[str, str]:
    """A stored name's counterpart in a folder, or itself where there is none; and itself."""
    stem, _, kind = stored.rpartition(".")
    if stem in _NAMES:
        return f"{_NAMES[stem]}.{kind}", stored
    number, _, part = stem.removeprefix("blk.").partition(".")
    if part in _LAYERS:
        return f"layers.{number}.{_LAYERS[part]}.{kind}", stored
    return stored, stored

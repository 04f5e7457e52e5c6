"""GGUF files of block drafters, as a folder of the same drafter would be.

Architecture `dflash` has the keys and tensors of llama.cpp, and of PrismML's fork for log-SNR
conditioning; its target layers count as entries of transformers' `hidden_states` do. `dspark` is
that fork's older form: the drafter's own keys have the prefix twice, target layers count from the
output of the first, and there is no vocabulary. Blocks are not causal in either.
"""

from typing import Any

import torch
from torch import Tensor

from outrider.draft.block.formats import CONFIDENCE, GGUF
from outrider.formats.gguf_file import GgufFile
from outrider.formats.tensors import TensorSource
from outrider.models.gguf_config import dense_words
from outrider.models.gguf_tensors import ATTENTION, LAYER, GgufTensors, Stored

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
OLDER_TOP = {
    "fc": "dspark.fc",
    "hidden_norm": "dspark.hidden_norm",
    "markov_head.markov_w1": "dspark.markov_head_a",
    "markov_head.markov_w2": "dspark.markov_head_b",
    "confidence_head.proj": "dspark.confidence_head",
    "log_snr_embed.fc1": "dspark.log_snr_fc1",
    "log_snr_embed.fc2": "dspark.log_snr_fc2",
}
OWN_KEYS = ("block_size", "sample_from_anchor", "markov_rank", "min_log_snr", "max_log_snr")


def words(file: GgufFile) -> dict[str, Any]:
    """The file's metadata in the words of a config.json."""
    kind = file.text("general.architecture")
    older = kind == OLDER
    own = f"{OLDER}.{OLDER}" if older else kind
    shape = dense_words(file, kind, "dspark.markov_head_a.weight" if older else "token_embd.weight")
    found = {**shape, "architectures": [GGUF], "is_causal": False}
    layers = file.numbers(f"{own}.target_layers")
    found["aux_hidden_state_layer_ids"] = [int(layer) + older for layer in layers]
    mask = f"{own}.mask_token_id" if older else "tokenizer.ggml.mask_token_id"
    found["mask_token_id"] = file.number(mask)
    for key in OWN_KEYS:
        if (name := f"{own}.{key}") in file.values:
            found[key] = file.values[name]
    if window := file.number(f"{kind}.attention.sliding_window", 0):
        pattern = file.numbers(f"{kind}.attention.sliding_window_pattern")
        kinds = ["sliding_attention" if slides else "full_attention" for slides in pattern]
        found |= {"sliding_window": window, "layer_types": kinds}
    return found


class BlockTensors(GgufTensors):
    """The tensors of such a file."""

    def __init__(self, file: GgufFile) -> None:
        TensorSource.__init__(self, file.path)
        self._file = file
        self._stored = {_named(name): Stored(name, torch.clone) for name in file.tensors}
        self._others = set()

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Shapes of all tensors by name; a single output row is no dimension here."""
        shapes = {name: self._file.tensors[own.name].shape for name, own in self._stored.items()}
        if shape := shapes.get(CONFIDENCE):
            shapes[CONFIDENCE] = (1, shape[-1])
        return shapes

    def take(self, name: str, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """The tensor `name` in `dtype`; the map as offsets, which a GGUF file has as ids."""
        if name != MAP or name not in self._stored:
            return super().take(name, shape, dtype).reshape(shape)
        self.leave([name])
        return (self._file.integers(name) - torch.arange(shape[0])).to(dtype)


_NAMES = {stored: name for names in (TOP, OLDER_TOP) for name, stored in names.items()}
_LAYERS = {
    stored: name
    for name, stored in {**LAYER, **ATTENTION, "post_attention_layernorm": "ffn_norm"}.items()
}


def _named(stored: str) -> str:
    """A stored name's counterpart in a folder, or itself where there is none."""
    stem, _, kind = stored.rpartition(".")
    if stem in _NAMES:
        return f"{_NAMES[stem]}.{kind}"
    number, _, part = stem.removeprefix("blk.").partition(".")
    return f"layers.{number}.{_LAYERS[part]}.{kind}" if part in _LAYERS else stored

"""An architecture in both formats, and the table of all of them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache, partial
from importlib import import_module
from pkgutil import iter_modules
from typing import Any

import torch
from torch import Tensor

from outrider.formats.gguf_file import GgufFile
from outrider.models.config import ModelConfig

Words = Mapping[str, Any]
"""Keys of a config.json with their values."""
Restore = Callable[[Tensor], Tensor]
"""Undoes what llama.cpp's converter did to a tensor."""

COMMON: Words = {"hidden_act": "silu", "rms_norm_eps": 1e-6, "tie_word_embeddings": False}
"""Defaults that all architectures share."""
LAYER_TENSORS = {
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
}
"""Modules of a layer in a Hugging Face folder, and in a GGUF file."""


def weights_and_biases(modules: Mapping[str, str]) -> dict[str, str]:
    """Names of the modules' tensors, each with a weight and a bias that may be there."""
    return {
        f"{ours}.{kind}": f"{theirs}.{kind}"
        for ours, theirs in modules.items()
        for kind in ("weight", "bias")
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class Gguf:
    """An architecture in GGUF files.

    name: their `general.architecture`. words: translates metadata, where there is more than what
    all architectures share, which it is given. tensors: names in a layer `layers.N.` of a folder
    and in a block `blk.N.` of a file. restores: by name in a layer, for a config.
    """

    name: str
    words: Callable[[GgufFile, dict[str, Any]], dict[str, Any]] | None = None
    tensors: Mapping[str, str] = field(default_factory=lambda: weights_and_biases(LAYER_TENSORS))
    restores: Callable[[ModelConfig], Mapping[str, Restore]] = lambda _: {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """An architecture as a config.json names it by `model_type`.

    defaults: meaning of a key that is missing, as in transformers; shapes that all architectures
    have must be stated. nullable: keys that may be null, which is not always their default.
    counts: keys whose value is a whole number of at least 1. config: from the words, with defaults,
    to our own. unwrap: replaces the words before anything else is read of them.
    """

    model_type: str
    defaults: Words
    nullable: frozenset[str] = frozenset()
    counts: frozenset[str] = frozenset({"num_key_value_heads", "head_dim"})
    config: Callable[[Words], ModelConfig]
    unwrap: Callable[[Words], Words] | None = None
    gguf: Gguf | None = None


@cache
def families() -> Mapping[str, Family]:
    """All architectures by `model_type`: the `FAMILIES` of each file of this folder."""
    package = import_module(__package__ or "")
    names = [f"{__package__}.{found.name}" for found in iter_modules(package.__path__)]
    modules = [import_module(name) for name in names]
    found = [family for module in modules for family in getattr(module, "FAMILIES", ())]
    return {family.model_type: family for family in found}


def family_of_gguf(name: str) -> Family | None:
    """The architecture that GGUF files call `name`."""
    return next((one for one in families().values() if one.gguf and one.gguf.name == name), None)


def halves(rows: Tensor, heads: int) -> Tensor:
    """Rows of rotary heads from neighbours, as llama.cpp rotates them, to halves."""
    return torch.unflatten(rows, 0, (heads, -1, 2)).transpose(1, 2).flatten(0, 2)


def rotary_restores(config: ModelConfig) -> dict[str, Restore]:
    """For architectures whose rotary heads llama.cpp interleaves."""
    heads = {"q": config.attention.heads, "k": config.attention.kv_heads}
    return {
        f"self_attn.{name}_proj.{kind}": partial(halves, heads=count)
        for name, count in heads.items()
        for kind in ("weight", "bias")
    }

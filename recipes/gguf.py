"""A transformers model as a GGUF file, with the conventions of llama.cpp's own converter.

`python -m recipes.gguf FOLDER FILE [--pre NAME] [--kind Q8_0]`. For the architectures that Outrider
reads (llama, qwen2, qwen3, qwen35); nothing here is taken from its reader, which is
tested against it.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gguf import GGMLQuantizationType, GGUFWriter, quants
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM, PreTrainedModel

ARCHITECTURES = {
    "llama": "llama",
    "mistral": "llama",
    "qwen2": "qwen2",
    "qwen3": "qwen3",
    "qwen3_5_text": "qwen35",
}
CONTROL, USER_DEFINED, NORMAL = 3, 4, 1
NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "linear_attn.in_proj_qkv": "attn_qkv",
    "linear_attn.in_proj_z": "attn_gate",
    "linear_attn.in_proj_a": "ssm_alpha",
    "linear_attn.in_proj_b": "ssm_beta",
    "linear_attn.conv1d": "ssm_conv1d",
    "linear_attn.norm": "ssm_norm",
    "linear_attn.out_proj": "ssm_out",
    "linear_attn.A_log": "ssm_a",
    "linear_attn.dt_bias": "ssm_dt.bias",
    "input_layernorm": "attn_norm",
}
Arrays = dict[str, np.ndarray]
Metadata = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Content:
    """Content of a file: architecture, metadata by key, tensors and their types.

    A tensor of bytes is written as it is, under its type.
    """

    architecture: str
    metadata: dict[str, Any] = field(default_factory=dict)
    tensors: Arrays = field(default_factory=dict)
    kinds: dict[str, GGMLQuantizationType] = field(default_factory=dict)


def content(model: PreTrainedModel) -> Content:
    """A model's metadata and tensors as llama.cpp's converter would write them, in fp32."""
    architecture = ARCHITECTURES[model.config.model_type]
    tensors = {key: value.detach().numpy() for key, value in model.state_dict().items()}
    if model.config.tie_word_embeddings:
        del tensors["lm_head.weight"]
    stored: Arrays = {}
    for key, value in tensors.items():
        stored[_name(key, architecture)] = _convert(key, value, model.config, architecture)
    if model.config.rope_parameters["rope_type"] == "llama3":
        stored["rope_freqs.weight"] = _divisors(model)
    return Content(
        architecture=architecture, metadata=_metadata(architecture, model.config), tensors=stored
    )


def _name(key: str, architecture: str) -> str:
    key = key.removeprefix("model.layers.") if ".layers." in key else key
    layer, _, rest = key.partition(".")
    prefix, rest = (f"blk.{layer}.", rest) if layer.isdigit() else ("", key)
    stem, _, kind = rest.rpartition(".")
    if rest in NAMES:
        return prefix + NAMES[rest]
    if stem == "post_attention_layernorm":
        norm = "post_attention_norm" if architecture == "qwen35" else "ffn_norm"
        return f"{prefix}{norm}.{kind}"
    return f"{prefix}{NAMES[stem]}.{kind}"


def _convert(key: str, value: np.ndarray, config: Any, architecture: str) -> np.ndarray:
    if architecture == "llama" and "q_proj" in key:
        return _interleave(value, config.num_attention_heads)
    if architecture == "llama" and "k_proj" in key:
        return _interleave(value, config.num_key_value_heads)
    if architecture != "qwen35":
        return value
    if key.endswith("norm.weight") and "linear_attn" not in key:
        return value + 1
    return _tile(key, value, config) if "linear_attn" in key else value


def _interleave(rows: np.ndarray, heads: int) -> np.ndarray:
    """Rows of a head from (half, index) to (index, half)."""
    halves = rows.reshape(heads, 2, rows.shape[0] // heads // 2, *rows.shape[1:])
    return np.ascontiguousarray(halves.swapaxes(1, 2).reshape(rows.shape))


def _tile(key: str, value: np.ndarray, config: Any) -> np.ndarray:
    """Value heads from (key head, of it) to (of it, key head); -exp of A_log; no middle axis."""
    keys = config.linear_num_key_heads * config.linear_key_head_dim * 2
    order = _order(config.linear_num_key_heads, config.linear_num_value_heads)
    wide = _spread(order, config.linear_value_head_dim)
    name = key.rpartition("linear_attn.")[2].removesuffix(".weight")
    if name == "conv1d":
        value = value[:, 0]
    if name in ("in_proj_qkv", "conv1d"):
        return np.concatenate([value[:keys], value[keys:][wide]])
    rules: dict[str, Callable[[], np.ndarray]] = {
        "in_proj_z": lambda: value[wide],
        "in_proj_a": lambda: value[order],
        "in_proj_b": lambda: value[order],
        "dt_bias": lambda: value[order],
        "A_log": lambda: -np.exp(value[order]),
        "out_proj": lambda: np.ascontiguousarray(value[:, wide]),
    }
    return rules[name]() if name in rules else value


def _order(key_heads: int, value_heads: int) -> np.ndarray:
    per_key = value_heads // key_heads
    return np.array([key * per_key + own for own in range(per_key) for key in range(key_heads)])


def _spread(heads: np.ndarray, width: int) -> np.ndarray:
    return (heads[:, None] * width + np.arange(width)).reshape(-1)


def _divisors(model: PreTrainedModel) -> np.ndarray:
    config = model.config
    exponents = np.arange(0, config.head_dim, 2, dtype=np.float32) / config.head_dim
    plain = 1.0 / np.float32(10000.0) ** exponents
    scaled = model.model.rotary_emb.inv_freq.numpy()
    return (plain / scaled).astype(np.float32)


def _metadata(architecture: str, config: Any) -> dict[str, Any]:
    values: dict[str, Any] = {
        "vocab_size": config.vocab_size,
        "context_length": config.max_position_embeddings,
        "embedding_length": config.hidden_size,
        "block_count": config.num_hidden_layers,
        "feed_forward_length": config.intermediate_size,
        "attention.head_count": config.num_attention_heads,
        "attention.head_count_kv": config.num_key_value_heads,
        "attention.key_length": config.head_dim,
        "attention.value_length": config.head_dim,
        "attention.layer_norm_rms_epsilon": float(config.rms_norm_eps),
        "rope.dimension_count": config.head_dim,
        "rope.freq_base": float(config.rope_parameters["rope_theta"]),
    }
    rope = config.rope_parameters
    if rope["rope_type"] in ("linear", "yarn"):
        values |= {"rope.scaling.type": rope["rope_type"], "rope.scaling.factor": rope["factor"]}
    if rope["rope_type"] == "yarn":
        trained = rope["original_max_position_embeddings"]
        values["rope.scaling.original_context_length"] = trained
    if architecture == "qwen35":
        rotated = int(config.head_dim * rope["partial_rotary_factor"])
        values |= {
            "rope.dimension_count": rotated,
            # Interleaved, of equal size: text has the same position in all of them.
            "rope.dimension_sections": [*((rotated // 2 + 2 - part) // 3 for part in range(3)), 0],
            "full_attention_interval": config.layer_types.index("full_attention") + 1,
            "ssm.conv_kernel": config.linear_conv_kernel_dim,
            "ssm.state_size": config.linear_key_head_dim,
            "ssm.group_count": config.linear_num_key_heads,
            "ssm.time_step_rank": config.linear_num_value_heads,
            "ssm.inner_size": config.linear_num_value_heads * config.linear_value_head_dim,
        }
    return {f"{architecture}.{key}": value for key, value in values.items()}


def tokenizer_metadata(tokenizer: Tokenizer, pre: str, end: int) -> dict[str, Any]:
    """A byte-level BPE tokenizer; `pre` names its split as llama.cpp does."""
    state = json.loads(tokenizer.to_str())
    kinds = {t["id"]: CONTROL if t["special"] else USER_DEFINED for t in state["added_tokens"]}
    size = tokenizer.get_vocab_size()
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": [tokenizer.id_to_token(at) for at in range(size)],
        "tokenizer.ggml.token_type": [kinds.get(at, NORMAL) for at in range(size)],
        "tokenizer.ggml.merges": [" ".join(pair) for pair in state["model"]["merges"]],
        "tokenizer.ggml.eos_token_id": end,
        "tokenizer.ggml.add_bos_token": False,
    }


def quantised(given: Content, kind: GGMLQuantizationType) -> Content:
    """The same model with every matrix in `kind`; vectors and the convolution stay in fp32."""
    kinds = {
        name: kind
        for name, value in given.tensors.items()
        if value.ndim == 2 and "conv1d" not in name
    }
    return Content(
        architecture=given.architecture,
        metadata=given.metadata,
        tensors=given.tensors,
        kinds=kinds,
    )


def write(given: Content, path: Path, **split: int) -> Path:
    """Write a file; `split` sets `no`, `count` and `tensors` of a part."""
    writer = GGUFWriter(path, given.architecture)
    names = {"no": "split.no", "count": "split.count", "tensors": "split.tensors.count"}
    for key, value in split.items():
        writer.add_uint16(names[key], value)
    for key, value in given.metadata.items():
        _add(writer, key, value)
    for name, value in given.tensors.items():
        kind = given.kinds.get(name)
        encoded = kind is None or value.dtype == np.uint8
        raw = value if encoded else quants.quantize(value, kind)
        writer.add_tensor(name, np.ascontiguousarray(raw), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _add(writer: GGUFWriter, key: str, value: Any) -> None:
    adders: dict[type, Callable[..., None]] = {
        bool: writer.add_bool,
        int: writer.add_uint32,
        float: writer.add_float32,
        str: writer.add_string,
        list: writer.add_array,
    }
    adders[type(value)](key, value)


def convert(folder: Path, file: Path, pre: str, kind: str | None = None) -> None:
    """Write a folder's model and tokenizer to one file, its matrices in `kind` or fp32."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    whole = content(model)
    if kind:
        whole = quantised(whole, GGMLQuantizationType[kind])
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    whole.metadata.update(tokenizer_metadata(tokenizer, pre, model.config.eos_token_id))
    write(whole, file)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("file", type=Path)
    parser.add_argument("--pre", default="qwen2", help="the tokenizer's split, by llama.cpp's name")
    parser.add_argument("--kind", help="type of the matrices, such as Q8_0; fp32 where not given")
    convert(**vars(parser.parse_args()))


if __name__ == "__main__":
    main()

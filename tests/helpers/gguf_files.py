"""Tiny GGUF files, written from transformers models with the conventions of llama.cpp's converter.

An independent statement of those conventions: nothing here is taken from the reader under test.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from gguf import GGMLQuantizationType, GGUFWriter, quants
from transformers import PreTrainedModel

from tests.helpers.checkpoints import (
    COMMON,
    HYBRID,
    LINEAR_ROPE,
    LLAMA3_ROPE,
    YARN_ROPE,
    randomise,
)

# Widths are multiples of 32, the block of the simple quantised types.
SIZES: dict[str, Any] = {"hidden_size": 64, "intermediate_size": 96, "head_dim": 16}
DENSE: dict[str, Any] = {**COMMON, **SIZES, "num_hidden_layers": 2}
MODELS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "llama": ("llama", "LlamaForCausalLM", DENSE),
    "llama-biased": (
        "llama",
        "LlamaForCausalLM",
        {**DENSE, "attention_bias": True, "mlp_bias": True},
    ),
    "llama-tied": ("llama", "LlamaForCausalLM", {**DENSE, "tie_word_embeddings": True}),
    "llama-rope-llama3": ("llama", "LlamaForCausalLM", {**DENSE, "rope_parameters": LLAMA3_ROPE}),
    "llama-rope-linear": ("llama", "LlamaForCausalLM", {**DENSE, "rope_parameters": LINEAR_ROPE}),
    "qwen2": ("qwen2", "Qwen2ForCausalLM", DENSE),
    "qwen2-yarn": ("qwen2", "Qwen2ForCausalLM", {**DENSE, "rope_parameters": YARN_ROPE}),
    "qwen3": ("qwen3", "Qwen3ForCausalLM", DENSE),
    "qwen35": (
        "qwen35",
        "Qwen3_5ForCausalLM",
        {**HYBRID, **SIZES, "linear_num_value_heads": 6, "linear_value_head_dim": 32},
    ),
}
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
    """What goes into a file: architecture, metadata by key, tensors and their types.

    A tensor of bytes is written as it is, under its type.
    """

    architecture: str
    metadata: dict[str, Any] = field(default_factory=dict)
    tensors: Arrays = field(default_factory=dict)
    kinds: dict[str, GGMLQuantizationType] = field(default_factory=dict)


def build(name: str, seed: int = 0) -> PreTrainedModel:
    _, class_name, settings = MODELS[name]
    model_class = getattr(transformers, class_name)
    torch.manual_seed(seed)
    model: PreTrainedModel = model_class(model_class.config_class(**settings)).eval()
    randomise(model)
    return model


def content(name: str, model: PreTrainedModel) -> Content:
    """A model's metadata and tensors as llama.cpp's converter would write them, in fp32."""
    architecture = MODELS[name][0]
    tensors = {key: value.detach().numpy() for key, value in model.state_dict().items()}
    if model.config.tie_word_embeddings:
        del tensors["lm_head.weight"]
    stored: Arrays = {}
    for key, value in tensors.items():
        stored[_name(key, architecture)] = _convert(key, value, model.config, architecture)
    if "llama3" in name:
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
        values |= {
            "rope.dimension_count": int(config.head_dim * rope["partial_rotary_factor"]),
            "full_attention_interval": 2,
            "ssm.conv_kernel": config.linear_conv_kernel_dim,
            "ssm.state_size": config.linear_key_head_dim,
            "ssm.group_count": config.linear_num_key_heads,
            "ssm.time_step_rank": config.linear_num_value_heads,
            "ssm.inner_size": config.linear_num_value_heads * config.linear_value_head_dim,
        }
    return {f"{architecture}.{key}": value for key, value in values.items()}


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


def rounded(given: Content) -> Content:
    """The fp32 model that a quantised one stands for."""
    tensors = {
        name: quants.dequantize(quants.quantize(value, given.kinds[name]), given.kinds[name])
        if name in given.kinds
        else value
        for name, value in given.tensors.items()
    }
    return Content(architecture=given.architecture, metadata=given.metadata, tensors=tensors)


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

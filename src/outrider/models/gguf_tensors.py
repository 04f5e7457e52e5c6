"""A GGUF file's tensors under the names, and in the layouts, of a Hugging Face checkpoint.

llama.cpp's converter interleaves the halves of rotary heads (llama), adds one to zero-centred
norms, and reorders value heads for its broadcasting (qwen35); all of that is undone here.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from outrider.errors import CheckpointError
from outrider.formats.gguf_file import GgufFile
from outrider.formats.tensors import TensorSource
from outrider.models.config import AttentionConfig, DeltaConfig, ModelConfig
from outrider.models.gguf_config import ROPE_DIVISORS

Restore = Callable[[Tensor], Tensor]


@dataclass(frozen=True, slots=True)
class Stored:
    """Where a tensor lies, and what undoes the converter's changes to it."""

    name: str
    restore: Restore


TOP = {
    "embed_tokens.weight": "token_embd.weight",
    "norm.weight": "output_norm.weight",
}
LAYER = {
    "input_layernorm": "attn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
ATTENTION = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
}
DELTA = {
    "linear_attn.in_proj_qkv.weight": "attn_qkv.weight",
    "linear_attn.in_proj_z.weight": "attn_gate.weight",
    "linear_attn.in_proj_b.weight": "ssm_beta.weight",
    "linear_attn.in_proj_a.weight": "ssm_alpha.weight",
    "linear_attn.conv1d.weight": "ssm_conv1d.weight",
    "linear_attn.A_log": "ssm_a",
    "linear_attn.dt_bias": "ssm_dt.bias",
    "linear_attn.norm.weight": "ssm_norm.weight",
    "linear_attn.out_proj.weight": "ssm_out.weight",
}


class GgufTensors(TensorSource):
    """The tensors of a GGUF file."""

    explains = "metadata"

    def __init__(self, file: GgufFile, config: ModelConfig) -> None:
        super().__init__(file.path)
        self._file = file
        _check_heads(file, config)
        self._stored = {
            name: stored
            for name, stored in _layout(file, config).items()
            if stored.name in file.tensors
        }
        known = {stored.name for stored in self._stored.values()} | {ROPE_DIVISORS}
        self._others = {_other(name, config) for name in file.tensors if name not in known}

    @property
    def names(self) -> frozenset[str]:
        return frozenset(self._stored) | frozenset(self._others)

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        return {name: entry.shape for name, entry in self._file.tensors.items()}

    def take(self, name: str, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """The tensor `name`, dequantised, in `dtype` and the layout of a Hugging Face folder."""
        if name not in self._stored:
            raise CheckpointError(f"tensor {name} is missing from {self.folder}.")
        stored = self._stored[name]
        _check_shape(self._file, stored.name, shape)
        self._taken.add(name)
        return stored.restore(self._file.read(stored.name)).to(dtype)


def _check_shape(file: GgufFile, name: str, wanted: tuple[int, ...]) -> None:
    """GGUF leaves out dimensions of one, as that of a convolution over each channel alone."""
    found = file.tensors[name].shape
    if [size for size in found if size != 1] != [size for size in wanted if size != 1]:
        raise file.fault(f"tensor {name} has shape {found}, but the metadata implies {wanted}.")


def _check_heads(file: GgufFile, config: ModelConfig) -> None:
    """Compare head counts with the tensors before anything of their size is made."""
    attention, delta, hidden = config.attention, config.delta, config.hidden_size
    gates = 2 if attention.output_gate else 1
    wanted: dict[str, tuple[int, ...]] = {
        "attn_q.weight": (gates * attention.heads * attention.width, hidden),
        "attn_k.weight": (attention.kv_heads * attention.width, hidden),
    }
    if delta:
        wanted |= {
            "attn_qkv.weight": (delta.channels, hidden),
            "attn_gate.weight": (delta.value_heads * delta.value_width, hidden),
            "ssm_a": (delta.value_heads,),
        }
    for name in file.tensors:
        if (shape := wanted.get(name.partition(".")[2].partition(".")[2])) is not None:
            _check_shape(file, name, shape)


def _other(name: str, config: ModelConfig) -> str:
    """Layers after the last are the MTP part, which the loader knows by its prefix."""
    block, _, rest = name.removeprefix("blk.").partition(".")
    if config.mtp_layers and block.isdigit() and int(block) >= config.num_layers:
        return f"mtp.{block}.{rest}"
    return name


def _layout(file: GgufFile, config: ModelConfig) -> dict[str, Stored]:
    """Every tensor that a config of this kind may have."""
    prefix = config.tensor_prefix
    layout = {f"{prefix}{name}": Stored(stored, _same) for name, stored in TOP.items()}
    layout["lm_head.weight"] = Stored("output.weight", _same)
    restores = _restores(file, config)
    for layer in range(config.num_layers):
        for name, stored in _layer(config).items():
            layout[f"{prefix}layers.{layer}.{name}"] = Stored(
                f"blk.{layer}.{stored}", restores.get(name, _same)
            )
    return layout


def _layer(config: ModelConfig) -> dict[str, str]:
    norm = "post_attention_norm" if config.delta else "ffn_norm"
    pairs = {**LAYER, "post_attention_layernorm": norm, **ATTENTION}
    names = {
        f"{name}.{kind}": f"{stored}.{kind}"
        for name, stored in pairs.items()
        for kind in ("weight", "bias")
    }
    return names | DELTA if config.delta else names


def _same(tensor: Tensor) -> Tensor:
    return tensor


def _restores(file: GgufFile, config: ModelConfig) -> Mapping[str, Restore]:
    if config.delta:
        return _delta_restores(config.delta)
    if config.architecture == "llama":
        return _rotary_restores(config.attention)
    return {}


def _rotary_restores(config: AttentionConfig) -> dict[str, Restore]:
    """llama.cpp rotates neighbours, Hugging Face halves: rows of each head are interleaved."""
    heads = {"q": config.heads, "k": config.kv_heads}
    return {
        f"self_attn.{name}_proj.{kind}": partial(_halves, heads=count)
        for name, count in heads.items()
        for kind in ("weight", "bias")
    }


def _halves(rows: Tensor, heads: int) -> Tensor:
    return torch.unflatten(rows, 0, (heads, -1, 2)).transpose(1, 2).flatten(0, 2)


def _delta_restores(config: DeltaConfig) -> dict[str, Restore]:
    wide = partial(_grouped, config=config, width=config.value_width)
    single = partial(_grouped, config=config, width=1)
    keys = 2 * config.key_heads * config.key_width

    def values_only(rows: Tensor) -> Tensor:
        return torch.cat([rows[:keys], wide(rows[keys:])])

    restores: dict[str, Restore] = {
        "in_proj_qkv.weight": values_only,
        "in_proj_z.weight": wide,
        "in_proj_b.weight": single,
        "in_proj_a.weight": single,
        "conv1d.weight": lambda rows: values_only(rows).unsqueeze(1),
        "A_log": lambda rates: single(rates).neg().log(),
        "dt_bias": single,
        "out_proj.weight": lambda matrix: wide(matrix.t()).t().contiguous(),
    }
    return {f"linear_attn.{name}": restore for name, restore in restores.items()}


def _grouped(rows: Tensor, config: DeltaConfig, width: int) -> Tensor:
    """Value heads from the order (value of key, key) to (key, value of key)."""
    per_key = config.value_heads // config.key_heads
    tiled = torch.unflatten(rows, 0, (per_key, config.key_heads, width))
    return tiled.transpose(0, 1).flatten(0, 2)

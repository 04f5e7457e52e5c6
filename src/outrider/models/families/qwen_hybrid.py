"""Qwen3-Next and Qwen3.5, dense: gated delta nets and gated attention, three to one."""

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor

from outrider.errors import CheckpointError
from outrider.formats.gguf_file import GgufFile
from outrider.models.config import DeltaConfig, LayerKind, ModelConfig
from outrider.models.families.dense import attention, layer_types, model
from outrider.models.families.family import (
    COMMON,
    LAYER_TENSORS,
    Family,
    Gguf,
    Restore,
    Words,
    weights_and_biases,
)

LINEAR: Words = {
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 32,
}
DEFAULTS: Words = {
    **COMMON,
    **LINEAR,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "attention_bias": False,
    "full_attention_interval": 4,
    "layer_types": None,
    "partial_rotary_factor": 0.25,
}
COUNTS = frozenset({"num_key_value_heads", "head_dim", "full_attention_interval", *LINEAR})
GGUF_DELTA = {
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


def _hybrid(words: Words, **more: object) -> ModelConfig:
    kinds = _kinds(words)
    bias = words["attention_bias"]
    mixing = attention(
        words,
        qkv_bias=bias,
        out_bias=bias,
        qk_norm=True,
        output_gate=True,
        windows=(None,) * kinds.count("attention"),
    )
    delta = DeltaConfig(
        key_heads=words["linear_num_key_heads"],
        value_heads=words["linear_num_value_heads"],
        key_width=words["linear_key_head_dim"],
        value_width=words["linear_value_head_dim"],
        taps=words["linear_conv_kernel_dim"],
        interleaved=words["model_type"] == "qwen3_next",
    )
    if delta.value_heads % delta.key_heads:
        raise CheckpointError(
            f"linear_num_value_heads {delta.value_heads} is not a multiple of "
            f"linear_num_key_heads {delta.key_heads}."
        )
    return model(
        words,
        kinds,
        attention=mixing,
        delta=delta if "delta" in kinds else None,
        zero_centred_norm=True,
        mtp_layers=words.get("mtp_num_hidden_layers") or 0,
        **more,
    )


def _kinds(words: Words) -> tuple[LayerKind, ...]:
    names: dict[str, LayerKind] = {"linear_attention": "delta", "full_attention": "attention"}
    interval = words["full_attention_interval"]
    types = layer_types(words, tuple(names)) or [
        "full_attention" if (layer + 1) % interval == 0 else "linear_attention"
        for layer in range(words["num_hidden_layers"])
    ]
    return tuple(names[kind] for kind in types)


def _text_part(words: Words) -> Words:
    """The text part of a whole Qwen3.5 folder (text and vision), with the head of the whole."""
    if not isinstance(text := words["text_config"], dict):
        raise CheckpointError(f"text_config = {text!r} must be an object of the text part's keys.")
    tied = words.get("tie_word_embeddings", False)
    return {"model_type": "qwen3_5_text", **text, "tie_word_embeddings": tied}


def _with_vision(words: Words) -> ModelConfig:
    return _hybrid(
        words, tensor_prefix="model.language_model.", skipped_prefixes=("model.visual.",)
    )


def _next(words: Words) -> ModelConfig:
    step, dense = words["decoder_sparse_step"], words["mlp_only_layers"] or []
    sparse = [
        layer
        for layer in range(words["num_hidden_layers"])
        if layer not in dense and words["num_experts"] > 0 and (layer + 1) % step == 0
    ]
    if sparse:
        raise CheckpointError(
            f"layer {sparse[0]} is a mixture of {words['num_experts']} experts by num_experts, "
            "decoder_sparse_step and mlp_only_layers, which is not supported yet; use a dense "
            "model of the family."
        )
    return _hybrid(words)


def _gguf_words(file: GgufFile, words: dict[str, Any]) -> dict[str, Any]:
    prefix = "qwen35.ssm"
    heads, inner = file.number(f"{prefix}.time_step_rank"), file.number(f"{prefix}.inner_size")
    if not heads or inner % heads:
        raise file.fault(
            f"{prefix}.inner_size {inner} is no multiple of {prefix}.time_step_rank {heads}."
        )
    return words | {
        "full_attention_interval": file.number("qwen35.full_attention_interval", 4),
        "linear_num_key_heads": file.number(f"{prefix}.group_count"),
        "linear_num_value_heads": heads,
        "linear_key_head_dim": file.number(f"{prefix}.state_size"),
        "linear_value_head_dim": inner // heads,
        "linear_conv_kernel_dim": file.number(f"{prefix}.conv_kernel"),
        "mtp_num_hidden_layers": file.number("qwen35.nextn_predict_layers", 0),
    }


def _restores(config: ModelConfig) -> Mapping[str, Restore]:
    """llama.cpp's converter reorders value heads for its broadcasting."""
    if (delta := config.delta) is None:
        return {}
    wide = partial(_grouped, config=delta, width=delta.value_width)
    single = partial(_grouped, config=delta, width=1)
    keys = 2 * delta.key_heads * delta.key_width

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


FAMILIES = (
    Family(
        model_type="qwen3_5_text",
        defaults=DEFAULTS,
        nullable=frozenset({"layer_types"}),
        counts=COUNTS,
        config=_hybrid,
        gguf=Gguf(
            name="qwen35",
            words=_gguf_words,
            tensors={
                **weights_and_biases(
                    {**LAYER_TENSORS, "post_attention_layernorm": "post_attention_norm"}
                ),
                **GGUF_DELTA,
            },
            restores=_restores,
        ),
    ),
    Family(
        model_type="qwen3_5",
        defaults=DEFAULTS,
        nullable=frozenset({"layer_types"}),
        counts=COUNTS,
        config=_with_vision,
        unwrap=_text_part,
    ),
    Family(
        model_type="qwen3_next",
        defaults={
            **DEFAULTS,
            "num_key_value_heads": 2,
            "num_experts": 512,
            "decoder_sparse_step": 1,
            "mlp_only_layers": None,
        },
        nullable=frozenset({"layer_types", "mlp_only_layers"}),
        counts=COUNTS | {"decoder_sparse_step"},
        config=_next,
    ),
)

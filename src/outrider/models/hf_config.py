"""The only reader of a Hugging Face config.json: their words into ours, refusals included."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from outrider.errors import CheckpointError
from outrider.formats.files import read_json
from outrider.models.config import (
    AttentionConfig,
    DeltaConfig,
    LayerKind,
    ModelConfig,
)
from outrider.models.hf_defaults import with_defaults
from outrider.models.hf_rope import read_rope

Json = Mapping[str, Any]

QUANTISED = "quantization_config"


def read_config(folder: Path) -> ModelConfig:
    """Read `folder`/config.json; CheckpointError names what is missing or not supported."""
    raw, origin = read_json(folder / "config.json"), str(folder / "config.json")
    config = parse_config(raw, origin=origin)
    heads = config.attention
    if heads.rope.width != heads.width and not heads.output_gate:
        raise CheckpointError(
            f"{origin}: partial_rotary_factor {heads.rope.width / heads.width:g} is left out by "
            f"transformers for model_type {config.architecture!r} and followed by others: remove "
            "it, or use a model that was trained with all of each head rotated."
        )
    return config


def parse_config(raw: Json, *, origin: str = "config.json") -> ModelConfig:
    """Translate a parsed config.json."""
    _refuse(raw, origin)
    kind = raw.get("model_type")
    if kind not in FAMILIES:
        known = ", ".join(sorted(FAMILIES))
        raise CheckpointError(
            f"{origin}: model_type {kind!r} is not supported; supported are {known}."
        )
    try:
        return FAMILIES[kind](raw)
    except KeyError as error:
        raise CheckpointError(
            f"{origin}: key {error} is missing for model_type {kind!r}."
        ) from None
    except CheckpointError as error:
        raise CheckpointError(f"{origin}: {error}") from None


def _refuse(raw: Json, origin: str) -> None:
    text = raw.get("text_config")
    nested = text.get(QUANTISED) if isinstance(text, dict) else None
    if quantised := raw.get(QUANTISED) or nested:
        method = quantised.get("quant_method", "unnamed")
        raise CheckpointError(
            f"{origin}: {QUANTISED} (method {method!r}) is not supported; use the unquantised "
            "checkpoint, or a GGUF file where that is supported."
        )
    if raw.get("auto_map"):
        raise CheckpointError(
            f"{origin}: auto_map asks for custom code from the checkpoint, which Outrider never "
            "runs; use a checkpoint of a built-in architecture."
        )


def _llama(raw: Json) -> ModelConfig:
    words = with_defaults(raw, "llama")
    bias = words["attention_bias"]
    attention = _attention(words, qkv_bias=bias, out_bias=bias)
    return _dense(words, attention, mlp_bias=words["mlp_bias"])


def _mistral(raw: Json) -> ModelConfig:
    words = with_defaults(raw, "mistral")
    windows = (words["sliding_window"],) * words["num_hidden_layers"]
    return _dense(words, _attention(words, windows=windows))


def _qwen2(raw: Json) -> ModelConfig:
    words = with_defaults(raw, "qwen2")
    return _dense(words, _attention(words, qkv_bias=True, windows=_qwen_windows(words)))


def _qwen3(raw: Json) -> ModelConfig:
    words = with_defaults(raw, "qwen3")
    bias, windows = words["attention_bias"], _qwen_windows(words)
    attention = _attention(words, qkv_bias=bias, out_bias=bias, qk_norm=True, windows=windows)
    return _dense(words, attention)


def _qwen3_5(raw: Json) -> ModelConfig:
    """A whole Qwen3.5 folder (text and vision): its text part, with the head of the whole."""
    if not isinstance(text := raw["text_config"], dict):
        raise CheckpointError(f"text_config = {text!r} must be an object of the text part's keys.")
    text = {**text, "tie_word_embeddings": raw.get("tie_word_embeddings", False)}
    words = with_defaults({"model_type": "qwen3_5_text", **text}, "qwen3_5_text")
    return _hybrid(words, prefix="model.language_model.", skipped=("model.visual.",))


def _qwen3_next(raw: Json) -> ModelConfig:
    words = with_defaults(raw, "qwen3_next")
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
    return _hybrid(words, interleaved=True)


FAMILIES: dict[str, Callable[[Json], ModelConfig]] = {
    "llama": _llama,
    "mistral": _mistral,
    "qwen2": _qwen2,
    "qwen3": _qwen3,
    "qwen3_5": _qwen3_5,
    "qwen3_5_text": lambda raw: _hybrid(with_defaults(raw, "qwen3_5_text")),
    "qwen3_next": _qwen3_next,
}


def _dense(raw: Json, attention: AttentionConfig, *, mlp_bias: bool = False) -> ModelConfig:
    kinds: tuple[LayerKind, ...] = ("attention",) * raw["num_hidden_layers"]
    return ModelConfig(attention=attention, mlp_bias=mlp_bias, **_common(raw, kinds))


def _hybrid(
    raw: Json,
    *,
    prefix: str = "model.",
    skipped: tuple[str, ...] = (),
    interleaved: bool = False,
) -> ModelConfig:
    kinds = _hybrid_kinds(raw)
    bias = raw["attention_bias"]
    attention = _attention(
        raw,
        qkv_bias=bias,
        out_bias=bias,
        qk_norm=True,
        output_gate=True,
        windows=(None,) * kinds.count("attention"),
    )
    delta = DeltaConfig(
        key_heads=raw["linear_num_key_heads"],
        value_heads=raw["linear_num_value_heads"],
        key_width=raw["linear_key_head_dim"],
        value_width=raw["linear_value_head_dim"],
        taps=raw["linear_conv_kernel_dim"],
        interleaved=interleaved,
    )
    if delta.value_heads % delta.key_heads:
        raise CheckpointError(
            f"linear_num_value_heads {delta.value_heads} is not a multiple of "
            f"linear_num_key_heads {delta.key_heads}."
        )
    return ModelConfig(
        attention=attention,
        delta=delta if "delta" in kinds else None,
        zero_centred_norm=True,
        mtp_layers=raw.get("mtp_num_hidden_layers") or 0,
        tensor_prefix=prefix,
        skipped_prefixes=skipped,
        **_common(raw, kinds),
    )


def _hybrid_kinds(raw: Json) -> tuple[LayerKind, ...]:
    names: dict[str, LayerKind] = {"linear_attention": "delta", "full_attention": "attention"}
    interval = raw["full_attention_interval"]
    types = _layer_types(raw, tuple(names)) or [
        "full_attention" if (layer + 1) % interval == 0 else "linear_attention"
        for layer in range(raw["num_hidden_layers"])
    ]
    return tuple(names[kind] for kind in types)


def _layer_types(raw: Json, known: tuple[str, ...]) -> list[str] | None:
    """The kind of each layer where they are listed, one of `known` for each."""
    if (types := raw["layer_types"]) is None:
        return None
    unknown = [kind for kind in types if kind not in known]
    if unknown:
        raise CheckpointError(f"layer_types holds {unknown[0]!r}; known are {', '.join(known)}.")
    if len(types) != raw["num_hidden_layers"]:
        raise CheckpointError(
            f"layer_types names {len(types)} layers, num_hidden_layers says "
            f"{raw['num_hidden_layers']}."
        )
    return [str(kind) for kind in types]


def _common(raw: Json, kinds: tuple[LayerKind, ...]) -> dict[str, Any]:
    if (activation := raw["hidden_act"]) != "silu":
        raise CheckpointError(f"hidden_act {activation!r} is not supported, only 'silu'.")
    return {
        "architecture": raw["model_type"],
        "vocab_size": raw["vocab_size"],
        "hidden_size": raw["hidden_size"],
        "intermediate_size": raw["intermediate_size"],
        "layer_kinds": kinds,
        "norm_eps": raw["rms_norm_eps"],
        "max_length": raw["max_position_embeddings"],
        "tied_embeddings": raw["tie_word_embeddings"],
    }


def _attention(
    raw: Json,
    *,
    windows: tuple[int | None, ...] | None = None,
    **flags: bool,
) -> AttentionConfig:
    heads = raw["num_attention_heads"]
    kv_heads = raw["num_key_value_heads"] or heads
    width = raw["head_dim"] or raw["hidden_size"] // heads
    if heads % kv_heads:
        raise CheckpointError(
            f"num_attention_heads {heads} is not a multiple of num_key_value_heads {kv_heads}."
        )
    return AttentionConfig(
        heads=heads,
        kv_heads=kv_heads,
        width=width,
        rope=read_rope(raw, width),
        windows=windows or (None,) * raw["num_hidden_layers"],
        **flags,
    )


def _qwen_windows(raw: Json) -> tuple[int | None, ...]:
    """Sliding windows of Qwen2 and Qwen3: by layer_types, else from max_window_layers on."""
    layers: int = raw["num_hidden_layers"]
    window: int | None = raw["sliding_window"] if raw["use_sliding_window"] else None
    if window is None:
        if "sliding_attention" in (raw["layer_types"] or ()):
            raise CheckpointError(
                f"layer_types names sliding_attention, but use_sliding_window is "
                f"{raw['use_sliding_window']} and sliding_window {raw['sliding_window']}: state "
                "both, or name full_attention."
            )
        return (None,) * layers
    types = _layer_types(raw, ("full_attention", "sliding_attention")) or [
        "sliding_attention" if layer >= raw["max_window_layers"] else "full_attention"
        for layer in range(layers)
    ]
    return tuple(window if kind == "sliding_attention" else None for kind in types)

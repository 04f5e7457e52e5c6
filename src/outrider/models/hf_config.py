"""The only reader of a Hugging Face config.json: their words into ours, refusals included."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from outrider.errors import CheckpointError
from outrider.models.config import (
    AttentionConfig,
    DeltaConfig,
    LayerKind,
    ModelConfig,
    RopeConfig,
)
from outrider.models.files import read_json

Json = Mapping[str, Any]

ROPE_KINDS = ("default", "linear", "dynamic", "yarn", "llama3")
QUANTISED = "quantization_config"


def read_config(folder: Path) -> ModelConfig:
    """Read `folder`/config.json; CheckpointError names what is missing or not supported."""
    raw = read_json(folder / "config.json")
    return parse_config(raw, origin=str(folder / "config.json"))


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
    if quantised := raw.get(QUANTISED) or raw.get("text_config", {}).get(QUANTISED):
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
    bias = bool(raw.get("attention_bias", False))
    attention = _attention(raw, qkv_bias=bias, out_bias=bias)
    return _dense(raw, attention, mlp_bias=bool(raw.get("mlp_bias", False)))


def _mistral(raw: Json) -> ModelConfig:
    window = raw.get("sliding_window")
    windows = (window,) * raw["num_hidden_layers"]
    return _dense(raw, _attention(raw, windows=windows))


def _qwen2(raw: Json) -> ModelConfig:
    return _dense(raw, _attention(raw, qkv_bias=True, windows=_qwen_windows(raw)))


def _qwen3(raw: Json) -> ModelConfig:
    bias = bool(raw.get("attention_bias", False))
    windows = _qwen_windows(raw)
    attention = _attention(raw, qkv_bias=bias, out_bias=bias, qk_norm=True, windows=windows)
    return _dense(raw, attention)


def _qwen3_5(raw: Json) -> ModelConfig:
    """A whole Qwen3.5 folder (text and vision): its text part."""
    text = dict(raw["text_config"])
    text.setdefault("tie_word_embeddings", raw.get("tie_word_embeddings", False))
    return _hybrid(text, prefix="model.language_model.", skipped=("model.visual.",))


def _qwen3_next(raw: Json) -> ModelConfig:
    step, dense = raw.get("decoder_sparse_step", 1), raw.get("mlp_only_layers") or []
    sparse = [
        layer
        for layer in range(raw["num_hidden_layers"])
        if layer not in dense and raw.get("num_experts", 0) > 0 and (layer + 1) % step == 0
    ]
    if sparse:
        raise CheckpointError(
            f"layer {sparse[0]} is a mixture of {raw['num_experts']} experts, which is not "
            "supported yet; use a dense model of the family."
        )
    return _hybrid(raw, interleaved=True)


FAMILIES: dict[str, Callable[[Json], ModelConfig]] = {
    "llama": _llama,
    "mistral": _mistral,
    "qwen2": _qwen2,
    "qwen3": _qwen3,
    "qwen3_5": _qwen3_5,
    "qwen3_5_text": lambda raw: _hybrid(raw),
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
    bias = bool(raw.get("attention_bias", False))
    attention = _attention(
        raw,
        qkv_bias=bias,
        out_bias=bias,
        qk_norm=True,
        output_gate=True,
        rotary=0.25,
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
    interval = raw.get("full_attention_interval") or 4
    types = raw.get("layer_types") or [
        "full_attention" if (layer + 1) % interval == 0 else "linear_attention"
        for layer in range(raw["num_hidden_layers"])
    ]
    unknown = [kind for kind in types if kind not in names]
    if unknown:
        raise CheckpointError(f"layer_types holds {unknown[0]!r}; known are {', '.join(names)}.")
    return tuple(names[kind] for kind in types)


def _common(raw: Json, kinds: tuple[LayerKind, ...]) -> dict[str, Any]:
    if (activation := raw.get("hidden_act", "silu")) != "silu":
        raise CheckpointError(f"hidden_act {activation!r} is not supported, only 'silu'.")
    if len(kinds) != raw["num_hidden_layers"]:
        raise CheckpointError(
            f"layer_types names {len(kinds)} layers, num_hidden_layers says "
            f"{raw['num_hidden_layers']}."
        )
    return {
        "architecture": raw["model_type"],
        "vocab_size": raw["vocab_size"],
        "hidden_size": raw["hidden_size"],
        "intermediate_size": raw["intermediate_size"],
        "layer_kinds": kinds,
        "norm_eps": raw.get("rms_norm_eps", 1e-6),
        "max_length": raw["max_position_embeddings"],
        "tied_embeddings": bool(raw.get("tie_word_embeddings", False)),
    }


def _attention(
    raw: Json,
    *,
    windows: tuple[int | None, ...] | None = None,
    rotary: float = 1.0,
    **flags: bool,
) -> AttentionConfig:
    heads = raw["num_attention_heads"]
    kv_heads = raw.get("num_key_value_heads") or heads
    width = raw.get("head_dim") or raw["hidden_size"] // heads
    if heads % kv_heads:
        raise CheckpointError(
            f"num_attention_heads {heads} is not a multiple of num_key_value_heads {kv_heads}."
        )
    return AttentionConfig(
        heads=heads,
        kv_heads=kv_heads,
        width=width,
        rope=_rope(raw, width, rotary),
        windows=windows or (None,) * raw["num_hidden_layers"],
        **flags,
    )


def _rope(raw: Json, width: int, rotary: float) -> RopeConfig:
    """Both spellings: `rope_parameters` (new) and `rope_theta` with `rope_scaling` (old)."""
    new = dict(raw.get("rope_parameters") or {})
    old = dict(raw.get("rope_scaling") or {})
    merged = {**old, **new}
    kind = merged.get("rope_type") or merged.get("type") or "default"
    if kind == "mrope":
        kind = "default"  # for text alone all three position axes are equal
    if kind not in ROPE_KINDS:
        raise CheckpointError(
            f"rope type {kind!r} is not supported; known: {', '.join(ROPE_KINDS)}."
        )
    fraction = float(
        merged.get("partial_rotary_factor") or raw.get("partial_rotary_factor") or rotary
    )
    numbers = {
        key: float(value)
        for key, value in merged.items()
        if isinstance(value, int | float) and key not in ("rope_theta", "partial_rotary_factor")
    }
    numbers.setdefault("max_position_embeddings", float(raw["max_position_embeddings"]))
    return RopeConfig(
        theta=float(merged.get("rope_theta") or raw.get("rope_theta") or 10000.0),
        width=int(width * fraction),
        kind=kind,
        parameters=numbers,
    )


def _qwen_windows(raw: Json) -> tuple[int | None, ...]:
    """Sliding windows of Qwen2 and Qwen3: by layer_types, else from max_window_layers on."""
    layers: int = raw["num_hidden_layers"]
    window: int | None = raw.get("sliding_window")
    if not raw.get("use_sliding_window") or window is None:
        return (None,) * layers
    types = raw.get("layer_types") or [
        "sliding_attention" if layer >= raw.get("max_window_layers", layers) else "full_attention"
        for layer in range(layers)
    ]
    return tuple(window if kind == "sliding_attention" else None for kind in types)

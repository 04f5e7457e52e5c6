"""Parts of a `ModelConfig` that architectures have in common, from the words of a config.json."""

from outrider.errors import CheckpointError
from outrider.models.config import AttentionConfig, LayerKind, ModelConfig
from outrider.models.families.family import Words
from outrider.models.rope_words import read_rope

WINDOWS: Words = {
    "use_sliding_window": False,
    "sliding_window": 4096,
    "max_window_layers": 28,
    "layer_types": None,
}
"""Defaults of Qwen's sliding windows."""


def dense(words: Words, attention: AttentionConfig, *, mlp_bias: bool = False) -> ModelConfig:
    """A model of attention layers alone."""
    kinds: tuple[LayerKind, ...] = ("attention",) * words["num_hidden_layers"]
    return model(words, kinds, attention=attention, mlp_bias=mlp_bias)


def model(words: Words, kinds: tuple[LayerKind, ...], **more: object) -> ModelConfig:
    """A model of layers of these `kinds`; `more` fields as `ModelConfig` has them."""
    if (activation := words["hidden_act"]) != "silu":
        raise CheckpointError(f"hidden_act {activation!r} is not supported, only 'silu'.")
    fields = {
        "architecture": words["model_type"],
        "vocab_size": words["vocab_size"],
        "hidden_size": words["hidden_size"],
        "intermediate_size": words["intermediate_size"],
        "layer_kinds": kinds,
        "norm_eps": words["rms_norm_eps"],
        "max_length": words["max_position_embeddings"],
        "tied_embeddings": words["tie_word_embeddings"],
        **more,
    }
    return ModelConfig(**fields)


def attention(
    words: Words, *, windows: tuple[int | None, ...] | None = None, **flags: bool
) -> AttentionConfig:
    """Grouped-query attention with rotary heads; `windows`: see `AttentionConfig` (None: full)."""
    heads = words["num_attention_heads"]
    kv_heads = words["num_key_value_heads"] or heads
    width = words["head_dim"] or words["hidden_size"] // heads
    if heads % kv_heads:
        raise CheckpointError(
            f"num_attention_heads {heads} is not a multiple of num_key_value_heads {kv_heads}."
        )
    return AttentionConfig(
        heads=heads,
        kv_heads=kv_heads,
        width=width,
        rope=read_rope(words, width),
        windows=windows or (None,) * words["num_hidden_layers"],
        **flags,
    )


def layer_types(words: Words, known: tuple[str, ...]) -> list[str] | None:
    """The kind of each layer where they are listed, one of `known` for each."""
    if (types := words["layer_types"]) is None:
        return None
    unknown = [kind for kind in types if kind not in known]
    if unknown:
        raise CheckpointError(f"layer_types holds {unknown[0]!r}; known are {', '.join(known)}.")
    if len(types) != words["num_hidden_layers"]:
        raise CheckpointError(
            f"layer_types names {len(types)} layers, num_hidden_layers says "
            f"{words['num_hidden_layers']}."
        )
    return [str(kind) for kind in types]


def qwen_windows(words: Words) -> tuple[int | None, ...]:
    """Sliding windows of Qwen2 and Qwen3: by layer_types, else from max_window_layers on."""
    layers: int = words["num_hidden_layers"]
    window: int | None = words["sliding_window"] if words["use_sliding_window"] else None
    if window is None:
        if "sliding_attention" in (words["layer_types"] or ()):
            raise CheckpointError(
                f"layer_types names sliding_attention, but use_sliding_window is "
                f"{words['use_sliding_window']} and sliding_window {words['sliding_window']}: "
                "state both, or name full_attention."
            )
        return (None,) * layers
    types = layer_types(words, ("full_attention", "sliding_attention")) or [
        "sliding_attention" if layer >= words["max_window_layers"] else "full_attention"
        for layer in range(layers)
    ]
    return tuple(window if kind == "sliding_attention" else None for kind in types)

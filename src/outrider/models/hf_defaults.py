"""Meaning of a key of config.json that is missing or null: as in transformers 5.24.

Shapes have defaults there too, those of some real model; here they must be stated.
"""

import math
from collections.abc import Mapping
from typing import Any

from outrider.errors import CheckpointError

Json = Mapping[str, Any]

SIZES = (
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "max_position_embeddings",
)
_ALL: Json = {"hidden_act": "silu", "rms_norm_eps": 1e-6, "tie_word_embeddings": False}
_WINDOWS: Json = {
    "use_sliding_window": False,
    "sliding_window": 4096,
    "max_window_layers": 28,
    "layer_types": None,
}
_HYBRID: Json = {
    **_ALL,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "attention_bias": False,
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 32,
    "full_attention_interval": 4,
    "layer_types": None,
    "partial_rotary_factor": 0.25,
}
DEFAULTS: Mapping[str, Json] = {
    "llama": {
        **_ALL,
        "num_key_value_heads": None,
        "head_dim": None,
        "attention_bias": False,
        "mlp_bias": False,
    },
    "mistral": {**_ALL, "num_key_value_heads": 8, "head_dim": None, "sliding_window": 4096},
    "qwen2": {**_ALL, **_WINDOWS, "num_key_value_heads": 32, "head_dim": None},
    "qwen3": {
        **_ALL,
        **_WINDOWS,
        "num_key_value_heads": 32,
        "head_dim": 128,
        "attention_bias": False,
    },
    "qwen3_5_text": _HYBRID,
    "qwen3_next": {
        **_HYBRID,
        "num_key_value_heads": 2,
        "num_experts": 512,
        "decoder_sparse_step": 1,
        "mlp_only_layers": None,
    },
}
"""By model_type; None: worked out from other keys. qwen3_5 has those of its text part."""
_NULL: Mapping[str, frozenset[str]] = {
    "llama": frozenset({"num_key_value_heads", "head_dim"}),
    "mistral": frozenset({"head_dim", "sliding_window"}),
    "qwen2": frozenset({"num_key_value_heads", "head_dim", "sliding_window", "layer_types"}),
    "qwen3": frozenset({"num_key_value_heads", "sliding_window", "layer_types"}),
    "qwen3_5_text": frozenset({"layer_types"}),
    "qwen3_next": frozenset({"layer_types", "mlp_only_layers"}),
}
"""Keys that may be null, which is not always their default: Mistral's window is then none."""
_NATURAL = frozenset(
    {"num_key_value_heads", "head_dim", "sliding_window", "decoder_sparse_step"}
    | {"full_attention_interval", *(key for key in _HYBRID if key.startswith("linear_"))}
)


def with_defaults(raw: Json, kind: str) -> dict[str, Any]:
    """`raw` with the defaults of model_type `kind`.

    Raises KeyError for a shape that is missing, CheckpointError for a value that a key cannot have.
    """
    defaults = DEFAULTS[kind]
    for key in SIZES:
        _check_number(key, raw[key])
    for key, default in defaults.items():
        if key in raw:
            _check(key, raw[key], default, kind)
    return {**defaults, **raw}


def _check(key: str, value: object, default: object, kind: str) -> None:
    if value is None:
        if key not in _NULL[kind]:
            raise CheckpointError(
                f"{key} is null, which means nothing for model_type {kind!r}: state its value, or "
                f"leave the key out for {default!r}."
            )
    elif key in _NATURAL:
        _check_number(key, value)
    elif isinstance(default, float):
        real(key, value)
    elif default is not None and type(value) is not type(default):
        raise CheckpointError(
            f"{key} = {value!r} must be a {type(default).__name__}, such as {default!r}."
        )


def _check_number(key: str, value: object) -> None:
    if type(value) is not int or value < 1:
        raise CheckpointError(f"{key} = {value!r} must be a whole number of at least 1.")


def real(key: str, value: object) -> float:
    """`value` where it is a positive number; CheckpointError where it is not."""
    if type(value) not in (int, float) or not 0 < value < math.inf:  # type: ignore[operator]
        raise CheckpointError(f"{key} = {value!r} must be a number above 0.")
    return float(value)  # type: ignore[arg-type]

"""The only reader of a Hugging Face config.json: its words, their defaults, and refusals.

A key that is missing means what it means in transformers 5.24. Shapes have defaults there too,
those of some real model; here they must be stated.
"""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from outrider.errors import CheckpointError
from outrider.formats.files import read_json
from outrider.models.config import ModelConfig
from outrider.models.families.family import Family, families

Json = Mapping[str, Any]

QUANTISED = "quantization_config"
SIZES = (
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "max_position_embeddings",
)


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
    if (family := families().get(str(kind))) is None:
        known = ", ".join(sorted(families()))
        raise CheckpointError(
            f"{origin}: model_type {kind!r} is not supported; supported are {known}."
        )
    try:
        words = family.unwrap(raw) if family.unwrap else raw
        return family.config(with_defaults(words, family))
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


def with_defaults(words: Json, family: Family) -> dict[str, Any]:
    """`words` with the defaults of a family.

    Raises KeyError for a shape that is missing, CheckpointError for a value that a key cannot have.
    """
    for key in SIZES:
        _check_number(key, words[key])
    for key, default in family.defaults.items():
        if key in words:
            _check(key, words[key], default, family)
    return {**family.defaults, **words}


def _check(key: str, value: object, default: object, family: Family) -> None:
    if value is None:
        if key not in family.nullable:
            raise CheckpointError(
                f"{key} is null, which means nothing for model_type {family.model_type!r}: state "
                f"its value, or leave the key out for {default!r}."
            )
    elif key in family.counts:
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

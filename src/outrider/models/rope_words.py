"""The rotary embedding that a config.json asks for, in both spellings, as transformers reads it."""

from collections.abc import Mapping
from typing import Any

from outrider.errors import CheckpointError
from outrider.models.config import RopeConfig
from outrider.models.hf_config import real

Json = Mapping[str, Any]

KINDS = ("default", "linear", "dynamic", "yarn", "llama3")
NEEDED: Mapping[str, tuple[str, ...]] = {
    "linear": ("factor",),
    "dynamic": ("factor",),
    "yarn": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor"),
}
ORIGINAL = "original_max_position_embeddings"
THETA = 10000.0


def read_rope(raw: Json, width: int) -> RopeConfig:
    """Of heads of `width`; CheckpointError for a kind, or a value, that is not supported.

    Both spellings are read: `rope_parameters` (new) and `rope_theta` beside `rope_scaling` (old).
    """
    given = _parameters(raw)
    kind = given["rope_type"]
    if kind == "mrope":
        kind = "default"  # for text alone all three position axes are equal
    if kind not in KINDS:
        raise CheckpointError(f"rope type {kind!r} is not supported; known: {', '.join(KINDS)}.")
    fraction = real("partial_rotary_factor", given["partial_rotary_factor"])
    if fraction > 1:
        raise CheckpointError(f"partial_rotary_factor = {fraction} is more than all of each head.")
    return RopeConfig(
        theta=real("rope_theta", given["rope_theta"]),
        width=int(width * fraction),
        kind=kind,
        parameters=_numbers(raw, given, kind),
    )


def _parameters(raw: Json) -> dict[str, Any]:
    """The one set of parameters, base and rotated part included; two that differ are refused."""
    sets = {}
    for name in ("rope_scaling", "rope_parameters"):
        given = raw.get(name) or {}
        if not isinstance(given, dict):
            raise CheckpointError(f"{name} = {given!r} must be an object of parameters.")
        if given:
            sets[name] = _complete(raw, given)
        if any(isinstance(value, dict) for value in given.values()):
            raise CheckpointError(
                f"{name} has parameters by layer type ({', '.join(given)}), which is not "
                "supported: use a model with one rotary embedding for all layers."
            )
    found = list(sets.values()) or [_complete(raw, {})]
    if found[0] != found[-1]:
        raise CheckpointError(
            f"rope_scaling and rope_parameters contradict each other ({found[0]} and {found[-1]}): "
            "keep the one that the model was trained with."
        )
    return found[0]


def _complete(raw: Json, given: Json) -> dict[str, Any]:
    part = raw.get("partial_rotary_factor")
    words = {
        "rope_theta": raw.get("rope_theta", THETA),
        "partial_rotary_factor": 1.0 if part is None else part,
        "rope_type": given.get("type", "default"),
        **given,
    }
    words.pop("type", None)
    return words


def _numbers(raw: Json, given: Json, kind: str) -> dict[str, float]:
    """The parameters of a scaling rule; those that are null count as absent."""
    numbers = {
        key: float(value)
        for key, value in given.items()
        if isinstance(value, int | float) and key not in ("rope_theta", "partial_rotary_factor")
    }
    for key in NEEDED.get(kind, ()):
        if key not in given:
            raise CheckpointError(f"rope type {kind!r} needs {key}, which is missing.")
        if (kind, given[key]) != ("yarn", None):  # the ratio of two lengths stands for it
            numbers[key] = real(key, given[key])
    most = float(raw["max_position_embeddings"])
    numbers.setdefault("max_position_embeddings", most)
    if kind in ("yarn", "llama3"):
        stated = raw.get(ORIGINAL) or given.get(ORIGINAL) or most
        numbers[ORIGINAL] = real(ORIGINAL, stated)
    if "truncate" in given:
        numbers["truncate"] = float(bool(given["truncate"]))
    return numbers

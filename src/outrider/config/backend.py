"""Which settings go with which backend. Pure."""

from collections.abc import Iterator
from dataclasses import fields
from typing import Any

from outrider.config.settings import TAP_METHODS, RunConfig, StagesConfig, TargetConfig
from outrider.errors import ConfigError

_DEFAULTS = {item.name: item.default for item in fields(TargetConfig)}
_OF_LLAMA_CPP = ("gpu_layers", "batch", "micro_batch")
_OF_TORCH = {
    "device": "it has target.gpu_layers for that",
    "dtype": "it computes in the types that the file holds",
}


def check_backend(config: RunConfig) -> None:
    """Raise ConfigError where a backend was named and a setting means nothing to it."""
    backend = config.target.backend
    faults = {"torch": _torch_faults, "llama.cpp": llama_cpp_faults}
    fault = next(faults[backend](config), None) if backend in faults else None
    if fault:
        raise ConfigError(f"{fault} with target.backend = {backend!r}: leave one of the two out.")


def llama_cpp_faults(config: RunConfig) -> Iterator[str]:
    """Settings that llama.cpp cannot follow, each with the reason; half a sentence."""
    target, speculative, stages = config.target, config.speculative, config.stages
    for name, reason in _OF_TORCH.items():
        if getattr(target, name) != _DEFAULTS[name]:
            yield _means_nothing(f"target.{name}", getattr(target, name), reason)
    if target.exact:
        yield "target.exact = true cannot be kept, since the same bits are torch's claim,"
    if config.state.rollback == "log":
        yield _means_nothing("state.rollback", "log", "it keeps snapshots or checkpoints")
    if speculative.method in TAP_METHODS:
        yield _means_nothing(
            "speculative.method", speculative.method, "it hands over no hidden states"
        )
    for item in fields(StagesConfig):
        if item.name in ("count", "layers", "processes", "address", "link") and (
            getattr(stages, item.name) != getattr(StagesConfig(), item.name)
        ):
            value = getattr(stages, item.name)
            yield _means_nothing(f"stages.{item.name}", value, "it runs a model as one stage")


def _torch_faults(config: RunConfig) -> Iterator[str]:
    for name in llama_cpp_settings(config.target):
        yield _means_nothing(f"target.{name}", getattr(config.target, name), "it is llama.cpp's")


def llama_cpp_settings(target: TargetConfig) -> list[str]:
    """Names of the settings in use that only llama.cpp knows."""
    return [name for name in _OF_LLAMA_CPP if getattr(target, name) != _DEFAULTS[name]]


def _means_nothing(key: str, value: Any, reason: str) -> str:
    return f"{key} = {value!r} means nothing ({reason})"

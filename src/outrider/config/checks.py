"""Settings that are fine alone and wrong together, and those that a backend cannot follow. Pure."""

import re
from collections.abc import Iterator
from dataclasses import fields
from typing import Any

from outrider.config.settings import (
    BLOCK_METHODS,
    DRAFT_METHODS,
    NGRAM_METHODS,
    TAP_METHODS,
    RunConfig,
    SpeculativeConfig,
    StagesConfig,
    TargetConfig,
    VerifyWindowConfig,
)
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


def check(config: RunConfig) -> RunConfig:
    """Return `config` unchanged; raise ConfigError where two settings contradict each other."""
    _check_target(config.target)
    _check_fallback(config.speculative)
    _check_room(config.speculative)
    _check_draft_model(config.speculative)
    _check_windows(config.speculative)
    _check_stages(config.stages, config.speculative)
    check_backend(config)
    return config


def _check_target(target: TargetConfig) -> None:
    kind = target.device.partition(":")[0]
    if target.quantize != "none":
        raise ConfigError(
            f"target.quantize = {target.quantize!r} has left with torch's int8 products; its "
            "successor, 'q8' in compiled kernels, is not here yet: use 'none', or a Q8_0 file with "
            "target.backend = 'llama.cpp'."
        )
    if not re.fullmatch(r"cpu|cuda(:\d+)?", target.device):
        raise ConfigError(
            f"target.device = {target.device!r} is not a device: use 'cpu', 'cuda' or 'cuda:N'."
        )
    if target.exact and kind != "cpu":
        raise ConfigError(
            f"target.exact = true cannot hold with target.device = {target.device!r}: the same "
            "bits are kept on the CPU only, so use 'cpu' or leave target.exact out."
        )


def _check_fallback(speculative: SpeculativeConfig) -> None:
    if speculative.ngram_fallback != "draft":
        return
    if speculative.method not in NGRAM_METHODS:
        raise ConfigError(
            _FALLBACK.format("an n-gram method", f"speculative.method = {speculative.method!r}")
        )
    if speculative.draft_model is None:
        raise ConfigError(_FALLBACK.format("speculative.draft_model", "none is set"))
    if _is_serial(speculative):
        raise ConfigError(
            _FALLBACK.format("windows in flight", "speculative.verify_window.depth = 1")
        )


_FALLBACK = (
    "speculative.ngram_fallback = 'draft' could never run: it needs {}, but {}; for n-grams with a "
    "draft model behind them in one window use speculative.method = 'suffix+draft'."
)


def _is_serial(speculative: SpeculativeConfig) -> bool:
    window = speculative.verify_window
    return window.depth == 1 and window.runahead_tokens is None


def _check_room(speculative: SpeculativeConfig) -> None:
    """Refuse what leaves no row to a draft: the drafter would be loaded and never asked."""
    method, window = speculative.method, speculative.verify_window
    if method == "off":
        return
    if speculative.max_draft_tokens == 0:
        raise ConfigError(
            f"speculative.max_draft_tokens = 0 would never draft by speculative.method = {method!r}"
            ": use at least 1, or speculative.method = 'off' to decode plainly."
        )
    for name, rows in (("runahead_tokens", window.runahead_tokens), ("max_tokens", _rows(window))):
        if rows == 1:
            raise ConfigError(
                f"speculative.verify_window.{name} = 1 would never draft by speculative.method = "
                f"{method!r}, since the pending token takes the one row: use at least 2, or "
                "speculative.method = 'off' to decode plainly."
            )


def _rows(window: VerifyWindowConfig) -> int | None:
    """Rows of a window that nothing follows; where windows do, drafts have those to themselves."""
    return window.max_tokens if window.depth == 1 and window.runahead_tokens is None else None


def _check_draft_model(speculative: SpeculativeConfig) -> None:
    method, model = speculative.method, speculative.draft_model
    shipped = f"demo-{method}" if method in TAP_METHODS else "demo-draft"
    used = (
        method in (*DRAFT_METHODS, "eagle3", *BLOCK_METHODS)
        or speculative.ngram_fallback == "draft"
    )
    if used and model is None:
        raise ConfigError(
            f"speculative.method = {method!r} needs speculative.draft_model, but none is set: name "
            f"a model folder, a hub ID@REVISION or {shipped!r}."
        )
    if not used and method != "auto" and model is not None:
        raise ConfigError(
            f"speculative.draft_model = {model!r} would never be used by speculative.method = "
            f"{method!r}: leave it out."
        )
    temperature = speculative.draft_temperature
    if temperature and not (used or method in (*TAP_METHODS, "auto")):
        raise ConfigError(
            f"speculative.draft_temperature = {temperature} would never be used by "
            f"speculative.method = {method!r}: leave it out."
        )
    if temperature and not _is_serial(speculative):
        raise ConfigError(
            f"speculative.draft_temperature = {temperature} needs one window at a time, since "
            "sampled drafts are verified where the logits are: leave it out, or set "
            "speculative.verify_window.depth = 1 and no runahead_tokens."
        )


def _check_windows(speculative: SpeculativeConfig) -> None:
    if speculative.method in TAP_METHODS and not _is_serial(speculative):
        raise ConfigError(
            f"speculative.method = {speculative.method!r} reads the target's hidden states of each "
            "window before it drafts the next: set speculative.verify_window.depth = 1 and no "
            "runahead_tokens."
        )
    drafts, rows = speculative.max_draft_tokens, speculative.verify_window.max_tokens
    if drafts == "auto" or rows is None or not _is_serial(speculative) or drafts < rows:
        return
    raise ConfigError(
        f"speculative.max_draft_tokens = {drafts} does not fit speculative.verify_window.max_tokens"
        f" = {rows}, which counts the row of the pending token too: raise the one or lower the "
        "other, or leave verify_window.max_tokens out."
    )


def _check_stages(stages: StagesConfig, speculative: SpeculativeConfig) -> None:
    named, link = stages.sizes, stages.link
    if named is not None and len(named) != stages.count:
        raise ConfigError(
            f"stages.layers = {stages.layers!r} names {len(named)} stages and stages.count is "
            f"{stages.count}: make them agree, or leave stages.layers out to cut evenly."
        )
    if len(stages.wants) != stages.count:
        raise ConfigError(
            f"stages.resources = {stages.resources!r} is for {len(stages.wants)} stages and "
            f"stages.count is {stages.count}: name those of one for all, or of each."
        )
    if stages.processes and stages.address:
        raise ConfigError(
            f"stages.processes = true starts stages on this machine and stages.address = "
            f"{stages.address!r} on a cluster: leave one of the two out."
        )
    for key in ("resources", "tls"):
        if getattr(stages, key) is not None and stages.address is None:
            raise ConfigError(
                f"stages.{key} = {getattr(stages, key)!r} needs a Ray cluster to ask: set "
                "stages.address, or leave it out."
            )
    if link.jitter_ms > link.delay_ms:
        raise ConfigError(
            f"stages.link.jitter_ms = {link.jitter_ms} exceeds stages.link.delay_ms = "
            f"{link.delay_ms}: nothing arrives before it was sent, so use at most the delay."
        )
    if speculative.draft_temperature and not stages.is_local:
        raise ConfigError(
            f"speculative.draft_temperature = {speculative.draft_temperature} needs the whole "
            "target in one process, since sampled drafts are verified where the logits are: leave "
            "it out, or stages."
        )

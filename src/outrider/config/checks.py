"""Refusals of settings that are fine alone and wrong together. Pure."""

import re

from outrider.config.run import NGRAM_METHODS, RunConfig, SpeculativeConfig, TargetConfig
from outrider.errors import ConfigError


def check(config: RunConfig) -> RunConfig:
    """Return `config` unchanged; raise ConfigError where two settings contradict each other."""
    _check_target(config.target)
    _check_fallback(config.speculative)
    _check_draft_model(config.speculative)
    return config


def _check_target(target: TargetConfig) -> None:
    kind = target.device.partition(":")[0]
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
    window = speculative.verify_window
    if window.depth == 1 and window.runahead_tokens is None:
        raise ConfigError(
            _FALLBACK.format("windows in flight", "speculative.verify_window.depth = 1")
        )
    raise ConfigError(
        "speculative.ngram_fallback = 'draft' is not built yet, since draft models are not: "
        "use 'none'."
    )


_FALLBACK = (
    "speculative.ngram_fallback = 'draft' could never run: it needs {}, but {}; for n-grams with a "
    "draft model behind them in one window use speculative.method = 'suffix+draft'."
)


def _check_draft_model(speculative: SpeculativeConfig) -> None:
    if speculative.draft_model is None or "draft" in speculative.method:
        return
    raise ConfigError(
        f"speculative.draft_model = {speculative.draft_model!r} would never be used by "
        f"speculative.method = {speculative.method!r}: leave it out."
    )

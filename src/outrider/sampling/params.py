"""Sampling settings of one request (torch-free)."""

import math
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from outrider.errors import CheckpointError, ConfigError
from outrider.formats.files import read_json_or_empty

MAX_SEED = 2**63 - 1
REPETITION_PENALTIES = (1e-6, 1e6)
_DRAWN_SEEDS = 2**53
"""Drawn seeds stay below this, so that a JSON client that reads floats can send them back."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How the target's logits become a token.

    Temperature 0 is greedy. `repetition_penalty` is from 1e-6 to 1e6: beyond that a logit of fp32
    may only become infinite, or 0. Filters apply in this order: logit bias, penalties, temperature,
    top-k, top-p, min-p. `seed` None means that one is drawn and reported (`with_seed`). `choice`
    tells apart the choices of one request, which draw differently from one seed.
    Raises ConfigError where a value is out of range.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    seed: int | None = None
    logprobs: int | None = None
    choice: int = 0

    def __post_init__(self) -> None:
        _check_filters(self)
        _check_penalties(self)
        _check_bias(self.logit_bias)
        if self.seed is not None:
            _check_int("seed", self.seed, 0, MAX_SEED, "leave it out to have one drawn")
        if self.logprobs is not None:
            _check_int("logprobs", self.logprobs, 0, 20, "ask for at most 20 alternatives")

    @property
    def greedy(self) -> bool:
        """True if the likeliest token is taken, so that no randomness is used."""
        return self.temperature == 0.0

    @property
    def penalized(self) -> bool:
        """True if the logits depend on which tokens came before, beyond the model's own view."""
        return (
            self.repetition_penalty != 1.0
            or self.presence_penalty != 0.0
            or self.frequency_penalty != 0.0
        )

    def with_seed(self) -> "SamplingParams":
        """Return these settings with a seed: their own, or a fresh one from the system."""
        if self.seed is not None:
            return self
        return replace(self, seed=secrets.randbelow(_DRAWN_SEEDS))

    def check_vocabulary(self, vocab_size: int) -> None:
        """Raise ConfigError if `logit_bias` names a token that the target does not have."""
        unknown = [token for token in self.logit_bias if token >= vocab_size]
        if unknown:
            raise ConfigError(
                f"logit_bias names token {unknown[0]}, but the target's vocabulary ends at "
                f"{vocab_size - 1}; use ids of this model's tokenizer."
            )


def _check_filters(params: SamplingParams) -> None:
    _check_real("temperature", params.temperature, "0 or a positive finite number", low=0.0)
    _check_int("top_k", params.top_k, 0, None, "0 switches the filter off")
    _check_real("top_p", params.top_p, "above 0 and at most 1", low=0.0, high=1.0, open_low=True)
    _check_real("min_p", params.min_p, "from 0 to 1", low=0.0, high=1.0)


def _check_penalties(params: SamplingParams) -> None:
    low, high = REPETITION_PENALTIES
    allowed = f"from {low:g} to {high:g}, 1 switching it off"
    _check_real("repetition_penalty", params.repetition_penalty, allowed, low=low, high=high)
    allowed = "from -2 to 2"
    _check_real("presence_penalty", params.presence_penalty, allowed, low=-2.0, high=2.0)
    _check_real("frequency_penalty", params.frequency_penalty, allowed, low=-2.0, high=2.0)


def _check_bias(bias: Mapping[int, float]) -> None:
    for token, value in bias.items():
        _check_int("logit_bias token", token, 0, None, "use ids of this model's tokenizer")
        _check_real(f"logit_bias[{token}]", value, "from -100 to 100", low=-100.0, high=100.0)


def _check_real(
    key: str,
    value: float,
    allowed: str,
    *,
    low: float,
    high: float = math.inf,
    open_low: bool = False,
) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ConfigError(f"{key} = {value!r} is not a number; it must be {allowed}.")
    inside = low < value <= high if open_low else low <= value <= high
    if not inside or not math.isfinite(value):
        raise ConfigError(f"{key} = {value!r} is out of range; it must be {allowed}.")


def _check_int(key: str, value: int, low: int, high: int | None, fix: str) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise ConfigError(f"{key} = {value!r} is not a whole number; {fix}.")
    if value < low or (high is not None and value > high):
        allowed = f"{low} or more" if high is None else f"from {low} to {high}"
        raise ConfigError(f"{key} = {value!r} is out of range; it must be {allowed} ({fix}).")


_SAMPLED = ("temperature", "top_k", "top_p", "min_p")


def sampling_defaults(folder: Path) -> SamplingParams:
    """Sampling of a request that says nothing; greedy where the file is absent, as beside GGUF.

    As in transformers, temperature and filters count only beside `do_sample: true`, where the
    temperature is 1 unless stated; a repetition penalty counts always. Raises CheckpointError for
    values out of range.
    """
    file = folder / "generation_config.json"
    values = _values(read_json_or_empty(file))
    try:
        return SamplingParams(**values)
    except (ConfigError, TypeError) as error:
        raise CheckpointError(f"{file}: {error}") from None


def _values(config: Mapping[str, Any]) -> dict[str, Any]:
    names: tuple[str, ...] = ("repetition_penalty",)
    values: dict[str, Any] = {}
    if config.get("do_sample"):
        names = (*_SAMPLED, *names)
        values["temperature"] = 1.0
    return values | {name: config[name] for name in names if config.get(name) is not None}

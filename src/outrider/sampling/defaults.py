"""Sampling that a model's own generation_config.json asks for."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from outrider.errors import CheckpointError, ConfigError
from outrider.formats.files import read_json_or_empty
from outrider.sampling.params import SamplingParams

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

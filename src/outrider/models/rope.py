"""Inverse frequencies of the rotary embedding under each scaling rule.

linear: Chen et al. 2023. yarn: Peng et al. 2023. llama3: the Llama 3.1 report. dynamic changes
the base, and so every earlier row, with each position beyond the stated length, which a model of
that kind may not exceed here (`longest`): up to there it equals default.
"""

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from outrider.kernels.rotary import rope_table
from outrider.models.config import RopeConfig


def longest(config: RopeConfig, stated: int) -> int:
    """Positions that the scaling was made for, of a model that states `stated` of them.

    The rules that multiply a length reach the original times the factor, whichever of the two the
    model states; a table of any length has the same rows.
    """
    numbers = config.parameters or {}
    if config.kind == "linear":
        return max(stated, int(stated * numbers["factor"]))
    if config.kind == "yarn":
        original = numbers.get("original_max_position_embeddings", stated)
        return max(stated, int(original * _yarn_factor(numbers)))
    return stated


def rope_tables(config: RopeConfig, head_width: int, length: int) -> Tensor:
    """cos and signed sin [2, length, head width], fp32, for `outrider.kernels.rotary.rotate`."""
    exponents = torch.arange(0, config.width, 2, dtype=torch.int64).float() / config.width
    frequencies = 1.0 / config.theta**exponents
    if config.divisors is not None:
        frequencies = frequencies / torch.tensor(config.divisors)
    numbers = config.parameters or {}
    scale = 1.0
    if config.kind == "linear":
        frequencies = frequencies / numbers["factor"]
    elif config.kind == "llama3":
        frequencies = _llama3(frequencies, numbers)
    elif config.kind == "yarn":
        frequencies = _yarn(frequencies, config.theta, config.width, numbers)
        scale = _yarn_scale(numbers)
    return rope_table(frequencies, length, scale, head_width)


def _llama3(frequencies: Tensor, numbers: Mapping[str, float]) -> Tensor:
    factor, trained = numbers["factor"], numbers["original_max_position_embeddings"]
    low, high = numbers["low_freq_factor"], numbers["high_freq_factor"]
    wavelengths = 2 * math.pi / frequencies
    smooth = (trained / wavelengths - low) / (high - low)
    between = (1 - smooth) * frequencies / factor + smooth * frequencies
    long = wavelengths > trained / low
    short = wavelengths < trained / high
    return torch.where(long, frequencies / factor, torch.where(short, frequencies, between))


def _yarn_factor(numbers: Mapping[str, float]) -> float:
    if "factor" in numbers:
        return numbers["factor"]
    return numbers["max_position_embeddings"] / numbers["original_max_position_embeddings"]


def _yarn(frequencies: Tensor, theta: float, width: int, numbers: Mapping[str, float]) -> Tensor:
    trained = numbers.get("original_max_position_embeddings", numbers["max_position_embeddings"])

    def dimension(rotations: float) -> float:
        return width * math.log(trained / (rotations * 2 * math.pi)) / (2 * math.log(theta))

    low, high = dimension(numbers.get("beta_fast") or 32), dimension(numbers.get("beta_slow") or 1)
    if numbers.get("truncate", 1.0):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, width - 1)
    span = high - low if high != low else 0.001
    ramp = ((torch.arange(width // 2, dtype=torch.float32) - low) / span).clamp(0, 1)
    return frequencies / _yarn_factor(numbers) * ramp + frequencies * (1 - ramp)


def _yarn_scale(numbers: Mapping[str, float]) -> float:
    if "attention_factor" in numbers:
        return numbers["attention_factor"]
    factor = _yarn_factor(numbers)

    def magnitude(weight: float) -> float:
        return 0.1 * weight * math.log(factor) + 1.0 if factor > 1 else 1.0

    if numbers.get("mscale") and numbers.get("mscale_all_dim"):
        return magnitude(numbers["mscale"]) / magnitude(numbers["mscale_all_dim"])
    return magnitude(1.0)

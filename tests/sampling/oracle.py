"""The rules of logit processing written a second time, naively: lists, float64, no torch."""

import math
from collections import Counter
from collections.abc import Sequence

from outrider.sampling.params import SamplingParams


def adjusted(
    logits: Sequence[float], params: SamplingParams, history: Sequence[int], prompt_len: int
) -> list[float]:
    """Logits after bias and penalties; `history` ends with the row's own input token."""
    values = [value + params.logit_bias.get(token, 0.0) for token, value in enumerate(logits)]
    generated = Counter(history[prompt_len:])
    for token in range(len(values)):
        if token in history:
            factor = params.repetition_penalty
            values[token] = values[token] / factor if values[token] > 0 else values[token] * factor
        if token in generated:
            values[token] -= params.presence_penalty
            values[token] -= params.frequency_penalty * generated[token]
    return values


def probabilities(
    logits: Sequence[float],
    params: SamplingParams,
    history: Sequence[int] = (),
    prompt_len: int = 0,
) -> list[float]:
    """The distribution of the next token."""
    values = adjusted(logits, params, history, prompt_len)
    probs = normalized([math.exp((v - max(values)) / params.temperature) for v in values])
    if params.top_k:
        cut = sorted(probs, reverse=True)[min(params.top_k, len(probs)) - 1]
        probs = normalized([p if p >= cut else 0.0 for p in probs])
    if params.top_p < 1:
        probs = normalized(nucleus(probs, params.top_p))
    if params.min_p:
        probs = normalized([p if p >= params.min_p * max(probs) else 0.0 for p in probs])
    return probs


def nucleus(probs: Sequence[float], top_p: float) -> list[float]:
    mass, cut = 0.0, 0.0
    for prob in sorted(probs, reverse=True):
        if mass >= top_p:
            break
        mass, cut = mass + prob, prob
    return [p if p >= cut else 0.0 for p in probs]


def normalized(weights: Sequence[float]) -> list[float]:
    return [weight / sum(weights) for weight in weights]


def chi_square(counts: Sequence[int], probs: Sequence[float]) -> tuple[float, float]:
    """Return the statistic and the bound that it exceeds with probability 1e-4 or so.

    The bound is Wilson and Hilferty's approximation. Cells of probability 0 must be empty.
    """
    total = sum(counts)
    cells = [(count, prob) for count, prob in zip(counts, probs, strict=True) if prob > 0]
    assert sum(count for count, _ in cells) == total, "a token of probability 0 was drawn"
    statistic = sum((count - total * prob) ** 2 / (total * prob) for count, prob in cells)
    freedom = max(1, len(cells) - 1)
    spread = 2 / (9 * freedom)
    return statistic, freedom * (1 - spread + 3.72 * math.sqrt(spread)) ** 3

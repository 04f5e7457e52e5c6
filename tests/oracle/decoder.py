"""Plain decoding as anyone would write it: transformers, no cache, the whole prefix each step."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np
import torch
from transformers import PreTrainedModel

from tests.oracle.sampling import Settings, choose


@dataclass(frozen=True)
class Output:
    """What one request should give. `margin`: how near its nearest decision was to another."""

    prompt: tuple[int, ...]
    tokens: tuple[int, ...]
    margin: float
    logprobs: tuple[float, ...]

    @property
    def all_tokens(self) -> list[int]:
        return [*self.prompt, *self.tokens]


def decode(
    model: PreTrainedModel, prompts: Iterable[Sequence[int]], settings: Settings, max_tokens: int
) -> list[Output]:
    """One output per prompt, in order; prompts of equal length share a batch, nothing else."""
    numbered = sorted(enumerate(map(tuple, prompts)), key=lambda item: len(item[1]))
    found: dict[int, Output] = {}
    for _, group in groupby(numbered, key=lambda item: len(item[1])):
        places, batch = zip(*group, strict=True)
        outputs = _decode_batch(model, batch, settings, max_tokens)
        found.update(zip(places, outputs, strict=True))
    return [found[place] for place in sorted(found)]


def _decode_batch(
    model: PreTrainedModel, batch: Sequence[tuple[int, ...]], settings: Settings, max_tokens: int
) -> list[Output]:
    outputs: list[list[int]] = [[] for _ in batch]
    logprobs: list[list[float]] = [[] for _ in batch]
    margins = [float("inf")] * len(batch)
    for _ in range(max_tokens):
        rows = torch.tensor(
            [[*prompt, *output] for prompt, output in zip(batch, outputs, strict=True)]
        )
        with torch.inference_mode():
            logits = model(rows, use_cache=False).logits[:, -1].double().numpy()
        for place, (prompt, output) in enumerate(zip(batch, outputs, strict=True)):
            token, margin = choose(logits[place], prompt, output, settings)
            margins[place] = min(margins[place], margin)
            logprobs[place].append(float(logits[place][token] - _log_sum(logits[place])))
            output.append(token)
    return [
        Output(prompt, tuple(output), margin, tuple(values))
        for prompt, output, margin, values in zip(batch, outputs, margins, logprobs, strict=True)
    ]


def _log_sum(row: np.ndarray) -> float:
    largest = row.max()
    return float(largest + np.log(np.exp(row - largest).sum()))


@dataclass(frozen=True)
class Ending:
    """Where a request ends: its tokens, its text, and why."""

    tokens: tuple[int, ...]
    text: str
    reason: str


def cut(
    tokens: Sequence[int],
    decode_text: Callable[[Sequence[int]], str],
    *,
    max_tokens: int,
    end_tokens: Iterable[int] = (),
    stops: Sequence[str] = (),
) -> Ending:
    """Walk token by token to the first end token, stop string or limit."""
    ends = set(end_tokens)
    for count in range(1, max_tokens + 1):
        kept = tuple(tokens[:count])
        text = decode_text(kept)
        if starts := [text.index(stop) for stop in stops if stop in text]:
            return Ending(kept, text[: min(starts)], "stop")
        if kept[-1] in ends:
            return Ending(kept, text, "stop")
    return Ending(tuple(tokens[:max_tokens]), decode_text(tokens[:max_tokens]), "length")

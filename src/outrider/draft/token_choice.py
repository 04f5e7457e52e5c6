"""Choice of the token that a drafter proposes after a row of its logits, and where it stops.

Stopping may depend on the row's distribution, never on the token that is drawn from it: what is
accepted would not be distributed as the target's own tokens otherwise.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from outrider.errors import ConfigError, StageError
from outrider.records import Draft
from outrider.sampling.logits import probabilities
from outrider.sampling.params import SamplingParams
from outrider.sampling.rng import Key, Purpose, draw


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftToken:
    """A proposed token; `confidence` is the largest probability of its row, whatever was drawn.

    `probs`, float64 [target rows], is the distribution that a sampled token was drawn from.
    """

    token: int
    confidence: float
    probs: Tensor | None = None


class GreedyChooser:
    """Argmax over the `vocab_size` tokens that draft and target share, the first of equals.

    A draft ends where that token has less than `min_probability`.
    """

    def __init__(self, *, vocab_size: int, min_probability: float = 0.0) -> None:
        _check_probability(min_probability)
        self.vocab_size = vocab_size
        self.min_probability = min_probability

    def choose(
        self, logits: Tensor, position: int, confidence: float | None = None
    ) -> DraftToken | None:
        """The token for absolute `position` by its `logits` [1, draft rows]; None ends the draft.

        `confidence` is the row's confidence, where the drafter knows it without the chooser.
        """
        row = logits[0] if logits.shape[1] == self.vocab_size else logits[0, : self.vocab_size]
        if confidence is None:
            confidence = top_probabilities(row[None])[0]
        check_finite(confidence, position)
        if confidence < self.min_probability:
            return None
        return DraftToken(token=int(row.argmax()), confidence=confidence)


class SampledChooser:
    """A draw at `temperature` from the tokens that draft and target share.

    The distributions handed over have `target_rows` entries, as the target's logits have.
    """

    def __init__(
        self,
        *,
        vocab_size: int,
        target_rows: int,
        temperature: float,
        key: Key,
        min_probability: float = 0.0,
    ) -> None:
        _check_probability(min_probability)
        if not temperature > 0.0:
            raise ConfigError(
                f"draft temperature = {temperature} is not positive; leave it at 0 for greedy "
                f"drafts."
            )
        self._sampling = SamplingParams(temperature=temperature)
        self._vocab_size, self._target_rows = vocab_size, target_rows
        self._key, self._min_probability = key, min_probability

    def choose(
        self, logits: Tensor, position: int, confidence: float | None = None
    ) -> DraftToken | None:
        """As `GreedyChooser.choose`."""
        probs = probabilities(logits[0, : self._vocab_size], self._sampling, None)
        if confidence is None:
            confidence = float(probs.max())
        if confidence < self._min_probability:
            return None
        token = draw(probs, self._key.uniform(position, Purpose.DRAFT))
        padded = probs.new_zeros(self._target_rows)
        padded[: self._vocab_size] = probs
        return DraftToken(token=token, confidence=confidence, probs=padded)


Chooser = GreedyChooser | SampledChooser


def spread_logits(logits: Tensor, ids: Tensor | None, vocab_size: int) -> Tensor:
    """Logits [n, draft vocab] as [n, vocab], -inf where the draft vocabulary lacks a token.

    ids: the target's int64 [draft vocab], None where both are the same.
    """
    if ids is None:
        return logits
    spread = logits.new_full((len(logits), vocab_size), float("-inf"))
    return spread.index_copy_(1, ids, logits)


def top_probabilities(logits: Tensor) -> list[float]:
    """The largest probability of each row of logits [n, vocab]."""
    totals: list[float] = (logits - logits.amax(-1, keepdim=True)).exp_().sum(-1).tolist()
    return [1.0 / total for total in totals]


def as_draft(choices: Sequence[DraftToken], source: str, rollback_ms: float = 0.0) -> Draft | None:
    """Return the choices as a draft, None if there are none."""
    if not choices:
        return None
    rows = [choice.probs for choice in choices if choice.probs is not None]
    return Draft(
        tokens=tuple(choice.token for choice in choices),
        source=source,
        probs=torch.stack(rows) if rows else None,
        confidence=tuple(choice.confidence for choice in choices),
        rollback_ms=rollback_ms,
    )


def _check_probability(value: float) -> None:
    if not 0.0 <= value <= 1.0:
        raise ConfigError(f"min_probability = {value} is out of range; it must be from 0 to 1.")


def check_finite(confidence: float, position: int) -> None:
    """StageError unless the row for `position` gave a number."""
    if not math.isfinite(confidence):
        raise StageError(
            f"the drafter's logits for position {position} hold NaN or infinity: check the "
            f"draft checkpoint and its dtype."
        )

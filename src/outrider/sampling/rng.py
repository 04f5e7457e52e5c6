"""Randomness as a function of where it is used, not of when.

A uniform number is a hash of (seed, choice, position, purpose). So plain decoding, any window
width and any number of windows in flight draw the same number for the same decision, and a
replayed or voided row leaves no trace.
"""

import hashlib
import struct
from dataclasses import dataclass
from enum import IntEnum

import torch

from outrider.errors import StageError

_TO_UNIT = 2.0**-53


class Purpose(IntEnum):
    """The decision that a number makes. The values are part of what a seed means: never renumber
    them."""

    TARGET = 0
    DRAFT = 1
    ACCEPT = 2
    RESIDUAL = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    """Names one stream of randomness: a request's seed and which of its choices this is."""

    seed: int
    choice: int = 0

    def uniform(self, position: int, purpose: Purpose) -> float:
        """Return the number in [0, 1), of 53 random bits, for the token at `position`."""
        counter = struct.pack("<QQQQ", self.seed, self.choice, position, purpose)
        digest = hashlib.blake2b(counter, digest_size=8, person=b"outrider").digest()
        return (int.from_bytes(digest, "little") >> 11) * _TO_UNIT


def draw(probs: torch.Tensor, uniform: float) -> int:
    """Return the index that `uniform` in [0, 1) selects from `probs` [n] by inverse CDF.

    `probs` are weights >= 0 and need not sum to 1; the sum runs in float64. An entry of 0 is never
    returned, whatever the rounding. Raises StageError if the weights hold NaN or infinity or are
    all 0.
    """
    index = _select(probs, uniform)
    if index < len(probs) and float(probs[index]) > 0.0:
        return index
    support = probs.nonzero().squeeze(-1)  # A sum rounded in parallel: leave the zeros out of it.
    return int(support[min(_select(probs[support], uniform), len(support) - 1)])


def _select(probs: torch.Tensor, uniform: float) -> int:
    """Return the first index whose cumulative weight exceeds `uniform` of the total."""
    cumulative = probs.double().cumsum(0)
    total = float(cumulative[-1]) if len(probs) else 0.0
    if not 0.0 < total < float("inf"):
        raise StageError(
            f"cannot draw a token from weights that sum to {total}: the model's logits hold NaN "
            f"or infinity; check the checkpoint and its dtype."
        )
    return int(torch.searchsorted(cumulative, uniform * total, right=True))

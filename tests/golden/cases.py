"""What the golden vectors of speculators' block drafters are about."""

from dataclasses import replace

import torch
from torch import Tensor

from tests.helpers.blocks import HIDDEN, VOCAB, Kind

LENGTH = 20
DFLASH = Kind(packaging="speculators")
DSPARK = replace(DFLASH, markov="vanilla", confidence=True, anchor_first=True)
BONUS = replace(DSPARK, anchor_first=False)
KINDS = {
    "dflash": DFLASH,
    "dflash-sliding": replace(DFLASH, window=7),
    "dflash-sliding-both-ways": replace(DFLASH, window=7, causal=False),
    "dflash-reduced": replace(DFLASH, reduced=40),
    "dspark": DSPARK,
    "dspark-gated": replace(DSPARK, markov="gated"),
    "dspark-rnn": replace(DSPARK, markov="rnn"),
    "dspark-plain-confidence": replace(DSPARK, reads_code=False),
    "bonus": BONUS,
    "bonus-reduced-rnn": replace(BONUS, markov="rnn", reduced=40),
}


def case(kind: Kind, seed: int = 5) -> tuple[Tensor, list[int], Tensor, Tensor]:
    """Features [LENGTH, taps * hidden], tokens up to the anchor; the target's two matrices."""
    generator = torch.Generator().manual_seed(seed)
    features = torch.randn(LENGTH, len(kind.taps) * HIDDEN, generator=generator) * 2
    tokens = torch.randint(0, VOCAB - 1, (LENGTH + 1,), generator=generator).tolist()
    embedding = torch.randn(VOCAB, HIDDEN, generator=generator)
    return features, tokens, embedding, torch.randn(VOCAB, HIDDEN, generator=generator)

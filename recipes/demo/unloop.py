"""Unlikelihood training on the model's own greedy code, so that it does not loop.

A model of this size falls into loops as soon as it decodes greedily (92 % of the output repeated
earlier 8-grams half-way through training), and loops would flatter every drafter. Every so often
the model continues code prompts greedily; tokens that complete an n-gram already in the context
then get the loss -log(1 - p), after Welleck et al., "Neural text generation with unlikelihood
training". Edits and structured text, where repeating is right, are not touched.
"""

from __future__ import annotations

import random

import torch
import torch.nn.functional as F
from torch import nn

from recipes.demo import generate, mix

GRAM = 6
ROWS, PROMPT, NEW = 48, (24, 100), 100
ROWS_A_STEP = 3
REFRESH_STEPS = 40
WEIGHT = 0.3


def repeated(row: list[int], start: int, size: int = GRAM) -> list[bool]:
    """For each token from `start` on: does the n-gram that it ends occur earlier in the row."""
    seen: set[tuple[int, ...]] = set()
    flags = []
    for end in range(1, len(row) + 1):
        gram = tuple(row[max(0, end - size) : end])
        if end > start:
            flags.append(len(gram) == size and gram in seen)
        seen.add(gram)
    return flags


class OwnLoops:
    """Greedy continuations of code prompts and which of their tokens repeat."""

    def __init__(self, rows: mix.Mix, rank: int) -> None:
        self.rows, self.rng = rows, random.Random(f"loops-{rank}")
        self.ids = torch.empty(0)
        self.flags = torch.empty(0)

    def refresh(self, net: nn.Module) -> float:
        """Write new continuations; returns the share of their tokens that repeat."""
        length = self.rng.randint(*PROMPT)
        prompts = [self.rows.code(self.rng, length) for _ in range(ROWS)]
        self.ids = generate.continue_rows(net, torch.tensor(prompts), NEW, torch.zeros(ROWS))
        flags = [repeated(row, length) for row in self.ids.tolist()]
        none = [False] * (length - 1)
        self.flags = torch.tensor([none + row for row in flags])
        return float(torch.tensor(flags).float().mean())

    def loss(self, net: nn.Module) -> torch.Tensor:
        """Unlikelihood of a few rows' repeats, per token."""
        pick = self.rng.sample(range(ROWS), ROWS_A_STEP)
        ids, flags = self.ids[pick], self.flags[pick]
        with torch.autocast("cpu", torch.bfloat16):
            logits = net(input_ids=ids[:, :-1], use_cache=False).logits
        log_p = F.log_softmax(logits[flags].float(), -1)
        p = log_p.gather(-1, ids[:, 1:][flags][:, None]).exp().clamp(max=0.9999)
        return -torch.log1p(-p).sum() * (WEIGHT / flags.numel())

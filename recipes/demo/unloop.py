"""Unlikelihood training on the model's own greedy code, so that it does not loop.

A model of this size falls into loops as soon as it decodes greedily (92 % of the output repeated
earlier 8-grams half-way through training), and loops would flatter every drafter. Every so often
the model continues code prompts greedily; tokens that complete an n-gram already in the context
then get the loss -log(1 - p), after Welleck et al., "Neural text generation with unlikelihood
training". Edits and structured text, where repeating is right, are not touched.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn

from recipes.demo import fast_kernels, generate, mix

GRAM = 6


@dataclass(frozen=True)
class Plan:
    """Rows written at a time, and their use."""

    rows: int
    new: int
    rows_a_step: int
    refresh_steps: int
    weight: float
    prompt: tuple[int, int] = (24, 110)


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

    def __init__(self, rows: mix.Mix, plan: Plan, rank: int) -> None:
        self.rows, self.plan, self.rng = rows, plan, random.Random(f"loops-{rank}")
        self.ids = torch.empty(0)
        self.flags = torch.empty(0)

    def refresh(self, net: nn.Module) -> float:
        """Write new continuations; returns the share of their tokens that repeat."""
        plan = self.plan
        length = self.rng.randint(*plan.prompt)
        prompts = [self.rows.code(self.rng, length) for _ in range(plan.rows)]
        greedy = torch.zeros(plan.rows)
        self.ids = generate.continue_rows(net, torch.tensor(prompts), plan.new, greedy)
        flags = [repeated(row, length) for row in self.ids.tolist()]
        none = [False] * (length - 1)
        self.flags = torch.tensor([none + row for row in flags])
        return float(torch.tensor(flags).float().mean())

    def loss(self, net: nn.Module) -> torch.Tensor:
        """Unlikelihood of a few rows' repeats, per token."""
        pick = self.rng.sample(range(self.plan.rows), self.plan.rows_a_step)
        ids, flags = self.ids[pick], self.flags[pick]
        with fast_kernels.half_precision():
            logits = net(input_ids=ids[:, :-1], use_cache=False).logits
        log_p = F.log_softmax(logits[flags].float(), -1)
        p = log_p.gather(-1, ids[:, 1:][flags][:, None]).exp().clamp(max=0.9999)
        return -torch.log1p(-p).sum() * (self.plan.weight / flags.numel())

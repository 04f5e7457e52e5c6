"""Training a drafter on its own outputs, as it will run (EAGLE-3's training-time test, 2503.01840).

Step j drafts the (j + 1)-th token after every place of a row at once. Its row t takes the step
before's output at t, sees the true pairs up to t, and of the later steps only its own row's.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import nn

HARD_SHARE = 0.25
# A draft after a rejected one is never used, but still teaches something.
DEAD_WEIGHT = 0.25


@torch.no_grad()
def lesson(logits: torch.Tensor) -> torch.Tensor:
    """Distribution to teach [B, T, V]: the target's, and its greedy token's share of it."""
    taught = logits.float().softmax(-1).mul_(1 - HARD_SHARE)
    return taught.scatter_add_(
        -1, logits.argmax(-1, keepdim=True), torch.full(logits.shape[:-1], HARD_SHARE)[..., None]
    )


def cross_entropy(logits: torch.Tensor, taught: torch.Tensor) -> torch.Tensor:
    """Per-position loss [B, T], without the constant, the taught distribution's entropy."""
    logits = logits.float()
    return logits.logsumexp(-1) - (logits * taught).sum(-1)


@dataclass
class Past:
    """Keys and values [B, Hk, T - j, D] of every step so far; the first holds the true pairs."""

    keys: list[torch.Tensor] = field(default_factory=list)
    values: list[torch.Tensor] = field(default_factory=list)

    @property
    def steps(self) -> int:
        return len(self.keys)

    def attend(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """Add a step; its queries [B, H, T - j, D], already rotated -> [B, T - j, H * D]."""
        self.keys.append(k)
        self.values.append(v)
        if self.steps == 1:
            out = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        else:
            out = self._chained(q)
        return out.transpose(1, 2).flatten(2)

    def _chained(self, q: torch.Tensor) -> torch.Tensor:
        count, groups = q.shape[2], q.shape[1] // self.keys[0].shape[1]
        keys, values = (
            [x[:, :, :count].repeat_interleave(groups, 1) for x in part]
            for part in (self.keys, self.values)
        )
        q = q * q.shape[-1] ** -0.5
        hidden = torch.ones(count, count, dtype=torch.bool, device=q.device).triu(1)
        scores = [(q @ keys[0].transpose(-1, -2)).masked_fill(hidden, float("-inf"))]
        scores += [(q * key).sum(-1, keepdim=True) for key in keys[1:]]
        shares = torch.cat(scores, -1).float().softmax(-1).to(q.dtype)
        out = shares[..., :count] @ values[0]
        for step, value in enumerate(values[1:]):
            out = out + shares[..., count + step, None] * value
        return out


class Unrolled(nn.Module):
    """A student of several steps; a subclass says what it reads and how one step is made.

    Each step counts `decay` times the one before it.
    """

    steps, decay = 3, 0.8

    def read(self, ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Token ids [B, T] -> what the first step reads [B, T, *] and the target's logits."""
        raise NotImplementedError

    def step(
        self, hidden: torch.Tensor, ids: torch.Tensor, past: Past
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Hidden and the tokens that follow [B, R] -> logits and the next step's hidden."""
        raise NotImplementedError

    def losses(
        self, ids: torch.Tensor, kept: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Mean loss and mean number of accepted drafts, per row of the batch [B].

        `kept`: the ids that logits are for, where they are not all.
        """
        hidden, logits = self.read(ids)
        best, taught = logits.argmax(-1), lesson(logits if kept is None else logits[..., kept])
        past, alive = Past(), torch.ones(ids.shape, dtype=torch.bool)
        loss, drafts = torch.zeros(len(ids)), torch.zeros(len(ids))
        for number in range(self.steps):
            count = ids.shape[1] - 1 - number
            logits, hidden = self.step(hidden[:, :count], ids[:, 1 + number :], past)
            alive = alive[:, :count]
            weight = self.decay**number * torch.where(alive, 1.0, DEAD_WEIGHT)
            missed = cross_entropy(logits, taught[:, 1 + number :])
            loss = loss + (weight * missed).mean(1)
            guess = logits.argmax(-1) if kept is None else kept[logits.argmax(-1)]
            alive = alive & (guess == best[:, 1 + number :])
            drafts = drafts + alive.float().mean(1)
        return loss, drafts

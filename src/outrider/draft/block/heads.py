"""Additions of DSpark to a block (arXiv 2607.05147): the Markov head, confidence, conditioning."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from outrider.draft.block.layout import Markov
from outrider.kernels.linear import Linear

FREQUENCIES = 64
SNR_STEPS = 1000.0


@dataclass(frozen=True, slots=True, kw_only=True)
class MarkovHead:
    """A low-rank bias of a row's logits by the token before it, `code` [vocab, rank] per token.

    `out` leads from rank to the draft vocabulary. `mix` is the projection of the gated kind,
    hidden and code to rank, or of the rnn kind, state, code and hidden to gate, candidate, output.
    """

    kind: Markov
    code: Tensor
    out: Linear
    mix: Linear | None = None

    def start(self, unread: Tensor, anchor: int) -> Tensor:
        """The state [1, rank] before the first row that predicts; only the rnn kind changes it.

        `unread` [0 or 1, H] is the row before that, which the recurrence runs over all the same.
        """
        state = self.code.new_zeros(1, self.code.shape[1])
        return self.bias(anchor, unread, state)[1] if self.kind == "rnn" and len(unread) else state

    def bias(self, token: int, hidden: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """Bias [1, draft vocab] of a row with normed `hidden` [1, H] after `token`, next state."""
        code = self.code[token : token + 1]
        if self.mix is None:
            return self.out(code), state
        if self.kind == "gated":
            return self.out(self.mix(torch.cat([hidden, code], -1)).sigmoid() * code), state
        parts = self.mix(torch.cat([state, code, hidden], -1)).chunk(3, -1)
        gate, candidate, output = parts[0].sigmoid(), parts[1].tanh(), parts[2].tanh()
        return self.out(output), gate * state + (1 - gate) * candidate


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfidenceHead:
    """How likely a row's draft is kept, given that those before it are.

    A sum of two parts, both fp32: of the row's hidden state, weight [H] and `offset`, and of the
    Markov code of the token before it, by token [vocab] (None: the head does not read it).
    """

    weight: Tensor
    offset: float
    by_token: Tensor | None

    def of_rows(self, hidden: Tensor) -> list[float]:
        """The hidden states' part [n] of normed `hidden` [n, H]."""
        values: list[float] = (hidden.float() @ self.weight + self.offset).tolist()
        return values

    def value(self, row: float, token: int) -> float:
        """The confidence of a row with part `row` after `token`, in (0, 1)."""
        total = row + (float(self.by_token[token]) if self.by_token is not None else 0.0)
        return 1.0 / (1.0 + math.exp(-total)) if total > -700.0 else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSnr:
    """Conditioning on how clean a row is: the anchor's log-SNR is the largest, masks' the least.

    `inner` and `outer` are weight and bias of two layers, 2 * FREQUENCIES to H to H.
    """

    low: float
    high: float
    inner: tuple[Tensor, Tensor]
    outer: tuple[Tensor, Tensor]

    def rows(self) -> Tensor:
        """Vectors added to the embeddings of the anchor and of every mask [2, H]."""
        values = torch.tensor([self.high, self.low])
        times = (values - self.low) / (self.high - self.low) * SNR_STEPS
        steps = torch.arange(FREQUENCIES) / FREQUENCIES
        angles = torch.outer(times, torch.exp(-math.log(10000.0) * steps))
        waves = torch.cat([angles.sin(), angles.cos()], -1).to(self.inner[0])
        return functional.linear(
            functional.silu(functional.linear(waves, *self.inner)), *self.outer
        )

"""DSpark's additions to a block (arXiv 2607.05147): Markov head, confidence head, log-SNR.

The greedy choice of tokens with these heads exists compiled, too.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from outrider.draft.block.block_config import Markov
from outrider.draft.block.block_trunk import Array
from outrider.kernels.compiled import Product
from outrider.kernels.loading import load_kernels
from outrider.kernels.operations import Linear

FREQUENCIES = 64
SNR_STEPS = 1000.0
Layer = tuple[Tensor, Tensor]
"""Weight and bias."""


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


def log_snr_rows(low: float, high: float, inner: Layer, outer: Layer) -> Tensor:
    """Vectors added to the embeddings of the anchor and of every mask [2, H]: how clean a row is.

    The anchor's log-SNR is the largest, masks' the least. `inner` and `outer`: weight and bias of
    two layers, 2 * FREQUENCIES to H to H.
    """
    values = torch.tensor([high, low])
    times = (values - low) / (high - low) * SNR_STEPS
    steps = torch.arange(FREQUENCIES) / FREQUENCIES
    angles = torch.outer(times, torch.exp(-math.log(10000.0) * steps))
    waves = torch.cat([angles.sin(), angles.cos()], -1).to(inner[0])
    return functional.linear(functional.silu(functional.linear(waves, *inner)), *outer)


@dataclass(frozen=True, slots=True, kw_only=True)
class GreedyRows:
    """Greedy drafts of a block by `jit_draft.choose_rows`, with the heads as it takes them.

    code [vocab, rank] and `weight` [blocks, rank, BLOCK]: of the Markov head; mix [blocks, in,
    BLOCK] and `bias` [blocks, BLOCK]: its projection. by_hidden [H], by_token [vocab] and `offset`:
    of the confidence head. ids: the vocabulary map. What a drafter lacks is empty.
    """

    code: Array
    weight: Array
    mix: Array
    bias: Array
    by_hidden: Array
    by_token: Array
    offset: float
    ids: Array

    def choose(
        self, logits: Tensor, hidden: Tensor, token: int, min_confidence: float
    ) -> list[tuple[int, float]]:
        """Tokens and confidence of rows [n, draft vocab] with normed `hidden` after `token`.

        hidden [n or n + 1, H]: with the row that comes before those that predict, if there is one.
        The token is -1 in the first row with less than `min_confidence`, or with what is no number,
        and what follows it means nothing.
        """
        tokens, chances = torch.empty(len(logits), dtype=torch.int64), torch.empty(len(logits))
        load_kernels("jit_draft").choose_rows(
            logits.numpy(),
            hidden.numpy(),
            (self.by_hidden, self.by_token),
            self.offset,
            self.code,
            self.weight,
            self.mix,
            self.bias,
            self.ids,
            token,
            min_confidence,
            tokens.numpy(),
            chances.numpy(),
        )
        return list(zip(tokens.tolist(), chances.tolist(), strict=True))


def greedy_rows(
    markov: MarkovHead | None,
    confidence: ConfidenceHead | None,
    ids: Tensor | None,
) -> GreedyRows | None:
    """The compiled choice for these heads; None where any product is torch's."""
    flat, table = torch.empty(0), torch.empty(0, 0)
    code, weight = table, table.unsqueeze(-1).numpy()
    mix, bias = weight, table.numpy()
    if markov is not None:
        product, mixed = markov.out, markov.mix
        if not isinstance(product, Product) or not isinstance(mixed, Product | None):
            return None
        code, weight = markov.code.contiguous(), product.weight
        if mixed:
            mix, bias = mixed.weight, mixed.bias
    by_hidden, by_token, offset = flat, None, 0.0
    if confidence is not None:
        by_hidden, offset = confidence.weight.contiguous(), confidence.offset
        by_token = confidence.by_token
    return GreedyRows(
        code=code.numpy(),
        weight=weight,
        mix=mix,
        bias=bias,
        by_hidden=by_hidden.numpy(),
        by_token=(flat if by_token is None else by_token).numpy(),
        offset=offset,
        ids=(flat.long() if ids is None else ids).numpy(),
    )

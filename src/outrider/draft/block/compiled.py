"""A block drafter's weights as compiled kernels take them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from outrider.draft.block.heads import ConfidenceHead, MarkovHead
from outrider.kernels.fused import Fused, Product
from outrider.kernels.linear import Linear
from outrider.kernels.norm import RmsNorm
from outrider.models.attention import AttentionLayer
from outrider.models.decoder import DecoderLayer

ONE_THREADS = 1 << 19
"""Weights of the largest product that threads would not share; a pass in one call has one."""


@dataclass(frozen=True, slots=True)
class CompiledTrunk:
    """Inputs of `jit_block` from a trunk; `products` keeps alive what the addresses lead to."""

    fused: Fused
    products: tuple[Product, ...]
    block: tuple[Any, ...]
    context: tuple[Any, ...]

    def run(self, x: Tensor, wanted: int, start: int, kept: Tensor, seen: Tensor) -> Tensor:
        """Normed outputs of the first `wanted` rows x [n, hidden] after `start` context rows.

        They replace the rows. seen [layers, 2, n]: first and last position that each row sees.
        """
        self.fused.block.run_block(
            x.numpy(), wanted, start, kept.numpy(), seen.numpy(), *self.block
        )
        return x.narrow(0, 0, wanted)

    def keep(self, features: Tensor, start: int, kept: Tensor) -> None:
        """Write keys and values of features [n, width] at positions from `start` on."""
        self.fused.block.keep_features(
            features.contiguous().numpy(), start, kept.numpy(), *self.context
        )


def compiled_trunk(
    layers: Sequence[DecoderLayer],
    consumers: Sequence[Linear],
    norms: tuple[RmsNorm, RmsNorm],
    turns: Tensor,
) -> CompiledTrunk | None:
    """The compiled form of a trunk, None where kernels or any product are torch's.

    consumers: its `read` and `keep`. norms: its `key_norm` and `norm`.
    """
    mixers = [layer.mixer for layer in layers if isinstance(layer.mixer, AttentionLayer)]
    fused, mlps = mixers[0].fused, [layer.mlp for layer in layers]
    steps = [
        (one.project, one.out, net.gate_up, net.down) for one, net in zip(mixers, mlps, strict=True)
    ]
    linears = [*consumers, *(one for four in steps for one in four)]
    products = [one.kernel for one in linears if isinstance(one.kernel, Product)]
    if fused is None or len(products) < len(linears):
        return None
    if torch.get_num_threads() > 1 and max(one.weight.size for one in products) > ONE_THREADS:
        return None
    places = [[one.weight.ctypes.data, one.bias.ctypes.data] for one in products]
    table, (key_norm, norm) = torch.tensor(places).numpy(), norms
    scales = torch.stack([torch.from_numpy(one.fused_weights[0]) for one in mixers]).numpy()
    shape = *mixers[0].shape[:3], mlps[0].down.in_features
    eps = norm.eps.item(), key_norm.eps.item()
    block = table[2:].reshape(-1, 4, 2), shape, scales, norm.scale.numpy(), eps, turns.numpy()
    hidden = consumers[0].out_features
    context = table[:2], hidden, key_norm.scale.numpy(), eps, turns.numpy()
    return CompiledTrunk(fused, tuple(products), block, context)


@dataclass(frozen=True, slots=True)
class GreedyRows:
    """Inputs of `jit_draft.choose_rows` from the heads: confidence, Markov and vocabulary map."""

    fused: Fused
    heads: tuple[Any, ...]

    def choose(
        self, logits: Tensor, hidden: Tensor, token: int, least: float
    ) -> list[tuple[int, float]]:
        """Tokens and confidence of rows [n, draft vocab] with normed `hidden` after `token`.

        hidden [n or n + 1, H]: with the row that comes before those that predict, if there is one.
        The token is -1 in the first row with less than `least`, or with what is no number, and what
        follows it means nothing.
        """
        tokens, sure = torch.empty(len(logits), dtype=torch.int64), torch.empty(len(logits))
        found = tokens.numpy(), sure.numpy()
        self.fused.draft.choose_rows(
            logits.numpy(), hidden.numpy(), *self.heads, token, least, *found
        )
        return list(zip(tokens.tolist(), sure.tolist(), strict=True))


def greedy_rows(
    fused: Fused | None,
    markov: MarkovHead | None,
    confidence: ConfidenceHead | None,
    ids: Tensor | None,
) -> GreedyRows | None:
    """The compiled choice for these heads; None where kernels or any product are torch's."""
    code, weight, none = torch.empty(0, 0), torch.empty(0, 0, 1).numpy(), torch.empty(0)
    mix, bias = weight, torch.empty(0, 0).numpy()
    if fused is None:
        return None
    if markov is not None:
        product, mixed = markov.out.kernel, markov.mix and markov.mix.kernel
        if not isinstance(product, Product) or not isinstance(mixed, Product | None):
            return None
        code, weight = markov.code.contiguous(), product.weight
        if mixed:
            mix, bias = mixed.weight, mixed.bias
    by_hidden, by_token, offset = none, none, 0.0
    if confidence is not None:
        by_hidden, offset = confidence.weight.contiguous(), confidence.offset
        by_token = none if confidence.by_token is None else confidence.by_token
    kept = none.long() if ids is None else ids
    sure = by_hidden.numpy(), by_token.numpy()
    return GreedyRows(fused, (sure, offset, code.numpy(), weight, mix, bias, kept.numpy()))

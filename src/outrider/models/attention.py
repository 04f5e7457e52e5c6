"""Attention layer: projections around attention with rotary embedding, head norms and gates."""

import torch
from torch import Tensor

from outrider.formats.tensors import WeightReader
from outrider.kernels.norm import RmsNorm, rms_norm
from outrider.kernels.operations import AttentionMix, Kernels
from outrider.kernels.pass_plan import PassPlan
from outrider.kernels.rotary import paired
from outrider.models.config import AttentionConfig


class AttentionLayer:
    """Mixes rows of one attention layer, the `index`-th of its kind in its states.

    The rotary order of columns is part of the projection's weights and of the head norms.
    """

    def __init__(
        self,
        config: AttentionConfig,
        in_width: int,
        eps: float,
        index: int,
        window: int | None,
        weights: WeightReader,
        kernels: Kernels,
        out_width: int | None = None,
    ) -> None:
        """`out_width`: width of the result where it is not the input's."""
        self.config = config
        self.mix = AttentionMix(
            index=index,
            heads=config.heads,
            kv_heads=config.kv_heads,
            width=config.width,
            scale=config.width**-0.5,
            gated=config.output_gate,
            window=window,
            head_norm=self._head_norm(weights, eps) if config.qk_norm else None,
        )
        queries, out_width = config.heads * config.width, out_width or in_width
        self.project = kernels.linear(*self._projection(in_width, weights))
        bias = weights.vector("o_proj.bias", out_width) if config.out_bias else None
        self.out = kernels.linear(weights.matrix("o_proj", out_width, queries), bias)
        self._mix_rows = kernels.attention(self.mix)

    def _head_norm(self, weights: WeightReader, eps: float) -> RmsNorm:
        """The norm of query and key heads [heads + kv_heads, width]."""
        config = self.config
        query = weights.norm("q_norm", config.width).expand(config.heads, -1)
        key = weights.norm("k_norm", config.width).expand(config.kv_heads, -1)
        return rms_norm(paired(torch.cat([query, key]), config.rope.width), eps)

    def _projection(self, in_width: int, weights: WeightReader) -> tuple[Tensor, Tensor | None]:
        """One matrix with rows in the order queries, keys, values, gates; its bias."""
        config = self.config
        wide = (2 if config.output_gate else 1) * config.heads * config.width
        few = config.kv_heads * config.width
        sizes = ("q", wide), ("k", few), ("v", few)
        rows = [weights.matrix(f"{name}_proj", size, in_width) for name, size in sizes]
        if not config.qkv_bias:
            return self._in_order(*rows), None
        biases = [weights.vector(f"{name}_proj.bias", size) for name, size in sizes]
        return self._in_order(*rows), self._in_order(*biases)

    def _in_order(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Join rows of the projections; gates are stored per head, after the head's query."""
        config = self.config
        per_head = query.view(config.heads, -1, config.width, *query.shape[1:])
        heads = torch.cat([per_head[:, 0], key.view(-1, *per_head.shape[2:])])
        gates = [per_head[:, 1].flatten(0, 1)] if config.output_gate else []
        return torch.cat([paired(heads, config.rope.width).flatten(0, 1), value, *gates])

    def __call__(self, x: Tensor, plan: PassPlan) -> Tensor:
        """x [N, in_width] of normed rows; returns [N, out_width]. Writes keys and values."""
        return self.out(self._mix_rows(self.project(x), plan))

"""Attention layer: projections, per-head norms, rotary embedding, paged attention, output gate."""

import torch
from torch import Tensor

from outrider.formats.tensors import WeightReader
from outrider.kernels.activation import one_plus_exp
from outrider.kernels.attention import attend
from outrider.kernels.norm import RmsNorm, fold_norm, rms_norm
from outrider.kernels.rope import paired, rotate
from outrider.kernels.selftest import Kernels
from outrider.models.config import AttentionConfig
from outrider.models.pass_plan import PassPlan, SpanPlan


class AttentionLayer:
    """Mixes rows of one attention layer, the `index`-th of its kind in its states.

    Folded into the projection at load: the weight `norm` of the norm before it, the scale of
    queries (unless a head norm holds it), the rotary order of columns, and the minus sign of the
    output gate's exponent.
    """

    def __init__(
        self,
        config: AttentionConfig,
        norm: Tensor,
        eps: float,
        index: int,
        window: int | None,
        weights: WeightReader,
        kernels: Kernels,
        out_width: int | None = None,
    ) -> None:
        """`out_width`: width of the result where it is not the input's."""
        self.config = config
        self.index = index
        self.window = window
        self.queries = config.heads * config.width
        self.keys = config.kv_heads * config.width
        scale = config.width**-0.5
        self.head_norm: RmsNorm | None = None
        if config.qk_norm:
            self.head_norm = rms_norm(self._head_norm(weights, scale), eps)
            scale = 1.0
        matrix, bias = self._projection(norm, scale, weights)
        self.project = kernels.make_linear(matrix, bias, use="memory")
        out_width = out_width or len(norm)
        out = weights.matrix("o_proj", out_width, self.queries)
        bias = weights.vector("o_proj.bias", out_width) if config.out_bias else None
        self.out = kernels.make_linear(out, bias)
        self.fused = kernels.fuse(out)
        self.shape = config.heads, config.kv_heads, config.width, int(config.output_gate)
        if self.fused:
            norm_scale, norm_eps = torch.empty(0, config.width), 0.0
            if self.head_norm:
                norm_scale, norm_eps = self.head_norm.scale, float(self.head_norm.eps)
            self.fused_weights = norm_scale.numpy(), norm_eps

    def _head_norm(self, weights: WeightReader, scale: float) -> Tensor:
        """Norm weights of query and key heads [heads + kv_heads, width]."""
        config = self.config
        query = weights.norm("q_norm", config.width).mul(scale).expand(config.heads, -1)
        key = weights.norm("k_norm", config.width).expand(config.kv_heads, -1)
        return paired(torch.cat([query, key]), config.rope.width)

    def _projection(
        self, norm: Tensor, scale: float, weights: WeightReader
    ) -> tuple[Tensor, Tensor | None]:
        """One matrix with rows in the order queries, keys, values, negated gates; its bias."""
        config, hidden_size = self.config, len(norm)
        wide = (2 if config.output_gate else 1) * self.queries
        matrix = self._in_order(
            weights.matrix("q_proj", wide, hidden_size),
            weights.matrix("k_proj", self.keys, hidden_size),
            weights.matrix("v_proj", self.keys, hidden_size),
            scale,
        )
        if not config.qkv_bias:
            return fold_norm(matrix, norm), None
        query = weights.vector("q_proj.bias", wide)
        key, value = (weights.vector(f"{name}_proj.bias", self.keys) for name in ("k", "v"))
        return fold_norm(matrix, norm), self._in_order(query, key, value, scale)

    def _in_order(self, query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
        """Join rows of the projections; gates are stored per head, after the head's query."""
        config = self.config
        per_head = query.view(config.heads, -1, config.width, *query.shape[1:])
        heads = torch.cat([per_head[:, 0] * scale, key.view(-1, *per_head.shape[2:])])
        gates = [-per_head[:, 1].flatten(0, 1)] if config.output_gate else []
        return torch.cat([paired(heads, config.rope.width).flatten(0, 1), value, *gates])

    def __call__(self, x: Tensor, plan: PassPlan) -> Tensor:
        """x [N, hidden] of unit rows; returns [N, hidden]. Writes keys and values."""
        projected = self.project(x)
        if self.fused:
            at, sizes = (plan.table, self.index), (*self.shape, self.window or 0)
            mixed = self.fused.mix_attention(projected, at, sizes, self.fused_weights, plan.turns)
            return self.out(mixed)
        self._turn_heads(projected, plan)
        units = zip(plan.split(projected), plan.units, strict=True)
        parts = [self._attend(*unit) for unit in units]
        mixed = parts[0] if len(parts) == 1 else torch.cat(parts)
        if self.config.output_gate:
            gates = projected.narrow(1, self.queries + 2 * self.keys, self.queries)
            mixed = mixed / one_plus_exp(gates)
        return self.out(mixed)

    def _turn_heads(self, projected: Tensor, plan: PassPlan) -> None:
        """Norm and rotary embedding of queries and keys, in place."""
        place = projected.narrow(1, 0, self.queries + self.keys)
        place = place.view(len(projected), -1, self.config.width)
        heads = place if self.head_norm is None else self.head_norm(place)
        rotate(heads, plan.cos, plan.sin, out=place)

    def _attend(self, projected: Tensor, span: SpanPlan) -> Tensor:
        store, config = span.state.attention, self.config
        assert store is not None
        kept = projected.narrow(1, self.queries, 2 * self.keys)
        store.write(self.index, span.start, kept.view(len(kept), 2, config.kv_heads, config.width))
        grouped = projected.narrow(1, 0, self.queries)
        grouped = grouped.view(len(projected), config.kv_heads, -1, config.width)
        keys, values = store.layer(self.index)
        if len(span.blocks) == 1:
            block = span.blocks[0]
            return attend(grouped, keys, values, block, block.biases[self.window]).flatten(1)
        parts = [
            attend(grouped[block.rows], keys, values, block, block.biases[self.window])
            for block in span.blocks
        ]
        return torch.cat(parts).flatten(1)

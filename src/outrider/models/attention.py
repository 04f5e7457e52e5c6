"""Attention layer: projections, per-head norms, rotary embedding, paged attention, output gate."""

import torch
from torch import Tensor

from outrider.models.config import AttentionConfig
from outrider.models.pass_plan import PassPlan, SpanPlan
from outrider.models.weights import WeightReader
from outrider.ops.activation import sigmoid
from outrider.ops.attention import attend
from outrider.ops.norm import rms_norm
from outrider.ops.rope import rotate
from outrider.ops.selftest import Kernels


class AttentionLayer:
    """Mixes rows of one attention layer, the `index`-th of its kind in its states."""

    def __init__(
        self,
        config: AttentionConfig,
        hidden_size: int,
        eps: float,
        index: int,
        window: int | None,
        weights: WeightReader,
        kernels: Kernels,
    ) -> None:
        self.config = config
        self.index = index
        self.window = window
        self.eps = eps
        self.queries = config.heads * config.width
        self.keys = config.kv_heads * config.width
        self.scale = config.width**-0.5
        self.head_norm = self._head_norm(weights) if config.qk_norm else None
        self.project = kernels.make_linear(*self._projection(hidden_size, weights))
        out = weights.matrix("o_proj", hidden_size, self.queries)
        bias = weights.vector("o_proj.bias", hidden_size) if config.out_bias else None
        self.out = kernels.make_linear(out, bias)

    def _head_norm(self, weights: WeightReader) -> Tensor:
        """Norm weights of query and key heads [heads + kv_heads, width], scale folded in."""
        config = self.config
        query = weights.norm("q_norm", config.width) * self.scale
        key = weights.norm("k_norm", config.width)
        return torch.cat([query.expand(config.heads, -1), key.expand(config.kv_heads, -1)])

    def _projection(self, hidden_size: int, weights: WeightReader) -> tuple[Tensor, Tensor | None]:
        """One matrix with rows in the order queries, keys, values, gates."""
        config, gates = self.config, 2 if self.config.output_gate else 1
        query = weights.matrix("q_proj", gates * self.queries, hidden_size)
        key = weights.matrix("k_proj", self.keys, hidden_size)
        value = weights.matrix("v_proj", self.keys, hidden_size)
        parts = [*self._split_gate(query), key, value]
        matrix = torch.cat([parts[0], *parts[-2:], *parts[1:-2]])
        if not config.qkv_bias:
            return matrix, None
        bias = weights.vector("q_proj.bias", gates * self.queries)
        halves = self._split_gate(bias)
        others = [weights.vector(f"{name}_proj.bias", self.keys) for name in ("k", "v")]
        return matrix, torch.cat([halves[0], *others, *halves[1:]])

    def _split_gate(self, query: Tensor) -> list[Tensor]:
        """Families with an output gate store query and gate per head, one behind the other."""
        if not self.config.output_gate:
            return [query]
        per_head = query.view(self.config.heads, 2, self.config.width, *query.shape[1:])
        return [per_head[:, 0].flatten(0, 1), per_head[:, 1].flatten(0, 1)]

    def __call__(self, x: Tensor, plan: PassPlan) -> Tensor:
        """x [N, hidden] normalised input; returns [N, hidden]. Writes keys and values."""
        projected = self.project(x)
        queries, keys, values = self._heads(projected, plan)
        mixed = torch.cat([self._attend(queries, keys, values, span) for span in plan.spans])
        if self.config.output_gate:
            mixed = mixed * sigmoid(projected[:, self.queries + 2 * self.keys :])
        return self.out(mixed)

    def _heads(self, projected: Tensor, plan: PassPlan) -> tuple[Tensor, Tensor, Tensor]:
        config, rows = self.config, projected.shape[0]
        both = projected[:, : self.queries + self.keys].view(rows, -1, config.width)
        if self.head_norm is not None:
            both = rms_norm(both, self.head_norm, self.eps)
        both = rotate(both, plan.cos, plan.sin).to(projected.dtype)
        queries = both[:, : config.heads]
        if self.head_norm is None:
            queries = queries * self.scale
        values = projected[:, self.queries + self.keys : self.queries + 2 * self.keys]
        return queries, both[:, config.heads :], values.view(rows, config.kv_heads, config.width)

    def _attend(self, queries: Tensor, keys: Tensor, values: Tensor, span: SpanPlan) -> Tensor:
        store, config = span.state.attention, self.config
        assert store is not None
        store.write(self.index, span.start, keys[span.rows], values[span.rows])
        grouped = queries[span.rows].unflatten(1, (config.kv_heads, -1))
        held = store.keys[self.index], store.values[self.index]
        parts = [
            attend(grouped[block.rows], *held, block.start, block.biases[self.window])
            for block in span.blocks
        ]
        return (parts[0] if len(parts) == 1 else torch.cat(parts)).flatten(1)

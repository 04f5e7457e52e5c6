"""Gated delta net layer (Yang et al. 2024) as in Qwen3-Next and Qwen3.5."""

import torch
from torch import Tensor

from outrider.models.config import DeltaConfig
from outrider.models.pass_plan import Chunk, PassPlan, SpanPlan
from outrider.models.weights import WeightReader
from outrider.ops.activation import sigmoid, silu, softplus
from outrider.ops.conv import causal_conv
from outrider.ops.delta import apply_rows
from outrider.ops.norm import rms_norm
from outrider.ops.selftest import Kernels

L2_EPS = 1e-6


class DeltaLayer:
    """Mixes rows of one recurrent layer, the `index`-th of its kind in its states."""

    def __init__(
        self,
        config: DeltaConfig,
        hidden_size: int,
        eps: float,
        index: int,
        weights: WeightReader,
        kernels: Kernels,
        tile: int,
    ) -> None:
        self.config = config
        self.index = index
        self.tile = tile
        self.key_size = config.key_heads * config.key_width
        self.value_size = config.value_heads * config.value_width
        # Queries stay unscaled: the norm behind the outputs divides any factor out again, except
        # in its epsilon, which takes the factor's square (queries would carry key_width ** -0.5).
        self.eps = eps * config.key_width
        self.project = kernels.make_linear(self._projection(hidden_size, weights))
        conv = weights.take("conv1d.weight", config.channels, 1, config.taps, dtype=torch.float32)
        self.conv = self._keys_first(conv[:, 0]).t().contiguous()
        self.rate = -weights.take("A_log", config.value_heads, dtype=torch.float32).exp()
        self.shift = weights.take("dt_bias", config.value_heads, dtype=torch.float32)
        self.norm = weights.take("norm.weight", config.value_width, dtype=torch.float32)
        self.out = kernels.make_linear(weights.matrix("out_proj", hidden_size, self.value_size))

    def _projection(self, hidden_size: int, weights: WeightReader) -> Tensor:
        """One matrix with rows in the order keys, queries, values, gate z, strength b, decay a."""
        config = self.config
        if config.interleaved:
            return self._interleaved(hidden_size, weights)
        mixed = weights.matrix("in_proj_qkv", config.channels, hidden_size)
        gate = weights.matrix("in_proj_z", self.value_size, hidden_size)
        strength = weights.matrix("in_proj_b", config.value_heads, hidden_size)
        decay = weights.matrix("in_proj_a", config.value_heads, hidden_size)
        return torch.cat([self._keys_first(mixed), gate, strength, decay])

    def _interleaved(self, hidden_size: int, weights: WeightReader) -> Tensor:
        """Qwen3-Next stores, per key head, its query, key, values and gates together."""
        config = self.config
        per_key = config.value_heads // config.key_heads
        wide = per_key * config.value_width
        fused = weights.matrix("in_proj_qkvz", config.channels + self.value_size, hidden_size)
        sizes = [config.key_width, config.key_width, wide, wide]
        query, key, value, gate = fused.view(config.key_heads, -1, hidden_size).split(sizes, 1)
        pairs = weights.matrix("in_proj_ba", 2 * config.value_heads, hidden_size)
        strength, decay = pairs.view(config.key_heads, -1, hidden_size).split(per_key, 1)
        parts = [key, query, value, gate, strength, decay]
        return torch.cat([part.flatten(0, 1) for part in parts])

    def _keys_first(self, rows: Tensor) -> Tensor:
        """Reorder channels from queries, keys, values to keys, queries, values."""
        query, key, value = rows.split([self.key_size, self.key_size, self.value_size])
        return torch.cat([key, query, value])

    def __call__(self, x: Tensor, plan: PassPlan) -> Tensor:
        """x [N, hidden] normalised input; returns [N, hidden]. Writes the log and columns."""
        config, projected = self.config, self.project(x)
        sizes = [config.channels, self.value_size, config.value_heads, config.value_heads]
        mixed, gate, strength, decay = projected.split(sizes, 1)
        strength = sigmoid(strength.float())
        decay = self.rate * softplus(decay.float() + self.shift)
        outputs = [
            self._mix(mixed[span.rows].float(), strength[span.rows], decay[span.rows], span)
            for span in plan.spans
        ]
        heads = outputs[0] if len(outputs) == 1 else torch.cat(outputs)
        normed = rms_norm(heads, self.norm, self.eps).flatten(1)
        return self.out((normed * silu(gate.float())).to(x.dtype))

    def _mix(self, mixed: Tensor, strength: Tensor, decay: Tensor, span: SpanPlan) -> Tensor:
        """Convolution and delta rule of one span; returns [n, value heads, value width]."""
        store, config, rows = span.state.delta, self.config, mixed.shape[0]
        assert store is not None
        columns = store.extend_columns(self.index, span.start, mixed)
        mixed = silu(causal_conv(columns, self.conv))
        both = mixed[:, : 2 * self.key_size].view(rows, 2, config.key_heads, config.key_width)
        both = (both * torch.rsqrt(both.square().sum(-1, keepdim=True) + L2_EPS)).permute(2, 1, 0, 3)
        values = mixed[:, 2 * self.key_size :].view(rows, config.value_heads, -1).transpose(0, 1)
        strength, decay = strength.t(), decay.t()
        parts = [
            self._apply(chunk, both, values, (decay, strength), span) for chunk in span.chunks
        ]
        return (parts[0] if len(parts) == 1 else torch.cat(parts, 1)).transpose(0, 1)

    def _apply(
        self,
        chunk: Chunk,
        both: Tensor,
        values: Tensor,
        gates: tuple[Tensor, Tensor],
        span: SpanPlan,
    ) -> Tensor:
        store, segment = span.state.delta, chunk.segment
        assert store is not None
        decay, strength = gates
        rows = segment.rows
        return apply_rows(
            both[:, :, rows].flatten(1, 2),
            values[:, rows],
            (decay[:, rows], strength[:, rows]),
            store.base(self.index, segment.chunk, opening=segment.first == 0),
            store.log(self.index, segment.chunk),
            chunk.visible,
            segment.first,
            max(self.tile, 1),
        )

"""Gated delta net layer (Yang et al. 2024) as in Qwen3-Next and Qwen3.5."""

import torch
from torch import Tensor

from outrider.formats.tensors import WeightReader
from outrider.kernels.activation import ONE, one_plus_exp
from outrider.kernels.conv import causal_conv
from outrider.kernels.delta import Rows, apply_rows
from outrider.kernels.norm import fold_norm, inverse_length, length_eps, unit_rows
from outrider.kernels.selftest import Kernels
from outrider.models.config import DeltaConfig
from outrider.models.pass_plan import Chunk, PassPlan, SpanPlan
from outrider.state.delta import DeltaState

L2_EPS = torch.tensor(1e-6)
LARGEST = torch.tensor(torch.finfo(torch.float32).max)


class DeltaLayer:
    """Mixes rows of one recurrent layer, the `index`-th of its kind in its states.

    Folded into weights at load: the weight `norm` of the norm before the projection, that of the
    norm after the recurrence (into `out`), the shift of the decay, and minus signs of exponents.
    So the convolution yields keys, queries and values negated; the recurrence then yields negated
    outputs, and the negated gate takes their sign back.
    """

    def __init__(
        self,
        config: DeltaConfig,
        norm: Tensor,
        eps: float,
        index: int,
        weights: WeightReader,
        kernels: Kernels,
    ) -> None:
        self.config, self.index = config, index
        self.key_size = config.key_heads * config.key_width
        self.value_size = config.value_heads * config.value_width
        # Queries stay unscaled: the norm after the outputs divides any factor out again, except
        # in its epsilon, which takes the factor's square (queries would carry key_width ** -0.5).
        self.eps = length_eps(eps * config.key_width, config.value_width).to(norm.device)
        self.project = kernels.make_linear(*self._projection(norm, weights), use="memory")
        conv = weights.take("conv1d.weight", config.channels, 1, config.taps, dtype=torch.float32)
        self.conv = -self._keys_first(conv[:, 0]).t().contiguous()
        self.rate = -weights.take("A_log", config.value_heads, dtype=torch.float32).exp()
        out = weights.matrix("out_proj", len(norm), self.value_size)
        inner = weights.take("norm.weight", config.value_width, dtype=torch.float32)
        per_head = fold_norm(out.view(-1, config.value_width), inner)
        self.out = kernels.make_linear(per_head.view(out.shape))
        self.fused = kernels.fuse(out)
        self.shape = config.key_heads, config.value_heads, config.key_width, config.value_width
        if self.fused:
            self.fused_weights = self.conv.numpy(), self.rate.numpy(), float(self.eps)

    def _projection(self, norm: Tensor, weights: WeightReader) -> tuple[Tensor, Tensor]:
        """One matrix with rows in the order keys, queries, values, negated gate z, negated
        strength b, decay a; and its bias, which is the decay's shift."""
        heads = self.config.value_heads
        matrix = self._rows(len(norm), weights)
        matrix[self.config.channels : -heads].neg_()
        bias = matrix.new_zeros(len(matrix))
        bias[-heads:] = weights.vector("dt_bias", heads)
        return fold_norm(matrix, norm), bias

    def _rows(self, hidden_size: int, weights: WeightReader) -> Tensor:
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
        """x [N, hidden] of unit rows; returns [N, hidden]. Writes the log and columns."""
        if self.fused:
            mixed = self.fused.mix_delta(
                self.project(x), (plan.table, self.index), self.shape, self.fused_weights
            )
            return self.out(mixed)
        size, channels, heads = self.value_size, self.config.channels, self.config.value_heads
        projected = self.project(x).float()
        grown = torch.exp(projected.narrow(1, channels, size + 2 * heads))
        # softplus(a) is log1p(exp(a)), which stays finite for as long as exp(a) does
        faded = torch.minimum(grown.narrow(1, size + heads, heads), LARGEST)
        decay = faded.log1p_().mul_(self.rate)
        grown.add_(ONE)
        strength = grown.narrow(1, size, heads).reciprocal()
        inputs = map(plan.split, (projected.narrow(1, 0, channels), strength, decay))
        parts = [self._mix(*part) for part in zip(*inputs, plan.units, strict=True)]
        outputs = parts[0] if len(parts) == 1 else torch.cat(parts)
        gate = projected.narrow(1, channels, size) / grown.narrow(1, 0, size)
        normed = unit_rows(outputs, self.eps).reshape(gate.shape)
        return self.out(gate.mul_(normed).to(x.dtype))

    def _mix(self, mixed: Tensor, strength: Tensor, decay: Tensor, span: SpanPlan) -> Tensor:
        """Convolution and delta rule of one span; [n, key heads, values per key, value width]."""
        store = span.state.delta
        assert store is not None
        mixed = causal_conv(store.columns.extend(self.index, span.start, mixed), self.conv)
        inputs = mixed / one_plus_exp(mixed), decay, strength
        if len(span.chunks) == 1:
            return self._apply(span.chunks[0], store, *inputs)
        sizes = [chunk.rows.size * chunk.rows.chunks for chunk in span.chunks]
        parts = zip(span.chunks, *(part.split(sizes) for part in inputs), strict=True)
        return torch.cat([self._apply(chunk, store, *part) for chunk, *part in parts])

    def _apply(
        self, chunk: Chunk, store: DeltaState, mixed: Tensor, decay: Tensor, strength: Tensor
    ) -> Tensor:
        """Rows of one `Chunk`, of which `mixed` [n, channels] has keys, queries and values."""
        values = self._fill(chunk.rows, mixed)
        return apply_rows(chunk.rows, values, (decay, strength), chunk.slots(store, self.index))

    def _fill(self, rows: Rows, mixed: Tensor) -> Tensor:
        """Put normalised keys and queries of `mixed` [n, channels] where rows want them; returns
        values [n, key heads, values per key, value width]."""
        pairs = mixed.narrow(1, 0, 2 * self.key_size).view(rows.target.shape)
        torch.mul(pairs, inverse_length(pairs, L2_EPS), out=rows.target)
        values = mixed.narrow(1, 2 * self.key_size, self.value_size)
        return values.view(len(mixed), self.config.key_heads, -1, self.config.value_width)

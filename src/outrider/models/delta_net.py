"""Gated delta net layer (Yang et al. 2024, arXiv 2412.06464) as in Qwen3-Next and Qwen3.5."""

import torch
from torch import Tensor

from outrider.formats.tensors import WeightReader
from outrider.kernels.norm import rms_norm
from outrider.kernels.operations import DeltaMix, Kernels
from outrider.kernels.pass_plan import PassPlan
from outrider.models.config import DeltaConfig


class DeltaLayer:
    """Mixes rows of one recurrent layer, the `index`-th of its kind in its states."""

    def __init__(
        self,
        config: DeltaConfig,
        in_width: int,
        eps: float,
        index: int,
        weights: WeightReader,
        kernels: Kernels,
    ) -> None:
        self.config = config
        self.key_size = config.key_heads * config.key_width
        self.value_size = config.value_heads * config.value_width
        conv = weights.take("conv1d.weight", config.channels, 1, config.taps, dtype=torch.float32)
        norm = weights.take("norm.weight", config.value_width, dtype=torch.float32)
        # Queries stay unscaled: the norm after the outputs divides any factor out again, except
        # in its epsilon, which takes the factor's square (queries would carry key_width ** -0.5).
        self.mix = DeltaMix(
            index=index,
            key_heads=config.key_heads,
            heads=config.value_heads,
            key_width=config.key_width,
            width=config.value_width,
            conv=self._keys_first(conv[:, 0]).t().contiguous(),
            rate=-weights.take("A_log", config.value_heads, dtype=torch.float32).exp(),
            norm=rms_norm(norm, eps * config.key_width),
        )
        self.project = kernels.linear(*self._projection(in_width, weights))
        self.out = kernels.linear(weights.matrix("out_proj", in_width, self.value_size))
        self._mix_rows = kernels.delta(self.mix)

    def _projection(self, in_width: int, weights: WeightReader) -> tuple[Tensor, Tensor]:
        """One matrix with rows in the order keys, queries, values, gate z, strength b, decay a; and
        its bias, which is the decay's shift."""
        heads = self.config.value_heads
        matrix = self._rows(in_width, weights)
        bias = matrix.new_zeros(len(matrix))
        bias[-heads:] = weights.vector("dt_bias", heads)
        return matrix, bias

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
        """x [N, in_width] of normed rows; returns the same. Writes the log and columns."""
        return self.out(self._mix_rows(self.project(x), plan))

"""The shape of a target or draft model in our own words (torch-free)."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

LayerKind = Literal["attention", "delta"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeConfig:
    """Rotary embedding: base, rotated width, and the parameters of a scaling rule by its name.

    `divisors` are a rule's result, one for each of the width / 2 frequencies, where a file has it.
    """

    theta: float
    width: int
    kind: str = "default"
    parameters: Mapping[str, float] | None = None
    divisors: tuple[float, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionConfig:
    """Grouped-query attention; `windows` has one entry per attention layer, None for full."""

    heads: int
    kv_heads: int
    width: int
    rope: RopeConfig
    windows: tuple[int | None, ...]
    qkv_bias: bool = False
    out_bias: bool = False
    qk_norm: bool = False
    output_gate: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class DeltaConfig:
    """Gated delta net (Yang et al. 2024) after a short causal convolution."""

    key_heads: int
    value_heads: int
    key_width: int
    value_width: int
    taps: int
    interleaved: bool = False
    """Projections fused and interleaved per key head, as Qwen3-Next stores them."""

    @property
    def channels(self) -> int:
        return 2 * self.key_heads * self.key_width + self.value_heads * self.value_width


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """A decoder-only model: layer kinds in order and the shapes that they share."""

    architecture: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    layer_kinds: tuple[LayerKind, ...]
    norm_eps: float
    max_length: int
    attention: AttentionConfig
    delta: DeltaConfig | None = None
    mlp_bias: bool = False
    zero_centred_norm: bool = False
    tied_embeddings: bool = False
    mtp_layers: int = 0
    tensor_prefix: str = "model."
    skipped_prefixes: tuple[str, ...] = ()

    @property
    def num_layers(self) -> int:
        return len(self.layer_kinds)

    def index_in_kind(self, layer: int) -> int:
        """Number of layers of the same kind that come before `layer`."""
        return self.layer_kinds[:layer].count(self.layer_kinds[layer])

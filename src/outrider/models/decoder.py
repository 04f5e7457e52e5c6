"""A decoder-only model, or a range of its layers, as a function of rows and states.

The model holds weights only. Every sequence's memory comes in as an argument, so several sequences
share one pass and several windows of one sequence can be in flight.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from outrider.kernels.norm import RmsNorm
from outrider.kernels.operations import Kernels, Linear
from outrider.kernels.pass_plan import PassPlan, Span, plan_pass
from outrider.models.attention import AttentionLayer
from outrider.models.config import ModelConfig
from outrider.models.delta_net import DeltaLayer
from outrider.state.memory import gather
from outrider.state.sequence import SequenceState
from outrider.state.spec import AttentionSpec, DeltaSpec, Policy, StateSpec

EMBEDDING_TAP = -1


@dataclass(frozen=True, slots=True)
class Mlp:
    """Gated feed-forward network: down(silu(gate(x)) * up(x)), gate and up in one matrix."""

    gate_up: Linear
    down: Linear
    kernels: Kernels

    def __call__(self, x: Tensor) -> Tensor:
        return self.down(self.kernels.gated(self.gate_up(x)))


@dataclass(frozen=True, slots=True)
class DecoderLayer:
    """Pre-norm residual layer: mixer over the sequence, then the feed-forward network."""

    norm: RmsNorm
    mixer: AttentionLayer | DeltaLayer
    mlp_norm: RmsNorm
    mlp: Mlp
    kernels: Kernels

    def __call__(self, x: Tensor, plan: PassPlan) -> Tensor:
        mixed = self.mixer(self.kernels.norm(x, self.norm), plan)
        x, normed = self.kernels.add_norm(x, mixed, self.mlp_norm)
        return self.kernels.add(x, self.mlp(normed))


Layer = Callable[[Tensor, PassPlan], Tensor]
"""Rows of a pass and its plan to rows [N, hidden]; a `DecoderLayer`, or a drafter's own kind."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoder:
    """Layers `first` .. of a model; a whole model has embedding, all layers, norm and head.

    rope: cos and signed sin [2, max_length, width]. exact: a row has the same bits in any window.
    """

    config: ModelConfig
    first: int
    layers: tuple[Layer, ...]
    rope: Tensor
    dtype: torch.dtype
    kernels: Kernels
    exact: bool
    embedding: Tensor | None = None
    norm: RmsNorm | None = None
    head: Linear | None = None

    @property
    def device(self) -> torch.device:
        return self.rope.device

    @property
    def vocab_size(self) -> int:
        return self.config.vocab_size

    @property
    def max_length(self) -> int:
        return self.rope.shape[1]

    @property
    def is_tail(self) -> bool:
        return self.head is not None

    @property
    def taps(self) -> range:
        """The tail has one more than its layers: the state after the final norm."""
        first = self.first or EMBEDDING_TAP
        return range(first, self.first + len(self.layers) + self.is_tail)

    def new_state(self, policy: Policy, capacity: int) -> SequenceState:
        """An empty state for these layers."""
        spec = self.state_spec(policy, capacity)
        return SequenceState(spec, dtype=self.dtype, device=self.device)

    def state_spec(self, policy: Policy, capacity: int) -> StateSpec:
        kinds = self.config.layer_kinds[self.first : self.first + len(self.layers)]
        return state_spec(self.config, kinds, policy, capacity, self.dtype.itemsize)

    def embed(self, tokens: Tensor) -> Tensor:
        """Token ids int64 [N] to hidden states [N, hidden]."""
        assert self.embedding is not None
        return gather(self.embedding, tokens)

    def run(
        self,
        hidden: Tensor,
        spans: Sequence[Span],
        taps: Sequence[int] = (),
    ) -> tuple[Tensor, Tensor | None]:
        """Run rows [N, hidden] of `spans`, in order, through these layers; advance the states.

        Returns the hidden states [N, hidden] after the last layer and, where `taps` names layers
        (see `records.Needs`), their states side by side [N, taps * hidden].
        """
        plan = plan_pass(spans, self.rope)
        kept = {EMBEDDING_TAP: hidden} if EMBEDDING_TAP in taps else {}
        for number, layer in enumerate(self.layers, self.first):
            hidden = layer(hidden, plan)
            if number in taps:
                kept[number] = hidden
        if self.norm is not None and self.config.num_layers in taps:
            kept[self.config.num_layers] = self.norm(hidden)
        return hidden, torch.cat([kept[tap] for tap in taps], -1) if taps else None

    def logits(self, hidden: Tensor) -> Tensor:
        """Hidden states [R, hidden] after the last layer to fp32 logits [R, vocab]."""
        assert self.norm is not None
        assert self.head is not None
        return self.head(self.norm(hidden)).float()


def state_spec(
    config: ModelConfig, kinds: Sequence[str], policy: Policy, capacity: int, element_bytes: int
) -> StateSpec:
    """The state that layers of `kinds` need; torch-free arithmetic on the config."""
    attention, delta = config.attention, config.delta
    num_attention, num_delta = kinds.count("attention"), kinds.count("delta")
    return StateSpec(
        attention=AttentionSpec(
            layers=num_attention,
            heads=attention.kv_heads,
            width=attention.width,
            element_bytes=element_bytes,
        )
        if num_attention
        else None,
        delta=DeltaSpec(
            layers=num_delta,
            key_heads=delta.key_heads,
            value_heads=delta.value_heads,
            key_width=delta.key_width,
            value_width=delta.value_width,
            channels=delta.channels,
            taps=delta.taps,
        )
        if delta and num_delta
        else None,
        policy=policy,
        capacity=capacity,
    )

"""A model as stages and drafters see it: passes over rows of sequences, and their logits."""

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from outrider.kernels.pass_plan import Span
from outrider.state.base import State
from outrider.state.spec import Policy


class Model(Protocol):
    """A range of layers, or a whole model; see `Decoder`, and `LlamaModel` for a library's."""

    @property
    def vocab_size(self) -> int: ...
    @property
    def max_length(self) -> int: ...
    @property
    def exact(self) -> bool:
        """True if a row has the same bits whichever rows are beside it."""

    @property
    def device(self) -> torch.device: ...
    @property
    def is_tail(self) -> bool:
        """True if it ends in logits."""

    @property
    def taps(self) -> range:
        """Numbers of the hidden states that it can hand over."""

    def new_state(self, policy: Policy, capacity: int) -> State: ...
    def embed(self, tokens: Tensor) -> Tensor:
        """First hidden states of the rows of token ids int64 [N]."""

    def run(
        self,
        hidden: Tensor,
        spans: Sequence[Span],
        taps: Sequence[int] = (),
    ) -> tuple[Tensor, Tensor | None]:
        """Run rows [N, ...] of `spans`, in order, and advance their states; returns what later
        layers or `logits` start from, row by row (a whole model may leave out rows that are not
        wanted), and the taps."""

    def logits(self, hidden: Tensor) -> Tensor:
        """Of rows that `run` returned last, fp32 [R, vocab]; may be a view until the next pass."""

"""A GGUF file that llama.cpp runs, as a function of rows and states like our own decoder."""

from collections.abc import Sequence

import torch
from torch import Tensor

from outrider.kernels.pass_plan import Span
from outrider.llamacpp.batch import Piece
from outrider.llamacpp.llama_context import LlamaContext
from outrider.llamacpp.llama_state import LlamaState
from outrider.state.spec import Policy


class LlamaModel:
    """A `Model` whose hidden states after the last layer are logits, of the wanted rows alone."""

    exact = False
    """Its kernels depend on the number of rows."""
    device = torch.device("cpu")
    is_tail = True
    taps = range(0)

    def __init__(self, context: LlamaContext) -> None:
        self.context = context

    @property
    def vocab_size(self) -> int:
        return self.context.weights.vocab_size

    @property
    def max_length(self) -> int:
        return self.context.length

    def new_state(self, policy: Policy, capacity: int) -> LlamaState:
        """An empty sequence; the context was made for its `capacity`, whatever that is here."""
        kept = 0 if policy == "checkpoint" else self.context.snapshots
        return LlamaState(self.context, kept)

    def embed(self, tokens: Tensor) -> Tensor:
        """Token ids int64 [N] as they are: the library looks them up."""
        return tokens

    def run(
        self,
        hidden: Tensor,
        spans: Sequence[Span],
        taps: Sequence[int] = (),
    ) -> tuple[Tensor, None]:
        """Run token ids [N] of `spans` in one pass; advance the states.

        Returns logits at once, of the rows that are wanted, in order.
        """
        return self.forward(hidden.tolist(), spans), None

    def forward(self, tokens: Sequence[int], spans: Sequence[Span]) -> Tensor:
        """The same of plain numbers: fp32 [wanted rows, vocab], which the next pass overwrites."""
        logits = self.context.run(tokens, [_begin(span) for span in spans])
        for span in spans:
            _state(span).advance(span.rows, revocable=span.revocable)
        return logits

    def logits(self, hidden: Tensor) -> Tensor:
        """The result of `run`, as it is."""
        return hidden


def _state(span: Span) -> LlamaState:
    assert isinstance(span.state, LlamaState)
    return span.state


def _begin(span: Span) -> Piece:
    wanted = span.rows if span.wanted is None else span.wanted
    return _state(span).begin(span.rows, wanted, revocable=span.revocable)

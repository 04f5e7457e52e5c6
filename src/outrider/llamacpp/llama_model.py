"""A GGUF file that llama.cpp runs, as a function of rows and states like our own decoder."""

from collections.abc import Sequence

import torch
from torch import Tensor

from outrider.kernels.pass_plan import Span
from outrider.llamacpp.llama_context import BatchPiece, LlamaContext
from outrider.llamacpp.llama_state import LlamaState
from outrider.stage.layer_range import Due
from outrider.stage.local import LocalStage
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


def _begin(span: Span) -> BatchPiece:
    wanted = span.rows if span.wanted is None else span.wanted
    return _state(span).begin(span.rows, wanted, revocable=span.revocable)


class LlamaStage(LocalStage):
    """A `LocalStage` that hands token ids over as they are, takes the logits that come back, and
    picks greedily without torch: after a pass each call of it is a hundredth of a small model's
    step, or several."""

    def __init__(self, model: LlamaModel, policy: Policy, *, in_step: bool = True) -> None:
        super().__init__(model, policy, model.context.snapshots, in_step=in_step)
        self._model = model

    def run_pass(self, due: list[Due]) -> tuple[Tensor, None]:
        tokens = [token for one in due for token in one.frame.window.tokens]
        return self._model.forward(tokens, [one.span for one in due]), None

    def _logits(self, due: list[Due], hidden: Tensor) -> Tensor:
        return hidden

    def _likeliest(self, logits: Tensor) -> list[int] | None:
        return self._model.context.argmax(logits)

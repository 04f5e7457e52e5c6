"""A GGUF file that llama.cpp runs, as a function of rows and states like our own decoder."""

from collections.abc import Sequence

import torch
from torch import Tensor

from outrider.models.llamacpp.batch import Piece
from outrider.models.llamacpp.context import LlamaContext
from outrider.models.llamacpp.state import LlamaState
from outrider.models.pass_plan import Span
from outrider.state.seats import Seats
from outrider.state.spec import Policy


class LlamaModel:
    """A `Model`: what stands for a hidden state [N, 1] is the number of its row of logits."""

    exact = False
    """Its kernels depend on the number of rows."""
    device = torch.device("cpu")
    is_tail = True
    taps = range(0)

    def __init__(self, context: LlamaContext) -> None:
        self.context = context
        self._logits = torch.empty(0, self.vocab_size)

    @property
    def rewinds(self) -> bool:
        """A pass leaves no snapshot of the state before its first row."""
        return not self.context.weights.is_recurrent

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

    def new_seats(self, policy: Policy, capacity: int) -> Seats | None:
        """None: the library places sequences itself."""
        return None

    def embed(self, tokens: Tensor) -> Tensor:
        """Token ids int64 [N] as they are: the library looks them up."""
        return tokens

    def run(
        self,
        hidden: Tensor,
        spans: Sequence[Span],
        taps: Sequence[int] = (),
        seats: Seats | None = None,
    ) -> tuple[Tensor, None]:
        """Run token ids [N] of `spans` in one pass; advance the states.

        Returns, for each row, where `logits` finds what it says, -1 where nothing was wanted.
        """
        self._logits = self.forward(hidden.tolist(), spans)
        wanted = [span.rows if span.wanted is None else span.wanted for span in spans]
        numbers, first = [], 0
        for span, count in zip(spans, wanted, strict=True):
            numbers += [-1] * (span.rows - count)
            numbers += range(first, first + count)
            first += count
        return torch.tensor(numbers), None

    def forward(self, tokens: Sequence[int], spans: Sequence[Span]) -> Tensor:
        """The same without tensors of numbers: fp32 logits [wanted rows, vocab], in order."""
        logits = self.context.run(tokens, [_begin(span) for span in spans])
        for span in spans:
            _state(span).advance(span.rows, revocable=span.revocable)
        return logits

    def logits(self, hidden: Tensor) -> Tensor:
        """Rows [R] of the newest pass to fp32 logits [R, vocab], which the next one overwrites."""
        if not len(hidden):
            return self._logits[:0]
        first, last = int(hidden[0]), int(hidden[-1])
        if last - first + 1 == len(hidden):
            return self._logits[first : last + 1]
        return self._logits[hidden]


def _state(span: Span) -> LlamaState:
    assert isinstance(span.state, LlamaState)
    return span.state


def _begin(span: Span) -> Piece:
    wanted = span.rows if span.wanted is None else span.wanted
    return _state(span).begin(span.rows, wanted, revocable=span.revocable)

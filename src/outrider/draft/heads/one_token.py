"""One-token heads on a target's hidden states: what MTP and EAGLE-3 have in common.

A head reads what the target made of position i, its *feature*, with the token at i + 1, and says
what may follow at i + 2. Its own output stands for the feature of i + 1, so it can go on by itself.
The pair (feature i, token i + 1) sits at position i of the head's own state, which is an argument
as everywhere: a head holds weights only.
"""

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from outrider.models.decoder import Decoder
from outrider.models.pass_plan import Span
from outrider.state.sequence import SequenceState
from outrider.state.spec import StateSpec

Join = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """A head for one target.

    taps: what it reads of the target, as `records.Needs` numbers it. layers: its layers, with
    the embedding, its own norm and the head matrix. read: taps [n, width] to features [n, hidden].
    join: embeddings and features [n, hidden] to the rows of its first layer. feeds_normed: whether
    the next feature is the normed output. ids: target ids int64 [rows of the head matrix], None
    where they are the same.
    """

    name: str
    taps: tuple[int, ...]
    layers: Decoder
    read: Callable[[Tensor], Tensor]
    join: Join
    feeds_normed: bool
    vocab_size: int
    ids: Tensor | None = None

    @property
    def state_spec(self) -> StateSpec:
        """The state it needs for a sequence; attention alone, so any row can be taken back."""
        return self.layers.state_spec("log", 0)

    def new_state(self) -> SequenceState:
        """An empty state."""
        return self.layers.new_state("log", 0)

    def run(self, features: Tensor, tokens: Tensor, state: SequenceState) -> Tensor:
        """Consume features [n, hidden], each with its next token [n]; outputs [n, hidden]."""
        rows = self.join(self.layers.embed(tokens), features)
        return self.layers.run(rows, [Span(state, len(tokens))])[0]

    def conclude(self, output: Tensor) -> tuple[Tensor, Tensor]:
        """Outputs [n, hidden] to fp32 logits [n, vocab] and the features that come next.

        Tokens outside a reduced vocabulary have the logit -inf.
        """
        assert self.layers.norm is not None
        assert self.layers.head is not None
        normed = self.layers.norm(output)
        logits = self.layers.head(normed).float()
        if self.ids is not None:
            spread = logits.new_full((len(logits), self.vocab_size), float("-inf"))
            logits = spread.index_copy_(1, self.ids, logits)
        return logits, normed if self.feeds_normed else output

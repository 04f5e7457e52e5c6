"""One-token heads on a target's hidden states, and drafting with one: MTP, and EAGLE-3 as a chain.

A head reads what the target made of position i, its *feature*, with the token at i + 1, and says
what may follow at i + 2. Its own output serves as the feature of i + 1, so it can go on by itself.
The pair (feature i, token i + 1) sits at position i of the head's own state.

The state holds true pairs only, features that the target made. What a head drafts on its own
features is dropped after every proposal, accepted or not: those positions are run again when their
true features have come.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from outrider.draft.base import DrafterSnapshot
from outrider.draft.tap_drafter import TapDrafter
from outrider.draft.token_choice import Chooser, DraftToken, as_draft, spread_logits
from outrider.kernels.pass_plan import Span
from outrider.models.decoder import Decoder
from outrider.records import Context, Draft
from outrider.state.sequence import SequenceState
from outrider.state.spec import StateSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """A head for one target; it holds weights only.

    taps: what it reads of the target, as `records.Needs` numbers it. layers: its layers, with
    the embedding, its own norm and the head matrix. read: taps [n, width] to features [n, hidden].
    join: embeddings and features [n, hidden] to the rows of its first layer. feeds_normed: True if
    the next feature is the normed output. ids: target ids int64 [rows of the head matrix], None
    where they are the same.
    """

    name: str
    taps: tuple[int, ...]
    layers: Decoder
    read: Callable[[Tensor], Tensor]
    join: Callable[[Tensor, Tensor], Tensor]
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

    def predict(self, output: Tensor) -> tuple[Tensor, Tensor]:
        """Outputs [n, hidden] to fp32 logits [n, vocab] and the features that come next.

        Tokens outside a reduced vocabulary have the logit -inf.
        """
        assert self.layers.norm is not None
        assert self.layers.head is not None
        normed = self.layers.norm(output)
        logits = self.layers.head(normed).float()
        logits = spread_logits(logits, self.ids, self.vocab_size)
        return logits, normed if self.feeds_normed else output


class HeadDrafter(TapDrafter):
    """Drafts with a head for one session."""

    def __init__(self, head: Head, chooser: Chooser) -> None:
        super().__init__(head.name, head.taps, chooser)
        self._head = head
        self._state = head.new_state()
        self._newest: Tensor | None = None

    @torch.inference_mode()
    def propose(self, context: Context, budget: int) -> Draft | None:
        """Return up to `budget` tokens, None if the first is too unlikely.

        Takes one pass over the pairs that came since the last proposal, and one per further token.
        """
        self.backlog.check(self.name, context)
        rows = self._head.layers.max_length - self.backlog.end + 1
        self._catch_up()
        return self._draft(len(context), min(budget, rows))

    def snapshot(self) -> DrafterSnapshot | None:
        """The state, and the features that it has not consumed."""
        size = self._state.nbytes() + self.backlog.nbytes()
        return DrafterSnapshot((self._state.copy(), self.backlog.copy(), self._newest), size)

    def restore(self, snapshot: DrafterSnapshot) -> None:
        """Go on from there."""
        assert isinstance(snapshot.value, tuple)
        state, backlog, self._newest = snapshot.value
        self._state, self.backlog = state.copy(), backlog.copy()

    def close(self) -> None:
        """Free the state."""
        self._state = self._head.new_state()
        self._newest = None

    def _consume(self, features: Tensor, tokens: Tensor) -> None:
        """Run over true pairs; the last output stays."""
        self._state.settle(self.backlog.start)  # of a pass that failed, nothing stays
        outputs = self._head.run(self._head.read(features), tokens, self._state)
        self._newest = outputs[-1:].clone()

    def _draft(self, position: int, count: int) -> Draft | None:
        """Up to `count` tokens from `position` on, each by a pass over the one before it."""
        assert self._newest is not None, "the first commit came before the first proposal"
        choices: list[DraftToken] = []
        output = self._newest
        try:
            while len(choices) < count:
                logits, feature = self._head.predict(output)
                choice = self._chooser.choose(logits, position + len(choices))
                if choice is None:
                    break
                choices.append(choice)
                if len(choices) < count:
                    token = torch.tensor([choice.token], device=output.device)
                    output = self._head.run(feature, token, self._state)
        finally:
            self._state.settle(self.backlog.end)
        return as_draft(choices, self.name)

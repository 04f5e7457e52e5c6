"""A drafter that knows the text, so that drafts are as often right as a measurement wants."""

from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass, field

from outrider.draft.base import Drafter
from outrider.records import Context, Draft, Needs

Wrong = Callable[[int, int], Container[int]]
"""From a draft's place in the text and its length to the offsets in it that are wrong."""


def _nothing() -> None: ...


@dataclass(slots=True)
class KnownTextDrafter(Drafter):
    """Drafts what follows in `text`, the prompt included; up to `most` tokens where given.

    `before` is called ahead of each draft, for its cost alone.
    """

    text: Sequence[int]
    vocab: int
    wrong: Wrong = lambda *_: ()
    most: int | None = None
    before: Callable[[], object] = _nothing
    name: str = "known"
    needs: Needs = field(default_factory=Needs)

    def propose(self, context: Context, budget: int) -> Draft | None:
        self.before()
        place = len(context)
        count = budget if self.most is None else min(budget, self.most)
        tokens = self.text[place : place + count]
        wrong = self.wrong(place, len(tokens))
        drafts = ((token + (at in wrong)) % self.vocab for at, token in enumerate(tokens))
        return Draft(tokens=tuple(drafts), source=self.name) if tokens else None

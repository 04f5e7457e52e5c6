"""Drafters walked over text that is known already: what each budget costs and would have given.

Greedy decoding gives the same text whatever is drafted, so a drafter can be judged against the
plain output, but one that reads the target's hidden states needs them read once for each passage.
Only proposals and their upkeep are timed, and those that are follow a pass of the target, as in a
real round: it leaves little of the drafter's weights in the processor's caches.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from statistics import fmean, median

from torch import Tensor

from outrider.costs.curve import MeasuredCurve
from outrider.costs.prediction import Rounds
from outrider.costs.timing import Clock
from outrider.draft.base import Drafter
from outrider.records import Commit, Context, Draft


@dataclass(frozen=True, slots=True, kw_only=True)
class Passage:
    """A prompt with its greedy continuation."""

    prompt: tuple[int, ...]
    output: tuple[int, ...]


@dataclass(slots=True, kw_only=True)
class Walk:
    """Results of one budget so far: rounds, and the ms of each timed proposal by drafts found, the
    first ones of a prompt apart; `paces` are the passes before them over their usual ms."""

    emitted: int = 0
    first: list[float] = field(default_factory=list)
    paces: list[float] = field(default_factory=list)
    by_drafts: Counter[int] = field(default_factory=Counter)
    by_kept: Counter[int] = field(default_factory=Counter)
    ms: dict[int, list[float]] = field(default_factory=dict)

    @property
    def rounds(self) -> Rounds:
        return Rounds(
            emitted=self.emitted,
            prompts=len(self.first),
            by_drafts=dict(self.by_drafts),
            by_kept=dict(self.by_kept),
        )

    def count(self, drafts: int, kept: int) -> None:
        """Add a round that had `drafts` drafts, `kept` of them right."""
        self.emitted += kept + 1
        self.by_drafts[drafts] += 1
        if kept < drafts:
            self.by_kept[kept + 1] += 1


ReadTaps = Callable[[Sequence[int], Sequence[int]], Tensor]
"""From tokens and the layers to tap to the hidden states of all tokens [tokens, width]."""

RunPass = Callable[[int], float]
"""Runs a pass of that many rows of the target; returns its ms over what it usually takes."""

Beside = Callable[[Passage], AbstractContextManager[RunPass]]
"""For a passage, what runs passes there."""

FIRST, THEN_EVERY = 4, 4
"""Rounds of a walk that are timed; a pass before each of the others would buy little."""


def walk(
    make: Callable[[], Drafter],
    passages: Sequence[Passage],
    budgets: Sequence[int],
    clock: Clock,
    most_rounds: int,
    read: ReadTaps,
    beside: Beside,
) -> dict[int, Walk]:
    """Walk a drafter per budget over each passage, the budgets in turn.

    A walk ends with the passage or after `most_rounds` rounds of it.
    """
    walks = {budget: Walk() for budget in budgets}
    for passage in passages:
        walkers = _walkers(make, passage, budgets, read)
        with beside(passage) as run_pass:
            for number in range(most_rounds):
                timed = number < FIRST or number % THEN_EVERY == 0
                for walker in walkers:
                    walker.advance(walks[walker.budget], clock, run_pass if timed else None)
        for walker in walkers:
            walker.drafter.close()
    return walks


@contextmanager
def proposing(
    make: Callable[[], Drafter], passage: Passage, budget: int, read: ReadTaps
) -> Iterator[Callable[[], object]]:
    """Return a function that re-runs the drafter after a passage's prompt, up to `budget`
    tokens."""
    (walker,) = _walkers(make, passage, [budget], read)
    yield walker.propose
    walker.drafter.close()


def _walkers(
    make: Callable[[], Drafter], passage: Passage, budgets: Sequence[int], read: ReadTaps
) -> list["_Walker"]:
    drafters = [make() for _ in budgets]
    taps = drafters[0].needs.taps if drafters else ()
    features = read([*passage.prompt, *passage.output], taps) if taps else None
    pairs = zip(drafters, budgets, strict=True)
    return [_Walker(drafter, passage, budget, features) for drafter, budget in pairs]


class _Walker:
    """One drafter on its way through a passage."""

    def __init__(
        self, drafter: Drafter, passage: Passage, budget: int, features: Tensor | None
    ) -> None:
        self.drafter = drafter
        self.budget = budget
        self._first = True
        self._text = [*passage.prompt, *passage.output]
        self._features = features
        self._tokens = self._text[: len(passage.prompt) + 1]
        rows = self._rows(0, len(passage.prompt))
        drafter.observe(Commit(position=0, tokens=tuple(self._tokens), features=rows))

    def _rows(self, first: int, end: int) -> Tensor | None:
        """The hidden states that became final with the tokens after them."""
        return None if self._features is None else self._features[first:end]

    def propose(self) -> Draft | None:
        """Draft within the budget and the text."""
        wanted = min(self.budget, len(self._text) - len(self._tokens) - 1)
        return self.drafter.propose(Context(self._tokens), wanted) if wanted > 0 else None

    def advance(self, into: Walk, clock: Clock, run_pass: RunPass | None) -> None:
        """One round: propose, judge by the text, commit; timed after `run_pass` where given."""
        place = len(self._tokens)
        if place >= len(self._text):
            return
        if run_pass:
            into.paces.append(run_pass(self.budget + 1))
        began = clock()
        draft = self.propose()
        proposed = clock() - began
        drafts = draft.tokens if draft else ()
        kept = _agreeing(drafts, self._text[place:])
        commit = Commit(
            position=place,
            tokens=tuple(self._text[place : place + kept + 1]),
            accepted=kept,
            source=draft.source if draft else None,
            features=self._rows(place - 1, place + kept),
        )
        self._tokens.extend(commit.tokens)
        began = clock()
        self.drafter.observe(commit)
        ms = (proposed + clock() - began) * 1e3
        into.count(len(drafts), kept)
        if run_pass:
            times = into.first if self._first else into.ms.setdefault(len(drafts), [])
            times.append(ms)
        self._first = False


def _agreeing(drafts: Sequence[int], text: Sequence[int]) -> int:
    pairs = enumerate(zip(drafts, text, strict=False))
    return next((place for place, (draft, true) in pairs if draft != true), len(drafts))


def draft_costs(walks: Sequence[Walk]) -> tuple[MeasuredCurve, float]:
    """Cost of a proposal by the drafts that it found, and what the first of a prompt takes
    beyond that, in ms at the usual pace of the passes beside it.

    Means of the middle half: upkeep is uneven by nature, so a median would miss part of it, and the
    ends belong to the machine.
    """
    found: dict[int, list[float]] = {}
    for one in walks:
        for drafts, times in one.ms.items():
            found.setdefault(drafts, []).extend(times)
    paces = [pace for one in walks for pace in one.paces]
    pace = _middle(paces) if paces else 1.0
    usual = MeasuredCurve({drafts: _middle(times) / pace for drafts, times in found.items()})
    beyond = [
        max(fmean(one.first) / pace - usual.at(one.rounds.mean_drafts), 0.0)
        for one in walks
        if one.first
    ]
    return usual, median(beyond) if beyond else 0.0


def _middle(times: Sequence[float]) -> float:
    edge = len(times) // 4
    return fmean(sorted(times)[edge : len(times) - edge])

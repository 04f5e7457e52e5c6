"""Work of a round around its pass, by drafts: whole rounds of a drafter that knows the text.

The engine runs them as it runs real ones, for an output that is known, so drafts are as often right
as is wanted. The real drafter proposes too, in vain: it leaves nothing of the engine in the
processor's caches. What passes, rollbacks and proposals do not account for is the host's.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from statistics import median

from outrider.bench.calibration import Drafting
from outrider.bench.costs import Curve
from outrider.bench.leg import GREEDY, PLAIN, SPECULATIVE, Clock, Leg, follow
from outrider.bench.replay import Passage
from outrider.draft.base import Drafter
from outrider.engine.budget import FixedBudget
from outrider.engine.engine import OFF, Engine
from outrider.records import Context, Draft, Needs

TOKENS = 32
"""Decoded in a leg at most."""
MANY = 8
"""Most drafts of rounds that are measured: the host's work grows evenly with them."""


def beyond_steps(
    engine: Engine,
    passages: Sequence[Passage],
    needs: Needs,
    clock: Clock,
    repeats: int,
    drafting: Drafting,
) -> Curve:
    """Time of the host in a round beyond a plain step, by drafts, in plain steps.

    `needs` are those of the drafter, and `drafting` gives what has it propose.
    """
    found: dict[int, list[float]] = {}
    counts = sorted({1, min(MANY, engine.speculation.windows.width - 1)})
    for passage in passages:
        with drafting(passage) as draft:
            for _ in range(repeats):
                plain = _leg(engine, passage, None, clock)
                silent, *legs = (
                    _leg(engine, passage, Knowing(passage, drafts, draft, needs=needs), clock)
                    for drafts in (0, *counts)
                )
                step = plain.ms / plain.timed
                start = _host(silent) - _host(plain)
                found.setdefault(0, []).append(start / step)
                for drafts, leg in zip(counts, legs, strict=True):
                    more = (_host(leg) - _host(silent)) * _scale(leg, drafts)
                    found.setdefault(drafts, []).append((start + more) / step)
    return Curve({drafts: max(median(mores), 0.0) for drafts, mores in found.items()})


def _leg(engine: Engine, passage: Passage, known: "Knowing | None", clock: Clock) -> Leg:
    """The passage again, in rounds or, where nothing drafts, in plain steps."""
    request = engine.prepare(
        passage.prompt,
        sampling=GREEDY,
        max_tokens=min(len(passage.output), TOKENS),
        ignore_eos=True,
        method=None if known else OFF,
    )
    if known:
        speculation = replace(
            request.speculation,
            drafter=lambda *_: known,
            budget=lambda: FixedBudget(max(known.most, 1)),
        )
        request = replace(request, speculation=speculation)
    return follow(engine.begin(request), SPECULATIVE if known else PLAIN, clock)


def _host(leg: Leg) -> float:
    """Milliseconds of a round that are no other part's."""
    assert leg.counters is not None
    spent = leg.counters.draft_ms + leg.counters.verify_ms + leg.counters.rollback_ms
    return (leg.ms - spent) / max(leg.counters.windows_judged, 1)


def _scale(leg: Leg, drafts: int) -> float:
    """Ratio of what rounds of so many drafts would have had of them to what these had: an output
    ends."""
    assert leg.counters is not None
    return drafts * leg.counters.windows_judged / max(leg.counters.verified, 1)


@dataclass(slots=True)
class Knowing(Drafter):
    """A drafter that reads up to `most` tokens on in a passage, after a `draft` in vain; of them
    one more is right each time, or none."""

    passage: Passage
    most: int
    draft: Callable[[], object]
    needs: Needs = field(kw_only=True)
    right: int = 0
    name: str = "known"

    def propose(self, context: Context, budget: int) -> Draft | None:
        self.draft()
        place = len(context) - len(self.passage.prompt)
        tokens = list(self.passage.output[place : place + min(budget, self.most)])
        self.right = (self.right + 1) % (budget + 1)
        if self.right < len(tokens):
            tokens[self.right] = int(not tokens[self.right])
        return Draft(tokens=tuple(tokens), source=self.name) if tokens else None

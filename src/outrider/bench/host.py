"""Work of a round around its pass, by drafts: whole rounds of a drafter that knows the text.

The engine runs them as it runs real ones, for an output that is known, so drafts are as often right
as is wanted. The real drafter proposes too, in vain: it leaves nothing of the engine in the
processor's caches. What passes, rollbacks and proposals do not account for is the host's.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import count
from statistics import median

from outrider.bench.leg import PLAIN, SPECULATIVE, Leg, follow
from outrider.costs.curve import MeasuredCurve
from outrider.costs.known_text import KnownTextDrafter
from outrider.costs.replay import Passage
from outrider.costs.rounds import Drafting
from outrider.costs.timing import GREEDY, Clock
from outrider.engine.draft_budget import FixedBudget
from outrider.engine.facade import OFF, EngineFacade
from outrider.records import Needs

TOKENS = 32
"""Decoded in a leg at most."""
MANY = 8
"""Most drafts of rounds that are measured: the host's work grows evenly with them."""


def beyond_steps(
    engine: EngineFacade,
    passages: Sequence[Passage],
    needs: Needs,
    clock: Clock,
    repeats: int,
    drafting: Drafting,
) -> MeasuredCurve:
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
                    _leg(engine, passage, _known(engine, passage, drafts, draft, needs), clock)
                    for drafts in (0, *counts)
                )
                step = plain.ms / plain.timed
                start = _host(silent) - _host(plain)
                found.setdefault(0, []).append(start / step)
                for drafts, leg in zip(counts, legs, strict=True):
                    more = (_host(leg) - _host(silent)) * _scale(leg, drafts)
                    found.setdefault(drafts, []).append((start + more) / step)
    return MeasuredCurve({drafts: max(median(mores), 0.0) for drafts, mores in found.items()})


def _leg(
    engine: EngineFacade, passage: Passage, known: KnownTextDrafter | None, clock: Clock
) -> Leg:
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
            budget=lambda: FixedBudget(max(known.most or 0, 1)),
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


def _known(
    engine: EngineFacade, passage: Passage, most: int, draft: Callable[[], object], needs: Needs
) -> KnownTextDrafter:
    """A drafter of up to `most` tokens, after a `draft` in vain; of them one more is right each
    time, or none."""
    rounds = count(1)
    return KnownTextDrafter(
        [*passage.prompt, *passage.output],
        engine.stage.vocab_size,
        wrong=lambda _, drafts: {next(rounds) % (drafts + 1)},
        most=most,
        before=draft,
        needs=needs,
    )

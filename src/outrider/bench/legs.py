"""Legs: one decoding of one prompt, timed from its first token to its last.

Plain, speculative and plain legs come in turn for every prompt, then the peers', over and over.
Legs of a drafter that knows the text show what the host does in a round beyond its pass, by drafts:
the engine runs them as it runs real ones, so drafts are as often right as is wanted. The real
drafter proposes too, in vain: it leaves nothing of the engine in the processor's caches. What
passes, rollbacks and proposals do not account for is the host's.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from statistics import median
from typing import Protocol

from outrider.bench.stats import Timed
from outrider.costs.curve import MeasuredCurve
from outrider.costs.known_text import KnownTextDrafter
from outrider.costs.replay import Passage
from outrider.costs.rounds import Drafting
from outrider.costs.timing import GREEDY, Clock
from outrider.engine.draft_budget import FixedBudget
from outrider.engine.facade import OFF, EngineFacade, Generation
from outrider.records import Needs
from outrider.telemetry.counters import Counters

PLAIN = "plain"
SPECULATIVE = "speculative"
UNKNOWN = -1
"""Stands for a token that a server counted and did not name."""


class Refusal(Exception):
    """A peer cannot do what was asked; the message says why, in its own words."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Leg:
    """The result of one decoding.

    The prompt is not timed: the clock starts when the first tokens arrive, and `ms` is for the
    tokens after them. `marks[i]` is (tokens so far, ms since then) after each arrival.
    """

    kind: str
    tokens: tuple[int, ...]
    marks: tuple[tuple[int, float], ...]
    counters: Counters | None = None

    @property
    def timed(self) -> int:
        """Tokens that `ms` covers."""
        return len(self.tokens) - self.marks[0][0]

    @property
    def ms(self) -> float:
        """Milliseconds from the first arrival to the last."""
        return self.marks[-1][1]


class Peer(Protocol):
    """Decodes greedily; raises Refusal where it cannot."""

    @property
    def name(self) -> str: ...
    def run(self, prompt: Sequence[int], count: int, clock: Clock) -> Leg: ...


def run_leg(
    engine: EngineFacade, prompt: Sequence[int], count: int, kind: str, clock: Clock
) -> Leg:
    """Decode `count` tokens greedily, plainly or as the engine was told to speculate."""
    generation = engine.generate(
        prompt,
        sampling=GREEDY,
        max_tokens=count,
        ignore_eos=True,
        method="off" if kind == PLAIN else None,
    )
    return follow(generation, kind, clock)


def follow(generation: Generation, kind: str, clock: Clock) -> Leg:
    """Run a request to its end, timing its pieces."""
    tokens: list[int] = []
    arrivals: list[tuple[int, float]] = []
    for piece in generation:
        tokens.extend(piece.tokens)
        arrivals.append((len(tokens), clock()))
    return Leg(
        kind=kind,
        tokens=tuple(tokens),
        marks=since_first(arrivals),
        counters=generation.counters,
    )


def since_first(arrivals: Sequence[tuple[int, float]]) -> tuple[tuple[int, float], ...]:
    """(tokens, seconds) of a clock as (tokens, ms since the first arrival)."""
    began = arrivals[0][1]
    return tuple((count, (now - began) * 1e3) for count, now in arrivals)


def natural_length(engine: EngineFacade, prompt: Sequence[int], limit: int) -> int:
    """Tokens until the model ends by itself, the end token included; at most `limit`.

    Text after an end token is no text that anyone asked for, and often repeats itself.
    """
    generation = engine.generate(prompt, sampling=GREEDY, max_tokens=limit, method="off")
    return sum(len(piece.tokens) for piece in generation)


LEAST_TOKENS = 8
"""Outputs that end by themselves before this are left out: they are too short to time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tools:
    """The world that the run needs, so that tests can script it.

    `progress` is told a phase, the steps done and their number.
    """

    clock: Clock
    sleep: Callable[[float], None]
    progress: Callable[[str, int, int], None]


@dataclass(slots=True, kw_only=True)
class Case:
    """A prompt with everything that was run on it; `count` tokens are decoded in every leg.

    `brackets[r]` are the legs of repeat r in order: plain, speculative, plain.
    """

    id: str
    category: str
    prompt: tuple[int, ...]
    count: int
    check: tuple[Leg, Leg] | None = None
    brackets: list[tuple[Leg, Leg, Leg]] = field(default_factory=list)
    peers: dict[str, list[Leg]] = field(default_factory=dict)

    @property
    def timed(self) -> Timed:
        """Times per repeat."""
        return Timed(
            tokens=self.brackets[0][1].timed,
            plain=tuple((before.ms, after.ms) for before, _, after in self.brackets),
            speculative=tuple(middle.ms for _, middle, _ in self.brackets),
        )

    @property
    def legs(self) -> Iterator[Leg]:
        """Every own leg, those of the check included."""
        yield from self.check or ()
        for bracket in self.brackets:
            yield from bracket


def cut_to_natural(engine: EngineFacade, cases: Sequence[Case], tools: Tools) -> list[Case]:
    """Let no case run past the model's own end; leave out those that end at once."""
    for done, case in enumerate(cases):
        tools.progress("finding where outputs end", done, len(cases))
        case.count = natural_length(engine, case.prompt, case.count)
    return [case for case in cases if case.count >= LEAST_TOKENS]


def check_outputs(engine: EngineFacade, cases: Sequence[Case], tools: Tools) -> None:
    """One plain and one speculative leg per case: warm-up, and what the gates look at first."""
    for done, case in enumerate(cases):
        tools.progress("checking outputs", done, len(cases))
        plain, speculative = (
            run_leg(engine, case.prompt, case.count, kind, tools.clock)
            for kind in (PLAIN, SPECULATIVE)
        )
        case.check = (plain, speculative)


def run_brackets(
    engine: EngineFacade,
    cases: Sequence[Case],
    peers: Sequence[Peer],
    tools: Tools,
    *,
    repeats: int,
    pause: float,
) -> dict[str, str]:
    """Run all timed legs; returns why each peer that refused did so."""
    refused: dict[str, str] = {}
    for peer in peers:
        _try_peer(peer, cases[0], refused, tools)
        cases[0].peers.pop(peer.name, None)  # the first leg of a peer is its warm-up
    for repeat in range(repeats):
        for done, case in enumerate(cases):
            tools.progress("measuring", repeat * len(cases) + done, repeats * len(cases))
            legs = [
                _paused(engine, case, kind, tools, pause) for kind in (PLAIN, SPECULATIVE, PLAIN)
            ]
            case.brackets.append((legs[0], legs[1], legs[2]))
            for peer in peers:
                _try_peer(peer, case, refused, tools)
    return refused


def _paused(engine: EngineFacade, case: Case, kind: str, tools: Tools, pause: float) -> Leg:
    if pause:
        tools.sleep(pause)
    return run_leg(engine, case.prompt, case.count, kind, tools.clock)


def _try_peer(peer: Peer, case: Case, refused: dict[str, str], tools: Tools) -> None:
    """A peer's leg, unless it refused before; it is not asked again once it has."""
    if peer.name in refused:
        return
    try:
        leg = peer.run(case.prompt, case.count, tools.clock)
    except Refusal as refusal:
        refused[peer.name] = str(refusal)
        return
    case.peers.setdefault(peer.name, []).append(leg)


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

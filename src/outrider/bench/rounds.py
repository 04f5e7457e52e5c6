"""Legs in turn: plain, speculative, plain for every prompt, then the peers, over and over."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from outrider.bench.leg import PLAIN, SPECULATIVE, Generates, Leg, Refusal, natural_length, run_leg
from outrider.bench.peers import Peer
from outrider.bench.stats import Timed
from outrider.costs.timing import Clock

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


def cut_to_natural(engine: Generates, cases: Sequence[Case], tools: Tools) -> list[Case]:
    """Let no case run past the model's own end; leave out those that end at once."""
    for done, case in enumerate(cases):
        tools.progress("finding where outputs end", done, len(cases))
        case.count = natural_length(engine, case.prompt, case.count)
    return [case for case in cases if case.count >= LEAST_TOKENS]


def check_outputs(engine: Generates, cases: Sequence[Case], tools: Tools) -> None:
    """One plain and one speculative leg per case: warm-up, and what the gates look at first."""
    for done, case in enumerate(cases):
        tools.progress("checking outputs", done, len(cases))
        plain, speculative = (
            run_leg(engine, case.prompt, case.count, kind, tools.clock)
            for kind in (PLAIN, SPECULATIVE)
        )
        case.check = (plain, speculative)


def run_brackets(
    engine: Generates,
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


def _paused(engine: Generates, case: Case, kind: str, tools: Tools, pause: float) -> Leg:
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

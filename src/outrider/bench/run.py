"""A whole benchmark: gates, legs, calibration, prediction, verdict."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from functools import partial

from outrider.bench.legs import (
    PLAIN,
    Case,
    Leg,
    Peer,
    Tools,
    beyond_steps,
    check_outputs,
    cut_to_natural,
    run_brackets,
)
from outrider.bench.stats import Estimate, Timed, estimate, speedup
from outrider.bench.verdict import (
    Condition,
    Difference,
    Evidence,
    Judgement,
    drafter_as_asked,
    drafts_verified,
    first_difference,
    judge,
    same_counts,
    same_output,
    steady_counters,
    steady_machine,
    worst,
)
from outrider.bench.workload import Workload, refuse_random
from outrider.costs.curve import MeasuredCurve
from outrider.costs.prediction import (
    PartCosts,
    Prediction,
    SweepPoint,
    best,
    kept_rows,
    predict,
    rounds_of,
    sweep,
)
from outrider.costs.replay import Passage, Walk, draft_costs, proposing, walk
from outrider.costs.rounds import Readings, calibrate, passes_beside, read_taps
from outrider.costs.timing import GREEDY
from outrider.draft.base import Drafter
from outrider.engine.draft_budget import FixedBudget
from outrider.engine.facade import EngineFacade, Speculation
from outrider.errors import ConfigError, RequestError
from outrider.records import Needs
from outrider.telemetry.counters import (
    Counters,
    acceptance_rate,
    mean_acceptance_length,
    merge,
)

ROWS = (*range(1, 10), 12, 16, 24, 32, 48, 64)
DRAFTS = 4
"""Drafts of the proposals between passes that are measured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Size of a measurement. Times in seconds, `max_drift` a share.

    `ignore_eos` decodes `tokens` tokens even where the model would have ended before.
    """

    prompts: int = 8
    tokens: int = 192
    repeats: int = 3
    pause: float = 0.0
    max_drift: float = 0.05
    seed: int = 0
    ignore_eos: bool = False
    calibration_prompts: int = 3
    calibration_repeats: int = 12
    walk_rounds: int = 64

    def quick(self) -> "Settings":
        """The least that still tells something."""
        return replace(
            self,
            prompts=min(self.prompts, 4),
            tokens=min(self.tokens, 128),
            repeats=min(self.repeats, 2),
            calibration_prompts=2,
            calibration_repeats=8,
            walk_rounds=32,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibrated:
    """Costs measured apart from the rounds, and what they predict."""

    costs: PartCosts
    readings: Readings
    walks: dict[int, Walk]
    prediction: Prediction
    sweep: list[SweepPoint]
    best: SweepPoint | None


@dataclass(slots=True, kw_only=True)
class Measured:
    """Everything that a run found; where a gate failed, the parts after it are empty."""

    workload: Workload
    settings: Settings
    cases: list[Case]
    skipped: int = 0
    gates: list[Condition] = field(default_factory=list)
    counters: Counters = field(default_factory=Counters)
    samples: list[Timed] = field(default_factory=list)
    speedup: Estimate | None = None
    refused: dict[str, str] = field(default_factory=dict)
    calibrated: Calibrated | None = None
    verdict: Judgement | None = None


def measure(
    engine: EngineFacade,
    encode: Callable[[str], Sequence[int]],
    workload: Workload,
    settings: Settings,
    tools: Tools,
    peers: Sequence[Peer] = (),
) -> Measured:
    """Run it all. Raises ConfigError and RequestError for what cannot be measured."""
    if engine.speculation.drafter is None:
        raise ConfigError(
            "speculative.method = 'off' leaves nothing to compare with plain decoding: choose a "
            "method that drafts."
        )
    chosen = workload.first(settings.prompts)
    run = Measured(workload=chosen, settings=settings, cases=[])
    run.cases = _cases(engine, encode, run, tools)
    check_outputs(engine, run.cases, tools)
    run.gates = _output_gates(engine, run.cases)
    if worst(run.gates) != "failed":
        _time(engine, run, tools, peers)
    run.verdict = judge(_evidence(run))
    return run


def _cases(
    engine: EngineFacade, encode: Callable[[str], Sequence[int]], run: Measured, tools: Tools
) -> list[Case]:
    settings, workload = run.settings, run.workload
    room = engine.stage.max_length - settings.tokens
    prompts = [(prompt, tuple(encode(prompt.text))) for prompt in workload.prompts]
    texts, ids = [prompt.text for prompt in workload.prompts], [ids for _, ids in prompts]
    refuse_random(texts, ids, engine.stage.vocab_size, workload.name)
    cases = [
        Case(id=prompt.id, category=prompt.category, prompt=ids, count=settings.tokens)
        for prompt, ids in prompts
        if 0 < len(ids) <= room
    ]
    if not settings.ignore_eos:
        cases = cut_to_natural(engine, cases, tools)
    run.skipped = len(prompts) - len(cases)
    if not cases:
        raise RequestError(
            f"--workload {workload.name} has no prompt that fits: each is longer than {room} "
            "tokens or its output ends at once; use --ignore-eos, fewer --tokens or other prompts."
        )
    return cases


def _output_gates(engine: EngineFacade, cases: Sequence[Case]) -> list[Condition]:
    """The gates on tokens and counters, over every leg that there is."""
    differences = [found for case in cases if (found := _difference(engine, case))]
    legs = [(leg.kind, case.count, len(leg.tokens)) for case in cases for leg in case.legs]
    counters, asked = merge(_speculative(cases)), engine.speculation
    return [
        same_output(differences, sum(given for _, _, given in legs)),
        same_counts(legs),
        drafter_as_asked(asked.method, asked.fallback, counters),
        drafts_verified(counters),
    ]


def _speculative(cases: Sequence[Case]) -> list[Counters]:
    """Counters of one speculative leg per case, those of the check."""
    return [case.check[1].counters for case in cases if case.check and case.check[1].counters]


def _difference(engine: EngineFacade, case: Case) -> Difference | None:
    """The first place at which any leg leaves the plain one, with the target's lead there."""
    legs = list(case.legs)
    found = [first_difference(case.id, legs[0].tokens, leg.tokens) for leg in legs[1:]]
    first = min(filter(None, found), key=lambda one: one.place, default=None)
    if first is None:
        return None
    return replace(first, margin=_margin(engine, case, first.place))


def _margin(engine: EngineFacade, case: Case, place: int) -> float | None:
    """Nats between the target's first and second choice for output token `place`."""
    generation = engine.generate(
        case.prompt,
        sampling=replace(GREEDY, logprobs=2),
        max_tokens=place + 1,
        ignore_eos=True,
        method="off",
    )
    entries = [entry for piece in generation for entry in piece.logprobs]
    if len(entries) <= place or len(entries[place].top) < 2:
        return None
    (_, first), (_, second) = entries[place].top[:2]
    return first - second


def _time(engine: EngineFacade, run: Measured, tools: Tools, peers: Sequence[Peer]) -> None:
    """The timed part; gates are looked at again with all its legs."""
    settings = run.settings
    run.refused = run_brackets(
        engine, run.cases, peers, tools, repeats=settings.repeats, pause=settings.pause
    )
    fixed = _has_fixed_budget(engine.speculation)
    run.counters = merge(_counted(run.cases, first_only=fixed))
    run.samples = [case.timed for case in run.cases]
    run.gates = [
        *_output_gates(engine, run.cases),
        *([steady_counters([_drafts(case) for case in run.cases])] if fixed else []),
        steady_machine(run.samples, settings.max_drift),
    ]
    if worst(run.gates) == "failed":
        return
    run.speedup = estimate(run.samples, speedup, settings.seed)
    if engine.speculation.windows.depth == 1 and engine.speculation.windows.runahead is None:
        run.calibrated = _calibrate(engine, run, tools)


def _has_fixed_budget(speculation: Speculation) -> bool:
    """True if the same number of drafts is asked for in every round."""
    budget = speculation.budget()
    budget.close()
    return budget.repeats


def _counted(cases: Sequence[Case], *, first_only: bool) -> list[Counters]:
    """Counters of the timed speculative legs: of one repeat, since the others are equal, or of
    all where a controller chooses by the clock."""
    legs = [bracket[1] for case in cases for bracket in case.brackets[: 1 if first_only else None]]
    return [leg.counters for leg in legs if leg.counters]


def _drafts(case: Case) -> list[tuple[int, int, int]]:
    counters = [middle.counters for _, middle, _ in case.brackets if middle.counters]
    return [(one.proposed, one.verified, one.accepted) for one in counters]


def _calibrate(engine: EngineFacade, run: Measured, tools: Tools) -> Calibrated:
    """Measure passes, rollbacks, proposals and the host apart from the rounds, and predict."""
    settings, width = run.settings, engine.speculation.windows.width
    rows = [n for n in ROWS if n < width] + [width]
    tools.progress("calibrating passes", 0, 1)
    passages = [_passage(case) for case in _spread(run.cases, settings.calibration_prompts)]
    factory = engine.speculation.drafter
    assert factory is not None
    read = partial(read_taps, engine.stage)
    make = partial(factory, GREEDY, FixedBudget(width))
    needs = _needs(make)

    def drafting(passage: Passage) -> AbstractContextManager[Callable[[], object]]:
        return proposing(make, passage, min(DRAFTS, width - 1), read)

    readings = calibrate(
        engine.stage,
        passages,
        rows,
        kept_rows(run.counters),
        needs.taps,
        settings.calibration_repeats,
        settings.seed,
        drafting,
    )
    tools.progress("replaying drafters", 0, 1)
    verify, keep = readings.verify_curve, round(mean_acceptance_length(run.counters))
    walks = walk(
        make,
        [_passage(case) for case in run.cases],
        [n - 1 for n in rows if n > 1],
        tools.clock,
        settings.walk_rounds,
        read,
        lambda passage: passes_beside(engine.stage, passage, needs.taps, verify, keep),
    )
    repeats = settings.calibration_repeats // 2
    beyond = beyond_steps(engine, passages, needs, tools.clock, repeats, drafting)
    return _predicted(run, readings, walks, beyond)


def _predicted(
    run: Measured, readings: Readings, walks: dict[int, Walk], beyond: MeasuredCurve
) -> Calibrated:
    """The costs of the parts, and by them the rounds that were run and those of other budgets."""
    draft, opening = draft_costs(list(walks.values()))
    host = host_share(run.cases) * readings.step_ms
    costs = PartCosts(
        step=readings.step_ms,
        host=host,
        beyond=beyond.scaled(readings.step_ms + host),
        verify=readings.verify_curve,
        draft=draft,
        rollback=readings.rollback_curve,
        opening=opening,
    )
    points = sweep({budget: one.rounds for budget, one in walks.items()}, costs)
    return Calibrated(
        costs=costs,
        readings=readings,
        walks=walks,
        prediction=predict(rounds_of(run.counters), costs),
        sweep=points,
        best=best(points),
    )


def _needs(make: Callable[[], Drafter]) -> Needs:
    drafter = make()
    drafter.close()
    return drafter.needs


def _passage(case: Case) -> Passage:
    assert case.check is not None
    return Passage(prompt=case.prompt, output=case.check[0].tokens)


def _spread(cases: Sequence[Case], count: int) -> list[Case]:
    """`count` cases, evenly from the shortest to the longest prompt."""
    ordered = sorted(cases, key=lambda case: len(case.prompt) + case.count // 2)
    count = min(count, len(ordered))
    return [ordered[(2 * place + 1) * len(ordered) // (2 * count)] for place in range(count)]


def host_share(cases: Sequence[Case]) -> float:
    """Time of plain steps beyond the target's passes, as a share of these, from plain legs."""
    legs = [leg for case in cases for leg in plain_legs(case)]
    inside = sum(leg.counters.verify_ms for leg in legs if leg.counters)
    return max(sum(leg.ms for leg in legs) - inside, 0.0) / inside if inside else 0.0


def plain_legs(case: Case) -> list[Leg]:
    """The timed plain legs of a case."""
    return [leg for bracket in case.brackets for leg in bracket if leg.kind == PLAIN]


def _evidence(run: Measured) -> Evidence:
    found = run.calibrated
    return Evidence(
        gates=run.gates,
        speedup=run.speedup,
        acceptance=acceptance_rate(run.counters),
        max_drafts=max((n for n in rounds_of(run.counters).by_drafts), default=0),
        prediction=found.prediction if found else None,
        costs=found.costs if found else None,
        best=found.best if found else None,
        categories=_by_category(run) if run.speedup else {},
    )


def _by_category(run: Measured) -> dict[str, Estimate]:
    names = dict.fromkeys(case.category for case in run.cases)
    groups = {name: [c.timed for c in run.cases if c.category == name] for name in names}
    return {name: estimate(samples, speedup, run.settings.seed) for name, samples in groups.items()}

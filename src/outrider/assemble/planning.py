"""`outrider plan`: tokens/s of cuts, depths and run-ahead budgets, from layer times."""

import os
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import combinations
from statistics import median

from outrider.assemble.decisions import cut
from outrider.assemble.stages import make_stage
from outrider.assemble.target import LoadedTarget, load_target
from outrider.config.settings import LinkConfig, RunConfig, StagesConfig
from outrider.costs.known_text import KnownTextDrafter
from outrider.costs.layers import MEASURED, LayerTimes, measure_layers
from outrider.costs.pipeline import (
    Overhead,
    Pipeline,
    Shape,
    best,
    law,
    overhead_of,
    plain,
    speed,
    steps,
)
from outrider.costs.timing import GREEDY
from outrider.engine.draft_budget import FixedBudget
from outrider.engine.facade import OFF, EngineFacade, Speculation, WindowLimits
from outrider.errors import ConfigError

BALANCED_AT = 8
"""Rows of the window for which a balanced cut makes the slowest stage as fast as can be."""
MOST_CUTS = 50_000
LEAST_LENGTH = 512
"""Positions that passes and the trial of stages go through at most."""
PROMPT = (0,)
ROWS = 8
FULL = 8
"""Windows in flight that keep every stage busy."""
LIMITS = WindowLimits(width=ROWS, depth=FULL)
CAPACITY = ROWS * FULL + 1
"""Rows in flight, with the last one of the window before them."""
WINDOWS = 2 * FULL
TOKENS = ROWS * (WINDOWS + FULL)
TURNS = 9
ALONE = Overhead()


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """Subject of a plan; `round_trip_ms` None takes the links as configured."""

    acceptance: float
    round_trip_ms: float | None = None
    draft_ms: float = 0.0
    most_depth: int = 16


def plan(config: RunConfig, question: Question) -> dict[str, object]:
    """Measure a target's layers and say what stages would bring; JSON-ready."""
    stages = config.stages
    if stages.is_apart and config.target.threads is None:
        threads = max((os.cpu_count() or 1) // stages.count, 1)
        config = replace(config, target=replace(config.target, threads=threads))
    target = load_target(config.target)
    if target.decoder.max_length < LEAST_LENGTH:
        raise ConfigError(
            f"target.max_length = {target.decoder.max_length} leaves no room to measure passes: "
            f"plan with {LEAST_LENGTH} or more."
        )
    times = measure_layers(target.decoder)
    return answer(times, stages, question, measure_overhead(config, target, times))


def measure_overhead(config: RunConfig, target: LoadedTarget, times: LayerTimes) -> Overhead:
    """Time that the configured stages take beyond `times`; nothing is known of those elsewhere."""
    stages = replace(config.stages, link=LinkConfig())
    if not stages.processes or stages.address:
        return Overhead()
    sizes = [last - first for first, last in cut(stages, len(times.kinds))]
    stage = make_stage(replace(config, stages=stages), target, CAPACITY)
    engine = EngineFacade(
        stage,
        target.tokenizer,
        Speculation(method=OFF, drafter=None, budget=lambda: FixedBudget(0), windows=LIMITS),
    )
    return try_stages(engine, times.stages(sizes, wired=True))


def answer(
    times: LayerTimes, stages: StagesConfig, question: Question, overhead: Overhead = ALONE
) -> dict[str, object]:
    """Answer a question from `times`; pure."""
    found = []
    for sizes in _cuts(times, stages):
        pipeline = _pipeline(times, sizes, stages, question, overhead)
        shape = best(pipeline, question.acceptance, steps(len(times.bare)), _depths(question))
        found.append((shape, sizes, pipeline))
    shape, sizes, pipeline = max(found, key=lambda entry: entry[0].speed)
    alone = plain(pipeline)
    return {
        "acceptance": question.acceptance,
        "round_trip_ms": pipeline.round_trip_ms,
        "plain_tokens_per_second": alone,
        "cuts": [
            {"layers": list(s), "stage_ms": [stage[BALANCED_AT - 1] for stage in p.stages]}
            | _shape(best_of, p, question)
            for best_of, s, p in found
        ],
        "recommended": {"layers": list(sizes), "speedup": shape.speed / alone}
        | _shape(shape, pipeline, question),
        "table": list(_table(pipeline, question)),
    }


def _table(pipeline: Pipeline, question: Question) -> Iterator[dict[str, object]]:
    for width in MEASURED:
        for depth in _depths(question):
            told = speed(pipeline, question.acceptance, width, depth)
            yield _shape(Shape(width=width, depth=depth, speed=told), pipeline, question)


def _shape(shape: Shape, pipeline: Pipeline, question: Question) -> dict[str, object]:
    return {
        "max_tokens": shape.width,
        "depth": shape.depth,
        "runahead_tokens": shape.width * shape.depth,
        "tokens_per_second": shape.speed,
        "law_tokens_per_second": law(pipeline, question.acceptance, shape.width),
    }


def _depths(question: Question) -> list[int]:
    return [depth for depth in (1, 2, 4, 8, 16, 32, 64) if depth <= question.most_depth]


def _pipeline(
    times: LayerTimes,
    sizes: Sequence[int],
    stages: StagesConfig,
    question: Question,
    overhead: Overhead,
) -> Pipeline:
    ways, link = (2 if len(sizes) == 1 else len(sizes)), stages.link
    told = question.round_trip_ms
    return Pipeline(
        stages=times.stages(sizes, wired=stages.is_apart),
        round_trip_ms=link.delay_ms * ways if told is None else told,
        row_ms=times.row_bytes * 8 / (link.mbps * 1e3) if link.mbps else 0.0,
        draft_ms=question.draft_ms + overhead.draft_ms,
        parallel=stages.is_apart,
        window_ms=overhead.window_ms,
        crowding=overhead.crowding,
        void_ms=overhead.void_ms,
    )


def _cuts(times: LayerTimes, stages: StagesConfig) -> Iterator[tuple[int, ...]]:
    """The cut that was named; else the even one and the one with the fastest slowest stage."""
    layers = len(times.kinds)
    even = tuple(last - first for first, last in cut(stages, layers))
    yield even
    if stages.sizes is not None or stages.count == 1:
        return
    ways = combinations(range(1, layers), stages.count - 1)
    cuts = [
        tuple(b - a for a, b in zip((0, *way), (*way, layers), strict=True))
        for way, _ in zip(ways, range(MOST_CUTS), strict=False)
    ]
    balanced = min(cuts, key=lambda sizes: _slowest(times, sizes, stages))
    if balanced != even:
        yield balanced


def _slowest(times: LayerTimes, sizes: Sequence[int], stages: StagesConfig) -> float:
    found = times.stages(sizes, wired=stages.is_apart)
    return max(stage[BALANCED_AT - 1] for stage in found)


def try_stages(engine: EngineFacade, stages: Sequence[Sequence[float]]) -> Overhead:
    """Decode through `engine`, which is then closed: plainly, and the same text in windows of which
    all are right, one at a time and in a row, or none.

    `stages` are the ms of passes of 1, 2, ... rows through each part alone.
    """
    vocab = engine.stage.vocab_size
    with closing(engine):
        text = _text(engine)
        right = KnownTextDrafter(text, vocab)
        wrong = KnownTextDrafter(text, vocab, wrong=lambda _, count: range(count))
        # In turn, so that a slow moment of the machine hits all of them.
        turns = [
            (
                _window_ms(engine, None),
                _window_ms(engine, right),
                _window_ms(engine, right, FULL),
                _window_ms(engine, wrong, FULL),
            )
            for _ in range(1 + TURNS)
        ][1:]  # first calls are no measure
    step, one, full, void = (median(times) for times in zip(*turns, strict=True))
    return overhead_of(
        stages, ROWS, FULL, WINDOWS, plain_ms=step, one_ms=one, full_ms=full, void_ms=void
    )


def _text(engine: EngineFacade) -> list[int]:
    """The prompt and what plain decoding makes of it."""
    running = engine.generate(PROMPT, sampling=GREEDY, max_tokens=TOKENS, ignore_eos=True)
    return [*PROMPT, *(token for piece in running for token in piece.tokens)]


def _window_ms(engine: EngineFacade, drafter: KnownTextDrafter | None, depth: int = 1) -> float:
    """Time of a window that is no void one; without a drafter it is a plain step."""
    request = engine.prepare(PROMPT, sampling=GREEDY, max_tokens=TOKENS, ignore_eos=True)
    if drafter:
        speculation = replace(
            request.speculation,
            drafter=lambda *_: drafter,
            budget=lambda: FixedBudget(ROWS),
            windows=replace(LIMITS, depth=depth),
        )
        request = replace(request, speculation=speculation)
    running = engine.begin(request)
    counters = running.counters
    for _ in running:
        # Not to the end of the text: windows in flight would run out before it.
        if counters.windows_judged >= WINDOWS:
            break
    running.close()
    return counters.predicted_ms / max(counters.windows_judged, 1)

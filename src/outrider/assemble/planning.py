"""`outrider plan`: tokens/s of cuts, depths and run-ahead budgets, from layer times."""

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import combinations

import torch

from outrider.assemble.calibration import Pass, passes, per_rows, timed_window
from outrider.assemble.cut import cut
from outrider.assemble.setup import make_picker
from outrider.assemble.stages import make_stage
from outrider.assemble.target import LoadedTarget, load_target
from outrider.assemble.trial import CAPACITY, LIMITS, Beside, try_stages
from outrider.config.settings import LinkConfig, RunConfig, StagesConfig
from outrider.engine.budget import FixedBudget
from outrider.engine.engine import OFF, Engine, Speculation
from outrider.engine.pipeline import Pipeline, Shape, best, law, plain, speed, steps
from outrider.errors import ConfigError
from outrider.kernels.pass_plan import Span
from outrider.models.decoder import Decoder, Layer
from outrider.sampling.params import SamplingParams
from outrider.stage.frame import Frame
from outrider.stage.part import Part
from outrider.stage.wire import decode, encode
from outrider.state.sequence import SequenceState

MEASURED = (1, 2, 4, 8, 16)
SECONDS = 0.8
BALANCED_AT = 8
"""Rows of the window for which a balanced cut makes the slowest stage as fast as can be."""
MOST_CUTS = 50_000
LEAST_LENGTH = 512
"""Positions that passes and the trial of stages go through at most."""
ALONE = Beside()


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerTimes:
    """Milliseconds of 1, 2, ... rows: a layer of each kind; `bare`, what any stage's pass takes
    beside its layers; `head`, what the last stage takes more; `wire`, handing rows on."""

    kinds: Sequence[str]
    layer: Mapping[str, Sequence[float]]
    bare: Sequence[float]
    head: Sequence[float]
    wire: Sequence[float]
    row_bytes: int

    def stages(self, sizes: Sequence[int], *, wired: bool) -> list[list[float]]:
        """Passes of 1, 2, ... rows through stages of `sizes` layers."""
        found, first = [], 0
        for number, size in enumerate(sizes):
            parts = [self.layer[kind] for kind in self.kinds[first : first + size]]
            parts += [self.bare, self.wire] if wired else [self.bare]
            parts += [self.head] if number == len(sizes) - 1 else []
            found.append([sum(values) for values in zip(*parts, strict=True)])
            first += size
        return found


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
    return answer(times, stages, question, measure_beside(config, target, times))


def measure_beside(config: RunConfig, target: LoadedTarget, times: LayerTimes) -> Beside:
    """Time that the configured stages take beyond `times`; nothing is known of those elsewhere."""
    stages = replace(config.stages, link=LinkConfig())
    if not stages.processes or stages.address:
        return Beside()
    sizes = [last - first for first, last in cut(stages, len(times.kinds))]
    stage = make_stage(replace(config, stages=stages), target, CAPACITY)
    engine = Engine(
        stage,
        target.tokenizer,
        Speculation(method=OFF, drafter=None, budget=lambda: FixedBudget(0), windows=LIMITS),
    )
    return try_stages(engine, times.stages(sizes, wired=True))


def answer(
    times: LayerTimes, stages: StagesConfig, question: Question, beside: Beside = ALONE
) -> dict[str, object]:
    """Answer a question from `times`; pure."""
    found = []
    for sizes in _cuts(times, stages):
        pipeline = _pipeline(times, sizes, stages, question, beside)
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
    beside: Beside,
) -> Pipeline:
    ways, link = (2 if len(sizes) == 1 else len(sizes)), stages.link
    told = question.round_trip_ms
    return Pipeline(
        stages=times.stages(sizes, wired=stages.is_apart),
        round_trip_ms=link.delay_ms * ways if told is None else told,
        row_ms=times.row_bytes * 8 / (link.mbps * 1e3) if link.mbps else 0.0,
        draft_ms=question.draft_ms + beside.draft_ms,
        parallel=stages.is_apart,
        window_ms=beside.window_ms,
        crowding=beside.crowding,
        void_ms=beside.void_ms,
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


@torch.inference_mode()
def measure_layers(decoder: Decoder) -> LayerTimes:
    """Time the parts of a whole model's pass, each kind of layer by its own passes."""
    kinds = decoder.config.layer_kinds

    def timed(layers: Sequence[Layer]) -> list[float]:
        part = replace(decoder, layers=tuple(layers))
        return _measure(passes(part, whole=decoder))

    none = timed(())
    layer: dict[str, list[float]] = {}
    for kind in dict.fromkeys(kinds):
        own = [one for one, name in zip(decoder.layers, kinds, strict=True) if name == kind]
        layer[kind] = [_rest(a, b) / len(own) for a, b in zip(timed(own), none, strict=True)]
    headless = _measure(partial(_headless, decoder, decoder.new_state("log", 0)))
    whole, part = timed(decoder.layers), _measure(_PartPasses(decoder))
    beside = [_rest(a, b) for a, b in zip(part, whole, strict=True)]
    return LayerTimes(
        kinds=kinds,
        layer=layer,
        bare=[a + b for a, b in zip(headless, beside, strict=True)],
        head=[_rest(a, b) for a, b in zip(none, headless, strict=True)],
        wire=_measure(partial(_hand_on, decoder)),
        row_bytes=decoder.config.hidden_size * decoder.dtype.itemsize,
    )


def _rest(more: float, less: float) -> float:
    return max(more - less, 0.0)


def _measure(run: Pass) -> list[float]:
    return per_rows(run, MEASURED, SECONDS / 4, time.perf_counter)


def _headless(decoder: Decoder, state: SequenceState, rows: int) -> None:
    rows = min(rows, decoder.max_length)
    if state.length + rows > decoder.max_length:
        state.reset()
    tokens = torch.zeros(rows, dtype=torch.int64, device=decoder.device)
    span = Span(state, rows, revocable=False)
    replace(decoder, layers=()).run(decoder.embed(tokens), [span])


def _hand_on(decoder: Decoder, rows: int) -> None:
    """Turn a frame of hidden states into a message and back."""
    hidden = torch.zeros(rows, decoder.config.hidden_size, dtype=decoder.dtype)
    _, header, *payload = encode(
        Frame(window=timed_window(0, rows, final=True), hidden=hidden), 0.0
    )
    decode(header, b"".join(payload))


class _PartPasses:
    """Windows through a stage as it runs them, all rows wanted and kept; from the start again where
    the context is full."""

    def __init__(self, decoder: Decoder) -> None:
        self._part = Part(decoder, "log", 0, make_picker)
        self._part.open(0, SamplingParams(), 1)
        self._end, self._most = 0, decoder.max_length

    def __call__(self, rows: int) -> None:
        rows = min(rows, self._most)
        if self._end + rows > self._most:
            self._part.close(0)
            self._part.open(0, SamplingParams(), 1)
            self._end = 0
        self._part.take(Frame(window=timed_window(self._end, rows, final=True)))
        self._part.run()
        self._end += rows

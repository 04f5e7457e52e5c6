"""Costs are measured at start: in order, in time, for the widths that are used."""

from itertools import count
from pathlib import Path

import pytest

from outrider.costs.curve import MeasuredCurve
from outrider.costs.layers import MEASURED, measure_layers
from outrider.costs.timing import (
    CONTEXT,
    ROUNDS,
    TIMED,
    drafts_of,
    measure_costs,
    passes,
    widths_to,
    windows_of,
)
from outrider.draft.model.draft_model import DraftModel, DraftModelDrafter
from outrider.draft.token_choice import GreedyChooser
from outrider.engine.controller import Controller
from outrider.models.decoder import Decoder
from outrider.models.load import LoadOptions, load_decoder
from outrider.stage.local import LocalStage
from tests.helpers.checkpoints import VOCAB, save_model
from tests.helpers.runs import make_decoder


@pytest.fixture(scope="module")
def decoder(tmp_path_factory: pytest.TempPathFactory) -> Decoder:
    folder: Path = tmp_path_factory.mktemp("hybrid")
    return make_decoder("qwen3_5", folder)


class Ticks:
    """A clock that advances by `step` seconds with each look."""

    def __init__(self, step: float) -> None:
        self.ticks = count()
        self.step = step
        self.looks = 0

    def __call__(self) -> float:
        self.looks += 1
        return next(self.ticks) * self.step


def test_widths_double_up_to_the_widest():
    assert widths_to(1) == [1]
    assert widths_to(9) == [1, 2, 4, 8, 9]
    assert widths_to(16) == [1, 2, 4, 8, 16]


def test_between_measured_widths_costs_are_linear_and_never_fall():
    assert MeasuredCurve({1: 1.0, 2: 1.5, 4: 2.5}).rising() == [1.0, 1.5, 2.0, 2.5]
    assert MeasuredCurve({1: 1.0, 2: 0.9, 4: 3.0}).rising() == [1.0, 1.0, 2.0, 3.0]
    assert MeasuredCurve({1: 2.0}).rising() == [2.0]


def test_every_source_and_width_has_a_cost(decoder: Decoder):
    costs = measure_costs(decoder, decoder, ["suffix", "draft"], drafts=8, clock=Ticks(0.001))
    assert list(costs.draft) == ["suffix", "draft"]
    assert costs.verify == pytest.approx([1.0] * 9)
    assert costs.draft["suffix"] == ()
    assert costs.draft["draft"] == pytest.approx([1.0 * tokens for tokens in range(1, 9)])
    assert 0 <= Controller(costs).choose() <= 8


def test_a_slow_machine_measures_each_width_once(decoder: Decoder):
    clock = Ticks(10.0)
    costs = measure_costs(decoder, None, ["suffix"], drafts=3, clock=clock)
    assert len(costs.verify) == 4
    assert clock.looks == 2 + 2 * len(widths_to(4)) < 2 * ROUNDS * len(widths_to(4))
    assert costs.draft == {"suffix": ()}


def test_no_drafts_need_no_draft_costs(decoder: Decoder):
    costs = measure_costs(decoder, decoder, ["draft"], drafts=0, clock=Ticks(0.001))
    assert len(costs.verify) == 1
    assert Controller(costs).choose() == 0


SHORT = (2, 5, 31, CONTEXT - 1, CONTEXT + 6)


@pytest.fixture(scope="module", params=SHORT)
def short(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Decoder:
    """A target whose context is shorter than what is measured elsewhere."""
    folder: Path = tmp_path_factory.mktemp("short")
    save_model("qwen3_5", folder)
    return load_decoder(folder, LoadOptions(max_length=request.param))


def test_passes_stay_within_the_context_that_there_is(short: Decoder):
    run = passes(short)
    run(CONTEXT)
    state = run.args[1]  # type: ignore[attr-defined]
    assert state.length == min(CONTEXT, short.max_length)
    for rows in (16, 1, 2, CONTEXT, 3):
        run(rows)
        assert state.length <= short.max_length


def test_windows_begin_anew_where_the_context_is_full(short: Decoder):
    stage, seen = LocalStage(short, "log", CONTEXT), []
    submit = stage.submit
    stage.submit = lambda window: (seen.append(window), submit(window))  # type: ignore[method-assign, assignment]
    with windows_of(stage) as run:
        for rows in (CONTEXT, 16, 1, 2, 16, CONTEXT):
            run(rows)
    assert len(seen) == 6
    assert all(window.start + len(window.tokens) <= short.max_length for window in seen)
    assert all(window.session == TIMED for window in seen)
    assert [window.start for window in seen[:2]] == [0, CONTEXT if short.max_length > 79 else 0]


def test_rounds_of_a_drafter_begin_anew_where_its_context_is_full(short: Decoder):
    lengths, made = [], []

    class Watched(DraftModelDrafter):
        def propose(self, context, budget):
            draft = super().propose(context, budget)
            lengths.append(len(context) + (len(draft.tokens) if draft else 0))
            return draft

    def make() -> Watched:
        made.append(Watched(DraftModel(short, VOCAB), GreedyChooser(vocab_size=VOCAB)))
        return made[-1]

    with drafts_of(make, short.max_length) as run:
        for drafts in (4, 1, 4) * 8:
            run(drafts)
    known = min(CONTEXT, short.max_length // 2)
    assert lengths[0] == known + min(4, short.max_length - known)
    assert known < max(lengths) <= short.max_length
    assert len(made) > 1


def test_a_plan_is_measured_within_the_context_too(short: Decoder):
    times = measure_layers(short)
    assert len(times.bare) == len(times.head) == MEASURED[-1]
    assert all(cost > 0 for cost in times.bare)

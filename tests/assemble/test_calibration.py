"""Costs are measured at start: in order, in time, for the widths that are used."""

from itertools import count
from pathlib import Path

import pytest

from outrider.assemble.calibration import ROUNDS, _filled, _widths, measure_costs
from outrider.engine.controller import Controller
from outrider.models.decoder import Decoder
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
    assert _widths(1) == [1]
    assert _widths(9) == [1, 2, 4, 8, 9]
    assert _widths(16) == [1, 2, 4, 8, 16]


def test_between_measured_widths_costs_are_linear_and_never_fall():
    assert _filled({1: 1.0, 2: 1.5, 4: 2.5}) == [1.0, 1.5, 2.0, 2.5]
    assert _filled({1: 1.0, 2: 0.9, 4: 3.0}) == [1.0, 1.0, 2.0, 3.0]
    assert _filled({1: 2.0}) == [2.0]


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
    assert clock.looks == 2 + 2 * len(_widths(4)) < 2 * ROUNDS * len(_widths(4))
    assert costs.draft == {"suffix": ()}


def test_no_drafts_need_no_draft_costs(decoder: Decoder):
    costs = measure_costs(decoder, decoder, ["draft"], drafts=0, clock=Ticks(0.001))
    assert len(costs.verify) == 1
    assert Controller(costs).choose() == 0

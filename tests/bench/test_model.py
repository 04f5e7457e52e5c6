"""Costs, predictions and statistics by hand."""

from dataclasses import replace

import pytest

from outrider.bench.legs import Leg
from outrider.bench.record import bins
from outrider.bench.stats import Timed, disagreement, estimate, speedup, trend
from outrider.costs.curve import MeasuredCurve
from outrider.costs.prediction import (
    PartCosts,
    Rounds,
    break_even,
    expected_length,
    predict,
    price,
    rounds_of,
)
from outrider.telemetry.counters import Counters

COSTS = PartCosts(
    step=9.0,
    host=1.0,
    verify=MeasuredCurve({1: 9.0, 5: 13.0}),
    draft=MeasuredCurve({0: 0.1, 4: 0.5}),
    rollback=MeasuredCurve({1: 0.4, 3: 0.8}),
)


def test_a_curve_is_straight_between_points_and_goes_on_behind_them():
    curve = MeasuredCurve({1: 1.0, 3: 5.0})
    assert [curve.at(n) for n in (0, 1, 2, 3, 4)] == [1.0, 1.0, 3.0, 5.0, 7.0]
    assert MeasuredCurve({2: 6.0, 4: 5.0}).at(8) == 5.0
    assert MeasuredCurve({}).at(3) == 0.0


def test_rounds_come_from_counters_alone():
    counters = Counters(first_tokens=1, emitted=9)
    counters.judge(["s"] * 3, 3)
    counters.judge(["s"] * 3, 1)
    counters.judge(["s"], 0)
    counters.judge([], 0)
    rounds = rounds_of(counters)
    assert rounds.by_drafts == {3: 2, 1: 1, 0: 1}
    assert rounds.by_kept == {2: 1, 1: 1}
    assert rounds.mean_acceptance_length == 2.0
    assert rounds.mean_drafts == 7 / 4


def test_a_round_is_priced_by_its_parts():
    rounds = Rounds(emitted=9, prompts=1, by_drafts={4: 2, 0: 1}, by_kept={2: 1})
    cost = price(rounds, COSTS)
    assert cost.verify == pytest.approx((13 + 13 + 9) / 3)
    assert cost.draft == pytest.approx((0.5 + 0.5 + 0.1) / 3)
    assert cost.rollback == pytest.approx(0.6 / 3)
    assert cost.host == 1.0
    said = predict(rounds, COSTS)
    assert said.units == pytest.approx(cost.total / 10)
    assert said.speedup == pytest.approx(3 / said.units)


def test_drafts_are_charged_to_the_host_by_their_number():
    rounds = Rounds(emitted=9, prompts=1, by_drafts={4: 2, 0: 1}, by_kept={})
    dear = replace(COSTS, beyond=MeasuredCurve({0: 0.5, 4: 2.0}))
    assert price(rounds, dear).host == pytest.approx(1.0 + (0.5 + 2 * 2.0) / 3)


def test_the_first_proposal_of_a_prompt_is_charged_once():
    rounds = Rounds(emitted=9, prompts=2, by_drafts={4: 10}, by_kept={})
    dear = replace(COSTS, opening=20.0)
    assert price(rounds, dear).draft == pytest.approx(price(rounds, COSTS).draft + 2 * 20 / 10)


def test_break_even_is_where_the_round_pays_for_itself():
    rounds = {4: 3, 2: 1}
    chance = break_even(2.0, rounds)
    assert chance is not None
    assert expected_length(chance, rounds) == pytest.approx(2.0)
    assert break_even(5.1, {4: 1}) is None
    assert break_even(1.5, {}) is None
    assert expected_length(1.0, {4: 1}) == 5.0


def test_speedup_is_over_medians_and_sums():
    samples = [
        Timed(tokens=10, plain=((100, 102), (98, 500)), speculative=(50, 49)),
        Timed(tokens=20, plain=((200, 200),), speculative=(100,)),
    ]
    assert speedup(samples) == pytest.approx((101 + 200) / (49.5 + 100))
    found = estimate(samples, speedup, seed=3)
    assert found.low <= found.value <= found.high
    assert found == estimate(samples, speedup, seed=3)


def test_an_interval_shrinks_to_nothing_where_nothing_varies():
    sample = Timed(tokens=10, plain=((100, 100),) * 3, speculative=(50,) * 3)
    found = estimate([sample] * 3, speedup, seed=0)
    assert (found.low, found.value, found.high) == (2.0, 2.0, 2.0)


def test_drift_within_brackets_and_over_repeats():
    sample = Timed(tokens=1, plain=((100, 110), (120, 120), (130, 143)), speculative=(1, 1, 1))
    assert disagreement([sample]) == pytest.approx(10 / 105)
    assert trend([sample]) == pytest.approx(136.5 / 105 - 1)


def test_speed_is_binned_by_context():
    marks = tuple((n + 1, n * (2.0 if n < 20 else 4.0) - (0 if n < 20 else 40)) for n in range(60))
    leg = Leg(kind="plain", tokens=(0,) * 60, marks=marks)
    found = bins([(11, leg)])
    assert [one.high - one.low for one in found] == [16] * len(found)
    assert found[0].speeds["plain"] == pytest.approx(500.0)
    assert found[-1].speeds["plain"] == pytest.approx(250.0)

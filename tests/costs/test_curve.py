"""A calibrated shape, scaled by what is observed."""

import pytest

from outrider.costs.curve import ENOUGH, EVERY, RECENT, STALE, Curve


def observe(curve: Curve, count: int, cost: float, times: int = EVERY * 2) -> None:
    for _ in range(times):
        curve.observe(count, cost)


def values(curve: Curve) -> list[float]:
    return [curve[count] for count in range(len(curve))]


def test_without_observations_it_is_the_shape() -> None:
    assert values(Curve([0.0, 1.0, 1.5])) == [0.0, 1.0, 1.5]


def test_one_observed_count_scales_all() -> None:
    curve = Curve([0.0, 1.0, 1.5, 2.0])
    observe(curve, 2, 3.0)
    assert values(curve) == [0.0, 2.0, 3.0, 4.0]


def test_between_observed_counts_the_scale_is_linear() -> None:
    curve = Curve([0.0, 1.0, 1.0, 1.0, 1.0])
    observe(curve, 1, 2.0)
    observe(curve, 3, 4.0)
    assert values(curve) == [0.0, 2.0, 3.0, 4.0, 4.0]


def test_the_median_of_the_newest_counts() -> None:
    curve = Curve([0.0, 1.0])
    observe(curve, 1, 1.0, 50)
    observe(curve, 1, 80.0, RECENT // 2)
    assert curve[1] == pytest.approx(1.0)
    observe(curve, 1, 2.0, RECENT)
    assert curve[1] == pytest.approx(2.0)


def test_old_observations_are_forgotten() -> None:
    curve = Curve([0.0, 1.0, 1.0])
    observe(curve, 1, 9.0)
    observe(curve, 2, 2.0, STALE + EVERY)
    assert curve[1] == pytest.approx(2.0)


def test_impossible_observations_are_ignored() -> None:
    curve = Curve([0.0, 1.0])
    for count, cost in ((0, 1.0), (2, 1.0), (-1, 1.0), (1, 0.0)):
        observe(curve, count, cost)
    assert values(curve) == [0.0, 1.0]


def test_too_few_observations_are_not_believed() -> None:
    curve = Curve([0.0, 1.0, 1.0])
    observe(curve, 1, 2.0, EVERY)
    observe(curve, 2, 9.0, ENOUGH - 1)
    observe(curve, 1, 2.0, EVERY)
    assert values(curve) == [0.0, 2.0, 2.0]


def test_it_says_which_count_it_knows_too_little_of() -> None:
    curve = Curve([0.0, 1.0, 1.0])
    assert not curve.lacks(1), "nothing is observed at all: the shape is what there is"
    observe(curve, 2, 1.0, 1)
    assert curve.lacks(1)
    observe(curve, 1, 1.0, ENOUGH)
    assert not curve.lacks(1)
    observe(curve, 2, 1.0, STALE)
    assert curve.lacks(1)

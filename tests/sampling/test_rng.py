import pytest
import torch

from outrider.errors import StageError
from outrider.sampling.rng import Key, Purpose, draw
from tests.sampling.oracle import chi_square

LAST = 1.0 - 2.0**-53


def test_the_numbers_that_a_seed_means_never_change() -> None:
    key = Key(seed=7)
    assert key.uniform(0, Purpose.TARGET) == GOLDEN[0]
    assert key.uniform(1, Purpose.RESIDUAL) == GOLDEN[1]
    assert Key(seed=7, choice=1).uniform(0, Purpose.TARGET) == GOLDEN[2]


def test_every_coordinate_matters() -> None:
    seen = {
        Key(seed=seed, choice=choice).uniform(position, purpose)
        for seed in (0, 1, 2**63 - 1)
        for choice in range(3)
        for position in (0, 1, 70_000)
        for purpose in Purpose
    }
    assert len(seen) == 3 * 3 * 3 * 4
    assert all(0.0 <= value < 1.0 for value in seen)


def test_numbers_are_uniform_over_positions_and_over_seeds() -> None:
    along = [Key(seed=3).uniform(position, Purpose.TARGET) for position in range(4000)]
    across = [Key(seed=seed).uniform(5, Purpose.ACCEPT) for seed in range(4000)]
    for numbers in (along, across):
        counts = [0] * 16
        for number in numbers:
            counts[int(number * 16)] += 1
        statistic, bound = chi_square(counts, [1 / 16] * 16)
        assert statistic < bound


def test_neighbouring_decisions_are_independent() -> None:
    counts = [0] * 16
    for seed in range(4000):
        key = Key(seed=seed)
        first = int(4 * key.uniform(9, Purpose.ACCEPT))
        second = int(4 * key.uniform(9, Purpose.RESIDUAL))
        counts[4 * first + second] += 1
    statistic, bound = chi_square(counts, [1 / 16] * 16)
    assert statistic < bound


def test_draw_inverts_the_cumulative_distribution() -> None:
    probs = torch.tensor([0.25, 0.0, 0.5, 0.25], dtype=torch.float64)
    uniforms = [0.0, 0.2499, 0.25, 0.7499, 0.75, LAST]
    assert [draw(probs, uniform) for uniform in uniforms] == [0, 0, 2, 2, 3, 3]


@pytest.mark.parametrize("uniform", [0.0, 0.5, LAST])
def test_a_token_of_probability_zero_is_never_drawn(uniform: float) -> None:
    assert draw(torch.tensor([0.0, 0.0, 1e-30, 0.0]), uniform) == 2
    assert draw(torch.tensor([0.0, 1.0, 0.0]), uniform) == 1


def test_weights_need_not_be_normalised() -> None:
    probs = torch.tensor([3.0, 1.0])
    assert [draw(probs, uniform) for uniform in (0.74, 0.76)] == [0, 1]


@pytest.mark.parametrize("weights", [[0.0, 0.0], [1.0, float("nan")], [1.0, float("inf")], []])
def test_weights_without_a_sum_are_refused(weights: list[float]) -> None:
    with pytest.raises(StageError, match="cannot draw a token from weights that sum to"):
        draw(torch.tensor(weights), 0.5)


GOLDEN = (0.5526565583469678, 0.7623811798150009, 0.04926513462160853)

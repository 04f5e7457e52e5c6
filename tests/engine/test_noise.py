"""Pass times that vary, as on a machine whose cores others use: what does not pay is not drafted.

Counts and work at the true costs, with fixed seeds; times are made up, and no clock is read.
"""

import random
from collections.abc import Callable
from statistics import mean

import pytest

from outrider.costs.batch_model import BatchCostModel, Costs
from outrider.costs.curve import Curve
from outrider.engine.controller import Controller
from outrider.records import Draft

Noise = Callable[[random.Random, int], float]
"""What a pass takes beside its true cost, by chance and by the number of its round."""

VERIFY = [2.9, 3.3, *(3.3 + 0.3 * more for more in range(1, 15))]
DRAFT = [0.86 + 0.6 * more for more in range(15)]
"""Milliseconds of the demo target and its draft model."""
SEEDS = range(4)
ROUNDS = 2000
TOGETHER = 4


def lognormal(sigma: float) -> Noise:
    return lambda chance, number: chance.lognormvariate(0, sigma)


def busy(share: float, times: float) -> Noise:
    return lambda chance, number: times if chance.random() < share else 1.0


def by_turns(times: float, rounds: int) -> Noise:
    """Slow for so many rounds, then quiet for as many."""

    def noise(chance: random.Random, number: int) -> float:
        return (times if number // rounds % 2 else 1.0) * chance.lognormvariate(0, 0.1)

    return noise


NOISES: dict[str, Noise] = {
    "quiet": lognormal(0.02),
    "lognormal 0.2": lognormal(0.2),
    "lognormal 0.4": lognormal(0.4),
    "lognormal 0.7": lognormal(0.7),
    "30 % of passes x2": busy(0.3, 2),
    "50 % of passes x2": busy(0.5, 2),
    "50 % of passes x3": busy(0.5, 3),
    "x2 for 200 rounds": by_turns(2, 200),
    "x3 for 60 rounds": by_turns(3, 60),
}
noises = pytest.mark.parametrize("noise", NOISES.values(), ids=NOISES)


def kept_of(kept: Draft | None, rate: float, chance: random.Random) -> tuple[int, int]:
    """Drafts that are verified, and how many of them are right."""
    verified = len(kept.tokens) if kept else 0
    hits = [chance.random() < rate for _ in range(verified)]
    return verified, hits.index(False) if False in hits else verified


def alone(noise: Noise, seed: int, rate: float, source: str) -> tuple[float, float]:
    """Speed in units of plain decoding, and the share of rounds that drafted; each draft is right
    with `rate`. The draft model is paid for, n-grams are free."""
    chance, paid = random.Random(seed), DRAFT if source == "draft" else []
    start = [cost * min(noise(chance, 0) for _ in range(2)) for cost in VERIFY]
    controller = Controller(Costs(verify=start, draft={source: paid}))
    tokens = work = drafted = 0.0
    for number in range(ROUNDS):
        asked, kept, drafting = controller.choose(), None, 0.0
        if asked:
            drafting = paid[asked - 1] if paid else 0.0
            kept = controller.keep(Draft(tokens=(1,) * asked, source=source))
        verified, accepted = kept_of(kept, rate, chance)
        took = VERIFY[verified] * noise(chance, number), drafting * noise(chance, number)
        controller.share(1 + verified, 1, 0)
        controller.timed(1 + verified, took[0], verified, took[1])
        controller.learn(source if verified else None, verified, accepted)
        tokens += 1 + accepted
        work += VERIFY[verified] + drafting
        drafted += verified > 0
    return tokens * VERIFY[0] / work, drafted / ROUNDS


def many(noise: Noise, rate: float, source: str) -> tuple[list[float], list[float]]:
    speeds, shares = zip(*(alone(noise, seed, rate, source) for seed in SEEDS), strict=True)
    return list(speeds), list(shares)


@noises
def test_a_draft_model_that_is_never_right_costs_next_to_nothing(noise: Noise) -> None:
    speeds, shares = many(noise, 0.0, "draft")
    assert min(speeds) > 0.98
    assert 0 < mean(shares) < 0.02, "probes only"
    assert max(shares) < 0.03


@noises
def test_n_grams_that_are_never_right_are_not_free(noise: Noise) -> None:
    """They cost nothing to draft, so that only the rows that they take speak against them."""
    speeds, shares = many(noise, 0.0, "suffix")
    assert mean(speeds) > 0.97
    assert min(speeds) > 0.95
    assert 0 < mean(shares) < 0.15


@noises
def test_a_draft_model_that_is_right_too_seldom_does_not_slow_down(noise: Noise) -> None:
    """It would have to be right in 44 of 100 rounds."""
    speeds, _ = many(noise, 0.2, "draft")
    assert min(speeds) > 0.97


@noises
def test_a_draft_model_that_pays_is_used(noise: Noise) -> None:
    """The best length would bring 1.44 times the speed, were all costs known."""
    speeds, shares = many(noise, 0.8, "draft")
    assert mean(speeds) > 1.22
    assert mean(shares) > 0.7


@noises
def test_n_grams_that_pay_are_used(noise: Noise) -> None:
    speeds, shares = many(noise, 0.6, "suffix")
    assert mean(speeds) > 1.3
    assert mean(shares) > 0.7


def together(noise: Noise, seed: int, rate: float) -> float:
    """Tokens at the true costs of several sessions that share passes, against plain decoding."""
    chance = random.Random(seed)
    true = [2.5 + 0.4 * rows for rows in range(1, 6 * TOGETHER + 1)]
    start = [cost * min(noise(chance, 0) for _ in range(2)) for cost in true]
    costs = Costs(verify=start, draft={"suffix": ()}, drafts=5)
    company = BatchCostModel(costs)
    controllers = [Controller(costs, company=company) for _ in range(TOGETHER)]
    tokens = work = 0.0
    for number in range(ROUNDS // 2):
        judged = []
        for controller in controllers:
            asked = controller.limit("suffix", 3)
            offered = Draft(tokens=(0,) * asked, source="suffix")
            judged.append(kept_of(controller.keep(offered) if asked else None, rate, chance))
        rows = TOGETHER + sum(verified for verified, _ in judged)
        took = true[rows - 1] * noise(chance, number)
        for controller, (verified, accepted) in zip(controllers, judged, strict=True):
            controller.share(rows, TOGETHER, 0)
            controller.timed(rows, took, verified, 0.0)
            controller.learn("suffix" if verified else None, verified, accepted)
            tokens += 1 + accepted
        work += true[rows - 1]
    return tokens / work / (TOGETHER / true[TOGETHER - 1])


@noises
def test_sessions_that_share_passes_are_not_slowed_down_either(noise: Noise) -> None:
    assert mean(together(noise, seed, 0.0) for seed in SEEDS) > 0.97
    assert mean(together(noise, seed, 0.7) for seed in SEEDS) > 1.12


def test_a_row_never_costs_less_than_nothing() -> None:
    """Passes of one row were slow by chance; those of two rows look cheaper."""
    costs = Costs(verify=[1.0, 1.1, 1.2], draft={"draft": [0.6, 1.2]})
    controller = Controller(costs)
    for rows, took in ((1, 3.0), (2, 1.1)) * 8:
        controller.share(rows, 1, 0)
        controller.timed(rows, took, rows - 1, 0.6)
    asked = []
    for _ in range(200):
        asked.append(controller.choose())
        kept = controller.keep(Draft(tokens=(0,), source="draft")) if asked[-1] else None
        controller.learn("draft" if kept else None, len(kept.tokens) if kept else 0, 0)
    assert sum(asked[100:]) < 10, "drafts that are never right would gain where rows bring time in"


def test_the_least_that_a_count_may_cost_is_near_its_median_once_it_was_seen_often() -> None:
    curve = Curve([0.0, 1.0, 2.0])
    assert curve.least(1) == curve[1] == 1.0
    for count, cost in ((1, 2.0), (1, 3.0), (1, 4.0), (2, 9.0)):
        curve.observe(count, cost)
    assert (curve[1], curve.least(1)) == (3.0, 2.0)
    assert curve.least(2) == curve[2] == 6.0, "it was seen once"
    for cost in (2.0, 2.9, 3.1, 4.0) * 4:
        curve.observe(1, cost)
    assert 2.8 < curve.least(1) < curve[1] < 3.2

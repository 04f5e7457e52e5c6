"""The arithmetic of windows in flight against a simulation, window by window."""

import random
from dataclasses import dataclass

import pytest

from outrider.costs.pipeline import Pipeline, best, law, plain, speed, steps
from outrider.engine.draft_budget import LinkBudget


def passes(fixed: float, row: float, widest: int = 16) -> list[float]:
    return [fixed + row * rows for rows in range(1, widest + 1)]


TWO = [passes(2.0, 0.2), passes(3.0, 0.3)]


@dataclass
class Simulation:
    """Parts are servers with queues; half of the round trip lies before the last of them."""

    pipeline: Pipeline
    acceptance: float
    width: int
    depth: int

    def speed(self, epochs: int = 3000) -> float:
        chance = random.Random(1)
        parts = self.pipeline.parts_ms(self.width)[:-1]
        free, now, tokens = [0.0] * len(parts), 0.0, 0
        for _ in range(epochs):
            accepted = 0
            while chance.random() < self.acceptance:
                accepted += 1
            now = self._epoch(parts, free, now, accepted // self.width)
            tokens += accepted + 1
        return tokens / now * 1e3

    def _epoch(self, parts: list[float], free: list[float], now: float, last: int) -> float:
        """When the answer to window `last` is there; `free` is when each part is done."""
        answers: list[float] = []
        closed = float("inf")
        while True:
            number = len(answers)
            issued = now if number < self.depth else answers[number - self.depth]
            if issued >= closed:
                return closed
            answers.append(self._window(parts, free, issued, closed))
            if number == last:
                closed = answers[last]

    def _window(self, parts: list[float], free: list[float], at: float, closed: float) -> float:
        way = self.pipeline.round_trip_ms / 2
        for number, needs in enumerate(parts):
            void = closed
            if number == len(parts) - 1:
                at, void = at + way, closed + way
            begins = max(at, free[number])
            if begins <= void:  # A pass that has begun is not broken off.
                at = free[number] = begins + needs
            else:
                at = begins
        return at + way


@pytest.mark.parametrize("round_trip", [0.0, 20.0, 100.0])
@pytest.mark.parametrize("acceptance", [0.5, 0.9, 0.98])
@pytest.mark.parametrize(("width", "depth"), [(8, 1), (8, 2), (4, 8), (8, 16), (1, 16)])
def test_speed_is_that_of_the_simulation(round_trip, acceptance, width, depth):
    pipeline = Pipeline(stages=TWO, round_trip_ms=round_trip, draft_ms=0.05)
    told = speed(pipeline, acceptance, width, depth)
    simulated = Simulation(pipeline, acceptance, width, depth).speed()
    assert told == pytest.approx(simulated, rel=0.15)
    assert told <= law(pipeline, acceptance, width) * 1.1


def test_plain_decoding_pays_a_round_trip_a_token():
    assert plain(Pipeline(stages=TWO, round_trip_ms=94.5, draft_ms=9.0)) == pytest.approx(10.0)


def test_bandwidth_slows_wide_windows():
    fast, slow = (Pipeline(stages=TWO, round_trip_ms=50.0, row_ms=row) for row in (0.0, 4.0))
    assert speed(slow, 0.95, 8, 8) < 0.5 * speed(fast, 0.95, 8, 8)
    assert slow.pace_ms(8) == 32.0


def test_depth_pays_on_copied_text_and_width_on_novel_text():
    pipeline = Pipeline(stages=TWO, round_trip_ms=100.0)
    copied, novel = (best(pipeline, rate, steps(16), steps(16)) for rate in (0.99, 0.5))
    assert copied.depth >= 8
    assert copied.speed > 3 * speed(pipeline, 0.99, 8, 1)
    assert novel.depth <= 2
    assert novel.width >= 4


def test_without_a_link_depth_brings_little():
    pipeline = Pipeline(stages=[passes(2.0, 0.1)], parallel=False)
    assert best(pipeline, 0.9, steps(16), steps(16)).depth == 1


def test_sizes_worth_comparing():
    assert steps(1) == [1]
    assert steps(10) == [1, 2, 3, 4, 6, 8, 10]


def learned(rate: float, waited_ms: float) -> tuple[int, int]:
    """The shape that a budget settles on where windows of 8 rows take 4 ms."""
    budget, chance = LinkBudget(8, 16, stages=2, parallel=True, round_trip_ms=0.0), random.Random(3)
    for _ in range(200):
        budget.shape()
        budget.timed(8, 4.0, 8, 0.1)
        budget.answered(waited_ms, 4.0)
        accepted = next((n for n in range(8) if chance.random() > rate), 8)
        budget.learn("suffix", 8, accepted)
    assert f"{waited_ms - 4.0:.1f} ms" in budget.explain()[0]
    return budget.shape()


def test_the_budget_learns_when_depth_pays():
    assert learned(0.99, 104.0)[1] >= 8
    assert learned(0.3, 104.0)[1] == 1
    assert learned(0.9, 4.0)[1] <= 2

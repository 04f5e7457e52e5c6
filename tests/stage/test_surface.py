"""The plan against the engine itself, in virtual time: round trip x acceptance x depth.

Stages that only pass time stand for layers, so that nothing here depends on the machine.
"""

import random
import statistics
from collections import deque
from dataclasses import dataclass, field, replace
from itertools import product
from types import SimpleNamespace

import pytest

from outrider.costs.known_text import KnownTextDrafter
from outrider.costs.pipeline import Pipeline, law, plain, speed
from outrider.engine import loop, session
from outrider.engine.draft_budget import LinkBudget
from outrider.sampling.params import SamplingParams
from outrider.stage.base import Frame, Void
from outrider.stage.link import LinkSettings
from outrider.stage.local import ChainStage
from outrider.telemetry.counters import conditional_acceptance
from tests.exactness.targets import Letters, engine
from tests.helpers.clock import VirtualClock

VOCAB, PROMPT, TOKENS = 50, 4, 1000
WIDTH = 8
CHANCE = random.Random(5)
TRUTH = [CHANCE.randrange(VOCAB) for _ in range(TOKENS + 200)]
COINS = [CHANCE.random() for _ in TRUTH]
PASSES = [[2.0 + 0.2 * rows for rows in range(1, 17)], [3.0 + 0.3 * rows for rows in range(1, 17)]]


@dataclass
class TimedPart:
    """A stage whose passes take virtual time; the last one knows the TRUTH."""

    clock: VirtualClock
    passes: list[float]
    is_tail: bool
    vocab_size: int = VOCAB
    max_length: int = 10**6
    exact: bool = True
    queue: deque = field(default_factory=deque)
    sessions: set = field(default_factory=set)
    void: int = -1

    @property
    def num_sessions(self):
        return len(self.sessions)

    @property
    def waiting(self):
        return bool(self.queue)

    def open(self, session, *_):
        self.sessions.add(session)

    def close(self, session):
        self.sessions.discard(session)

    def has(self, session):
        return session in self.sessions

    def check(self):
        pass

    def take(self, message):
        if isinstance(message, Void):
            self.void = message.epoch
        else:
            self.queue.append(message)

    def run(self):
        frame: Frame = self.queue.popleft()
        window = frame.window
        if frame.reply.skipped or window.epoch <= self.void:
            return [frame.ended(skipped=True)]
        took = self.passes[min(len(window.tokens), 16) - 1]
        self.clock.sleep(took / 1e3)
        end = window.end + 1
        tokens = tuple(TRUTH[end - window.wanted : end])
        own = {"tokens": tokens} if self.is_tail else {}
        return [frame.ended(verify_ms=frame.reply.verify_ms + took, **own)]


def erring(rate: float) -> KnownTextDrafter:
    """Right at each place with chance `rate`."""

    def wrong(place: int, count: int) -> set[int]:
        return {at for at in range(count) if COINS[place + at] >= rate}

    return KnownTextDrafter(TRUTH, VOCAB, wrong)


def measured(
    round_trip: float,
    rate: float,
    depth: int,
    jitter: float = 0.0,
    *,
    count: int | None = None,
    budget=None,
    clock: VirtualClock | None = None,
):
    """Tokens a virtual second, and the acceptance that it came to."""
    clock = clock or VirtualClock()
    parts = [TimedPart(clock, PASSES[0], False), TimedPart(clock, PASSES[1], True)]
    link = LinkSettings(delay_ms=round_trip / 2, jitter_ms=jitter)
    made = engine(
        ChainStage(parts, link, clock=clock),
        (lambda: erring(rate)) if rate else None,
        width=WIDTH,
        depth=depth,
        tokenizer=Letters(),
    )
    if budget:
        made.speculation = replace(made.speculation, budget=budget)
    # Plain decoding is the same token by token.
    count = count or (TOKENS if rate else 100)
    request = made.generate(TRUTH[:PROMPT], sampling=SamplingParams(), max_tokens=count)
    pieces = iter(request)
    next(pieces)
    began = clock.time
    list(pieces)
    assert list(request.result.token_ids) == TRUTH[PROMPT : PROMPT + count]
    request.counters.check()
    return (count - 1) / (clock.time - began), conditional_acceptance(request.counters)


def pipeline(round_trip: float) -> Pipeline:
    return Pipeline(stages=PASSES, round_trip_ms=round_trip, parallel=False)


def test_the_plan_predicts_the_surface():
    offs = []
    for round_trip, rate, depth in product((0.0, 20.0, 100.0), (0.5, 0.8, 0.97), (1, 2, 4, 16)):
        found, acceptance = measured(round_trip, rate, depth)
        assert acceptance == pytest.approx(rate, abs=0.05)
        offs.append(abs(speed(pipeline(round_trip), acceptance, WIDTH, depth) / found - 1))
    assert statistics.median(offs) < 0.05
    assert max(offs) < 0.15


def test_plain_decoding_is_predicted():
    for round_trip in (0.0, 100.0):
        found, _ = measured(round_trip, 0.0, 1)
        assert plain(pipeline(round_trip)) == pytest.approx(found, rel=0.01)


def test_depth_comes_close_to_the_law_over_a_long_link_and_costs_nothing_without_one():
    (deep, acceptance), (serial, _) = (measured(100.0, 0.97, depth) for depth in (16, 1))
    assert deep > 3.0 * serial
    assert deep > 0.9 * law(pipeline(100.0), acceptance, WIDTH)
    (deep, _), (serial, _) = (measured(0.0, 0.97, depth) for depth in (16, 1))
    assert deep > 0.9 * serial


def test_jitter_costs_little():
    (steady, _), (jittery, _) = (measured(100.0, 0.97, 16, jitter) for jitter in (0.0, 20.0))
    assert jittery > 0.8 * steady


@pytest.mark.parametrize("rate", [0.7, 0.92, 0.98])
def test_the_controller_comes_close_to_the_best_fixed_shape_within_160_tokens(rate, monkeypatch):
    clock = VirtualClock()
    for module in (loop, session):
        monkeypatch.setattr(module, "time", SimpleNamespace(perf_counter=lambda: clock.time))

    def budget():
        return LinkBudget(WIDTH, 16, stages=2, parallel=False, round_trip_ms=100.0)

    chosen, _ = measured(100.0, rate, 16, count=160, budget=budget, clock=clock)
    fixed = [measured(100.0, rate, depth, count=160)[0] for depth in (1, 4, 16)]
    assert chosen > 0.9 * max(fixed)

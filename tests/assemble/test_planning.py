"""The plan: measured layer times make stages, and the best cut, width and depth are named."""

from collections import deque
from pathlib import Path
from types import SimpleNamespace

import pytest

from outrider.assemble.planning import (
    Question,
    answer,
    measure_overhead,
    plan,
    try_stages,
)
from outrider.config.settings import LinkConfig, RunConfig, StagesConfig, TargetConfig
from outrider.costs.layers import MEASURED, LayerTimes, measure_layers
from outrider.costs.pipeline import Overhead, Pipeline, speed
from outrider.engine import loop, session
from outrider.errors import ConfigError
from outrider.records import Reply
from tests.exactness.targets import engine
from tests.helpers.runs import make_decoder

ROWS = MEASURED[-1]


def line(fixed: float, row: float) -> list[float]:
    return [fixed + row * rows for rows in range(1, ROWS + 1)]


TIMES = LayerTimes(
    kinds=("delta", "delta", "delta", "attention"),
    layer={"delta": line(1.0, 0.1), "attention": line(0.5, 0.05)},
    bare=line(0.2, 0.0),
    head=line(1.0, 0.05),
    wire=line(0.1, 0.01),
    row_bytes=1000,
)


def test_a_stage_is_its_layers_and_what_a_pass_takes_beside():
    first, last = TIMES.stages((1, 3), wired=False)
    assert first[0] == pytest.approx(1.1 + 0.2)
    assert last[0] == pytest.approx(2 * 1.1 + 0.55 + 0.2 + 1.05)
    wired = TIMES.stages((1, 3), wired=True)
    assert wired[0][7] == pytest.approx(1.8 + 0.2 + 0.18)


def test_the_recommendation_is_the_fastest_cut_and_shape():
    stages = StagesConfig(count=2, processes=True)
    found = answer(TIMES, stages, Question(acceptance=0.95, round_trip_ms=100.0))
    chosen = found["recommended"]
    assert chosen["layers"] == [2, 2]
    assert chosen["depth"] > 1
    assert chosen["tokens_per_second"] == max(row["tokens_per_second"] for row in found["cuts"])
    pipeline = Pipeline(stages=TIMES.stages((2, 2), wired=True), round_trip_ms=100.0)
    told = speed(pipeline, 0.95, chosen["max_tokens"], chosen["depth"])
    assert chosen["tokens_per_second"] == pytest.approx(told)
    assert chosen["speedup"] == pytest.approx(told / found["plain_tokens_per_second"])
    assert len(found["table"]) == len(MEASURED) * 5


def test_the_balanced_cut_is_found():
    heavy = LayerTimes(
        kinds=("delta", "attention", "attention", "attention"),
        layer={"delta": line(4.0, 0.0), "attention": line(1.0, 0.0)},
        bare=line(0.0, 0.0),
        head=line(0.5, 0.0),
        wire=line(0.0, 0.0),
        row_bytes=0,
    )
    question = Question(acceptance=0.98, round_trip_ms=50.0)
    found = answer(heavy, StagesConfig(count=2, processes=True), question)
    assert [row["layers"] for row in found["cuts"]] == [[2, 2], [1, 3]]
    assert found["recommended"]["layers"] == [1, 3]
    named = StagesConfig(count=2, layers="3,1", processes=True)
    assert [row["layers"] for row in answer(heavy, named, question)["cuts"]] == [[3, 1]]


def test_links_are_taken_as_configured_unless_told():
    stages = StagesConfig(count=3, layers="2,1,1", link=LinkConfig(delay_ms=20.0, mbps=8.0))
    found = answer(TIMES, stages, Question(acceptance=0.5))
    assert found["round_trip_ms"] == 60.0  # two hops and the way back
    remote = StagesConfig(link=LinkConfig(delay_ms=20.0))
    assert answer(TIMES, remote, Question(acceptance=0.5))["round_trip_ms"] == 40.0


def test_a_context_too_short_to_measure_in_is_refused():
    run = RunConfig(target=TargetConfig(path="demo", max_length=100))
    with pytest.raises(ConfigError, match=r"target\.max_length = 100 leaves no room.* 512 or more"):
        plan(run, Question(acceptance=0.9))


def test_layers_are_measured_by_kind(tmp_path: Path):
    times = measure_layers(make_decoder("qwen3_5", tmp_path))
    assert set(times.layer) == {"delta", "attention"}
    assert len(times.kinds) == 4
    for curve in (*times.layer.values(), times.bare, times.head, times.wire):
        assert len(curve) == ROWS
        assert min(curve) >= 0.0
    assert min(times.bare) > 0.0
    assert sum(stage[0] for stage in times.stages((2, 2), wired=True)) > 0.0


class Crowded:
    """Two stages of 10 ms each in scripted time: 6 ms of waking up for each window and 0.5 for each
    draft, 15 ms between windows, and 2 ms that each void one costs the first behind it, beside half
    of such a pass."""

    vocab_size, max_length, exact, num_sessions = 50, 1000, True, 0

    def __init__(self):
        self.now = self.last = 0.0
        self.queue = deque()
        self.epoch = self.void_epoch = -1
        self.closed = False

    def open(self, session, sampling, prompt_len, taps=()):
        self.queue.clear()
        self.epoch = self.void_epoch = -1

    def close(self, session):
        pass

    def void(self, session, epoch):
        self.void_epoch = epoch

    def submit(self, window):
        alone = self.now + 26.0 + (0.5 * 8 if len(window.tokens) > 1 else 0.0)
        if window.epoch == self.epoch:
            self.last = max(alone, self.last + 15.0)
        else:
            void = sum(one.epoch <= self.void_epoch for one, _ in self.queue)
            self.last = alone + (7.5 + 2.0 * void if void else 0.0)
        self.epoch = window.epoch
        self.queue.append((window, self.last))

    def run_ready(self):
        return False

    def run_batch(self):
        window, due = self.queue.popleft()
        if window.epoch <= self.void_epoch:
            return [Reply(session=window.session, id=window.id, skipped=True)]
        self.now = max(self.now, due)
        tokens = [place * place % 50 for place in range(window.start, window.end)]
        return [Reply(session=window.session, id=window.id, tokens=tuple(tokens[-window.wanted :]))]

    def shutdown(self):
        self.closed = True


def test_stages_that_share_a_machine_are_tried_together(monkeypatch):
    stage = Crowded()
    clock = SimpleNamespace(perf_counter=lambda: stage.now / 1e3)
    for module in (loop, session):
        monkeypatch.setattr(module, "time", clock)
    beside = try_stages(engine(stage, None), [[10.0] * 8, [10.0] * 8])
    assert stage.closed
    assert beside.window_ms == pytest.approx(6.0)
    assert beside.draft_ms == pytest.approx(0.5)
    assert beside.crowding == pytest.approx(1.5)
    assert beside.void_ms == pytest.approx(2.0)
    question = Question(acceptance=0.95, round_trip_ms=0.0)
    stages = StagesConfig(count=2, processes=True)
    alone, shared = (answer(TIMES, stages, question, one) for one in (Overhead(), beside))
    slow, fast = shared["plain_tokens_per_second"], alone["plain_tokens_per_second"]
    assert 1e3 / slow == pytest.approx(1e3 / fast + 6.0)
    assert shared["table"][-1]["tokens_per_second"] < alone["table"][-1]["tokens_per_second"]


def test_stages_elsewhere_and_within_the_process_are_not_tried():
    for stages in (StagesConfig(count=2), StagesConfig(count=2, address="auto")):
        run = RunConfig(target=TargetConfig(path="demo"), stages=stages)
        assert measure_overhead(run, None, TIMES) == Overhead()

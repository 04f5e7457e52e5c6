"""Whole runs in a scripted world, where every figure can be worked out by hand."""

from contextlib import nullcontext
from dataclasses import replace
from itertools import count

import pytest

from outrider.bench import record
from outrider.bench import report as pages
from outrider.bench.run import Settings, measure
from outrider.costs.replay import Passage
from outrider.costs.rounds import calibrate
from outrider.engine.draft_budget import Budget
from outrider.errors import ConfigError
from tests.bench.world import (
    PROMPT,
    ScriptedDrafter,
    ScriptedStage,
    make_engine,
    make_workload,
    text,
)

SETTINGS = Settings(
    prompts=3, tokens=31, repeats=2, calibration_prompts=2, calibration_repeats=2, walk_rounds=40
)


def run(world, *, fault=None, settings=SETTINGS, engine=None, tokens=4, **drafter):
    stage = ScriptedStage(world, fault)
    engine = engine or make_engine(stage, lambda: ScriptedDrafter(world, **drafter), tokens=tokens)
    return measure(engine, engine.tokenizer.encode, make_workload(), settings, world.tools)


def report(measured):
    return record.build(measured, "suffix", {})


def test_a_drafter_that_is_always_right_pays_and_is_predicted(world):
    found = report(run(world))
    # 30 tokens behind the first in rounds of 5: 6 passes of 10.4 ms and 6 drafts of 0.2 ms.
    assert found["verdict"] == "pays"
    assert found["speedup"]["value"] == pytest.approx(300 / (6 * 10.4 + 6 * 0.2))
    assert found["counters"]["speculative_windows"] == 3 * 6
    assert found["counters"]["speculative_accepted_n"] == 3 * 24
    assert found["model"]["difference"] == pytest.approx(0, abs=1e-9)
    assert not found["model"]["flagged"]
    assert found["model"]["best_k"] == 4
    assert found["speeds"][0]["value"] == pytest.approx(100.0)


def test_rejected_drafts_and_rollbacks_are_predicted_too(world):
    found = report(run(world, wrong=1))
    # A round keeps 1 of 4 and gives 2 tokens; the last one may hold a single draft, which is right.
    assert found["counters"]["speculative_windows"] == 3 * 15
    assert found["counters"]["speculative_verified_n"] == 3 * (14 * 4 + 1) - 3
    assert found["counters"]["speculative_accepted_n"] == 3 * 15
    assert found["acceptance"]["conditional"][:2] == [1.0, 0.0]
    assert found["model"]["difference"] == pytest.approx(0, abs=0.01)
    assert found["round"]["rollback"] == pytest.approx(0.3 * 14 / 15, abs=0.01)


def test_a_drafter_that_reads_the_prompt_first_is_predicted(world):
    world.opening = 40.0
    found = report(run(world, wrong=1))
    assert found["model"]["opening"] == pytest.approx(40.0, abs=0.1)
    assert found["model"]["difference"] == pytest.approx(0, abs=0.01)


def test_what_target_and_drafter_evict_from_the_caches_is_timed_cold(world):
    world.cold = 3.0
    found = report(run(world, wrong=1))
    assert found["round"]["draft"] == pytest.approx(3.2, abs=0.01)
    assert found["round"]["verify"] == pytest.approx(13.4, abs=0.1)
    assert found["model"]["difference"] == pytest.approx(0, abs=0.01)


@pytest.mark.parametrize("wrong", [None, 1])
def test_what_a_round_keeps_counts_in_the_pass_behind_it(world, wrong):
    world.fold = 0.5
    found = report(run(world, wrong=wrong, settings=replace(SETTINGS, calibration_repeats=8)))
    rounds, kept = {None: (6, 5), 1: (15, 2)}[wrong]
    # Behind the prompt nothing is kept yet.
    fold = 0.5 * kept * (rounds - 1) / rounds
    assert found["round"]["verify"] == pytest.approx(10.4 + fold, abs=0.1)
    assert found["model"]["difference"] == pytest.approx(0, abs=0.035)


def test_what_the_host_does_for_drafts_is_predicted(world):
    world.aside = 1.0
    found = report(run(world, wrong=1))
    assert found["model"]["host"] == pytest.approx(1.0, abs=0.01)
    beyond = dict(found["model"]["host_beyond"])
    assert beyond == pytest.approx({0: 0.0, 1: 1.0, 4: 4.0}, abs=0.01)
    # Four drafts in most rounds, and fewer in the last ones of each prompt.
    assert found["model"]["prediction"]["round"]["host"] == pytest.approx(4.7, abs=0.1)
    assert found["model"]["difference"] == pytest.approx(0, abs=0.01)


def test_passes_that_enter_a_chunk_count_in_their_share(world):
    world.entry = 6.0
    stage, drafting = ScriptedStage(world), lambda passage: nullcontext(lambda: None)
    passage = Passage(prompt=PROMPT, output=tuple(map(text, range(12, 43))))
    readings = calibrate(stage, [passage, passage], [1, 2, 5, 9], {1: 1, 2: 1}, (), 24, 0, drafting)
    assert readings.step_ms == pytest.approx(10 + 6 / 32, abs=0.1)
    for rows, ms in readings.verify_curve.points.items():
        assert ms == pytest.approx(10 + 0.1 * (rows - 1) + 6 * rows / 32, abs=0.4)


def test_a_machine_that_slows_down_after_the_legs_is_predicted(world):
    world.draft, pace = 4.0, world.spend
    tools = replace(world.tools, progress=lambda phase, *_: slow(phase))

    def slow(phase):
        if phase == "replaying drafters":
            world.spend = lambda ms: pace(1.5 * ms)

    engine = make_engine(ScriptedStage(world), lambda: ScriptedDrafter(world, wrong=1))
    measured = measure(engine, engine.tokenizer.encode, make_workload(), SETTINGS, tools)
    assert report(measured)["model"]["difference"] == pytest.approx(0, abs=0.01)


def test_a_silent_round_counts_as_a_plain_step(world):
    measured = run(world, silent=2)
    found = report(measured)
    assert found["model"]["difference"] == pytest.approx(0, abs=0.02)
    assert 0 in measured.calibrated.costs.draft.points


@pytest.mark.parametrize(
    ("prices", "drafter", "why"),
    [
        ({"row": 11.0}, {}, "verify rows are too dear"),
        ({"draft": 60.0}, {}, "the drafter is too large, 6.00 plain steps"),
        ({"back": 30.0}, {"wrong": 1}, "taking drafts back is too dear"),
        ({"row": 3.0}, {"wrong": 0}, "acceptance is too low"),
    ],
)
def test_a_loss_is_said_with_its_reason(world, prices, drafter, why):
    for name, price in prices.items():
        setattr(world, name, price)
    found = report(run(world, **drafter))
    assert found["verdict"] == "does not pay"
    assert found["speedup"]["value"] < 1
    assert why in found["why"]


def test_a_better_draft_length_is_named(world):
    world.row = 4.0
    found = report(run(world, wrong=1))
    assert found["verdict"] == "does not pay"
    assert found["model"]["best_k"] == 1
    assert "--max-draft-tokens 1" in found["change"]


def test_a_drifting_machine_is_inconclusive(world):
    world.drift_per_pass = 0.002
    found = report(run(world))
    assert found["verdict"] == "inconclusive"
    assert "plain legs agree" in found["why"]
    assert found["speedup"]["value"] > 1


def test_a_slow_drift_that_brackets_hide_is_found_over_the_repeats(world):
    world.drift_per_pass = 0.0002
    found = report(run(world, settings=Settings(prompts=3, tokens=31, repeats=8, max_drift=0.05)))
    assert found["verdict"] == "inconclusive"


@pytest.mark.parametrize(
    ("drafter", "fault", "gate"),
    [
        ({"silent": 1}, None, "drafts were verified"),
        ({"broken": 3}, None, "drafts were verified"),
        ({"name": "ngram-cache"}, None, "the drafter is the one asked for"),
        ({}, lambda rows, place: int(rows > 1 and place == 20), "same output as plain decoding"),
    ],
)
def test_a_failed_gate_leaves_no_speed(world, drafter, fault, gate):
    measured = run(world, fault=fault, **drafter)
    found = report(measured)
    assert found["verdict"] == "failed"
    assert gate in found["why"]
    assert found["speedup"] is None
    assert found["speeds"] == []
    assert found["model"] is None
    shown = "\n".join(pages.lines(found))
    assert "tokens/s" not in shown
    assert f"failed  {gate}" in shown
    assert all(not case.brackets for case in measured.cases)


class Controlled(Budget):
    """A budget that follows its own mind."""

    def __init__(self, tokens):
        self.tokens = tokens

    def shape(self):
        pass

    def answered(self, waited_ms, verify_ms):
        pass

    def share(self, rows, sessions, prompts):
        pass

    def choose(self):
        return self.tokens

    def limit(self, source, budget):
        return budget

    def keep(self, draft):
        return draft

    def learn(self, source, verified, accepted):
        pass

    def timed(self, rows, verify_ms, drafted, draft_ms):
        pass

    def explain(self):
        return ()

    def close(self):
        pass


def test_a_controller_may_change_its_mind_between_repeats(world):
    chosen = count(1)
    engine = make_engine(ScriptedStage(world), lambda: ScriptedDrafter(world), width=12)
    engine.speculation = replace(
        engine.speculation, budget=lambda: Controlled(next(chosen) % 5 + 1)
    )
    found = report(run(world, engine=engine))
    assert found["verdict"] == "pays"
    assert "same drafts in every repeat" not in [gate["name"] for gate in found["gates"]]
    assert found["model"]["difference"] == pytest.approx(0, abs=0.1)


class SometimesRight(ScriptedDrafter):
    """Right on prompts of an even length only."""

    def observe(self, commit):
        if commit.position == 0:
            self.wrong = None if len(commit.tokens) % 2 else 0


def test_kinds_of_text_that_disagree_are_named(world):
    world.row = 3.0
    engine = make_engine(ScriptedStage(world), lambda: SometimesRight(world))
    found = report(run(world, engine=engine))
    assert found["verdict"] == "inconclusive"
    assert "it depends on the text: it pays on c0 (2.25x), not on c1 (0.47x)" in found["why"]
    assert {row["name"]: row["mean_acceptance_length"] for row in found["categories"]} == {
        "c0": 5.0,
        "c1": 1.0,
    }


def test_output_that_differs_only_later_fails_as_well(world):
    begun = []

    def fault(rows, place):
        begun.append(place)
        return int(rows > 1 and place == 20 and len(begun) > 400)

    assert report(run(world, fault=fault))["verdict"] == "failed"


def test_the_difference_names_prompt_and_place(world):
    measured = run(world, fault=lambda rows, place: int(rows > 1 and place == 20))
    assert "the first is p0 at token 8" in measured.gates[0].detail


def test_windows_in_flight_are_not_priced_by_the_serial_model(world):
    stage = ScriptedStage(world)
    engine = make_engine(stage, lambda: ScriptedDrafter(world), depth=2)
    found = report(run(world, engine=engine))
    assert found["model"] is None
    assert found["verdict"] == "pays"


def test_every_leg_has_the_same_count_and_pauses_are_kept(world):
    settings = Settings(prompts=2, tokens=31, repeats=2, pause=1.5, calibration_prompts=1)
    measured = run(world, settings=settings)
    assert {len(leg.tokens) for case in measured.cases for leg in case.legs} == {31}
    assert world.slept == [1.5] * 2 * 2 * 3


def test_legs_stop_where_the_model_would(world):
    stage = ScriptedStage(world)
    engine = make_engine(stage, lambda: ScriptedDrafter(world))
    end = next(place for place in range(22, 40) if text(place) not in map(text, range(10, place)))
    engine.tokenizer.end_tokens = frozenset({text(end)})
    measured = run(world, engine=engine)
    assert [case.count for case in measured.cases] == [end - 11, end - 10, end - 9]
    assert all(len(leg.tokens) == case.count for case in measured.cases for leg in case.legs)


def test_sessions_are_closed(world):
    stage = ScriptedStage(world)
    run(world, engine=make_engine(stage, lambda: ScriptedDrafter(world)))
    assert stage.num_sessions == 0


def test_method_off_is_refused(world):
    engine = make_engine(ScriptedStage(world), lambda: None)
    engine.speculation = type(engine.speculation)(
        method="off",
        drafter=None,
        budget=engine.speculation.budget,
        windows=engine.speculation.windows,
    )
    with pytest.raises(ConfigError, match="nothing to compare"):
        run(world, engine=engine)

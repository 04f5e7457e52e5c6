"""A fault anywhere, once, with eight requests running: at most one of them ends with an error, the
others get what plain decoding gives, and nothing is left behind."""

import threading
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from outrider.draft.heads.one_token import HeadDrafter
from outrider.draft.lookup.suffix import SuffixDrafter
from outrider.draft.token_choice import GreedyChooser
from outrider.engine.draft_budget import FixedBudget
from outrider.engine.prefix import PrefixCache
from outrider.engine.scheduler import Scheduler
from outrider.errors import OutriderError, StageError
from outrider.models.decoder import DecoderLayer
from outrider.sampling.params import SamplingParams
from outrider.stage.layer_range import LayerRange, StageSession
from outrider.stage.local import ChainStage, LocalStage
from outrider.verify.sampler import Sampler
from tests.exactness.targets import SAMPLINGS, Letters, admission, engine, prompts
from tests.exactness.test_scheduler import SECONDS, Caller, ask, counters
from tests.helpers.checkpoints import VOCAB
from tests.helpers.runs import random_tokens

REQUESTS, TOKENS = 8, 40


class PlantedError(Exception):
    """A fault that nobody foresaw."""


@dataclass
class Fault:
    """Raises once, at the next call after it was armed; before or after the work was done."""

    after: bool = False
    armed: threading.Event = field(default_factory=threading.Event)
    raised: int = 0

    def wrap(self, work: Callable[..., Any]) -> Callable[..., Any]:
        def planted(*given: Any, **named: Any) -> Any:
            done = work(*given, **named) if self.after else None
            if self.armed.is_set():
                self.armed.clear()
                self.raised += 1
                raise PlantedError("planted")
            return done if self.after else work(*given, **named)

        return planted


def at_call(fault: Fault, number: int, work: Callable[..., Any]) -> Callable[..., Any]:
    """`work`, at whose call `number` the fault raises."""
    calls: list[int] = []
    planted = fault.wrap(work)

    def counting(*given: Any) -> Any:
        calls.append(1)
        if len(calls) == number:
            fault.armed.set()
        return planted(*given)

    return counting


@dataclass(frozen=True)
class Plant:
    """Where a fault is planted, how many requests it may end with an error, and how many drafters
    it ends; `early`: while the prompts are read, otherwise once all have got some tokens.
    `restarts`: it fails a pass of several requests, which begin it anew."""

    owner: Any
    name: str
    errors: int = 0
    drafters: int = 0
    after: bool = False
    early: bool = False
    restarts: bool = False


PLANTS = {
    "sampler": Plant(Sampler, "pick", errors=1),
    "sampler, for the first token": Plant(Sampler, "pick", errors=1, early=True),
    "rollback": Plant(StageSession, "roll_back", errors=1),
    "preparing a window": Plant(StageSession, "prepare", errors=1),
    "propose": Plant(SuffixDrafter, "propose", drafters=1),
    "observe": Plant(SuffixDrafter, "observe", drafters=1),
    "observe, of the prompt": Plant(SuffixDrafter, "observe", drafters=1, early=True),
    "making a drafter": Plant(SuffixDrafter, "__init__", drafters=1, early=True),
    "closing a drafter": Plant(SuffixDrafter, "close"),
    "budget": Plant(FixedBudget, "learn", errors=1),
    "figures": Plant(FixedBudget, "explain", errors=1),
    "open": Plant(LayerRange, "open", errors=1, early=True),
    "submit": Plant(LocalStage, "submit", errors=1),
    "submit, of a prompt": Plant(LocalStage, "submit", errors=1, early=True),
    "a pass": Plant(LocalStage, "run_batch", restarts=True),
    "a pass, its answers lost": Plant(LocalStage, "run_batch", after=True, restarts=True),
    "a pass, of prompts": Plant(LocalStage, "run_batch", after=True, early=True, restarts=True),
    "a layer of a shared pass": Plant(DecoderLayer, "__call__", after=True, restarts=True),
    "a layer of a pass over prompts": Plant(DecoderLayer, "__call__", early=True, restarts=True),
    "close": Plant(LayerRange, "close"),
    "close, after it was done": Plant(LayerRange, "close", after=True),
    "finding a prefix": Plant(PrefixCache, "find", early=True),
    "keeping a prefix": Plant(PrefixCache, "snapshot", early=True),
    "copying a prefix": Plant(LocalStage, "snapshot", early=True),
    "keeping a drafter": Plant(PrefixCache, "snapshot_drafter"),
    "beginning from a prefix": Plant(LocalStage, "open_from", early=True),
    "beginning from a prefix, half done": Plant(LocalStage, "open_from", early=True, after=True),
    "tokenizer": Plant(Letters, "decode", errors=1),
}


def run(scheduler, outputs, fault, plant, settings, callers):
    """All requests at once; arms the fault where it belongs."""
    begun = threading.Barrier(2, action=fault.armed.set)
    reached: list[int] = []

    def there() -> None:
        reached.append(1)
        if len(reached) == len(outputs) and not plant.early:
            fault.armed.set()

    for caller in callers:
        caller.at[3] = there
    requests = [
        (
            scheduler.prepare(
                output.prompt, sampling=SamplingParams(**settings), max_tokens=TOKENS
            ),
            caller,
        )
        for output, caller in zip(outputs, callers, strict=True)
    ]
    if plant.early:
        threading.Thread(target=begun.wait).start()
        begun.wait(SECONDS)
    scheduler.submit(requests)
    return [caller.ended.get(timeout=SECONDS) for caller in callers]


SEEDED = ("sampler", "rollback", "a pass, its answers lost", "a layer of a shared pass")
CASES = [*((name, "greedy") for name in PLANTS), *((name, "seeded") for name in SEEDED)]


@pytest.mark.parametrize(("name", "sampling"), CASES)
def test_a_fault_ends_one_request_at_most(hybrid, monkeypatch, caplog, name, sampling):
    plant = PLANTS[name]
    outputs = hybrid.oracle(sampling, prompts(REQUESTS), TOKENS)
    stage = hybrid.stage("log", 8)
    own = engine(stage, SuffixDrafter)
    own.prefixes = PrefixCache(stage, 1 << 30)
    scheduler = Scheduler(own, own.tokenizer, admission())
    try:
        if plant.name == "open_from":  # A first round leaves prefixes to begin from.
            run(scheduler, outputs, Fault(), plant, SAMPLINGS[sampling], callers(outputs))
        fault = Fault(after=plant.after)
        monkeypatch.setattr(plant.owner, plant.name, fault.wrap(getattr(plant.owner, plant.name)))
        events = run(scheduler, outputs, fault, plant, SAMPLINGS[sampling], callers(outputs))
        seen = scheduler.snapshot().result(timeout=SECONDS)
        assert fault.raised == 1, "the fault was there"
        assert (seen.running, seen.waiting, stage.num_sessions) == (0, 0, 0)
        check(events, outputs, plant)
        failed = [record for record in caplog.records if "a pass failed" in record.message]
        assert len(failed) == plant.restarts, "what fails is said"
        again = run(scheduler, outputs, Fault(), plant, SAMPLINGS[sampling], callers(outputs))
        check(again, outputs, replace(plant, errors=0, drafters=0, restarts=False))
        stage.check()
    finally:
        scheduler.close()
    assert stage.num_sessions == 0
    assert not own.sessions
    assert not stage.snapshots


def callers(outputs):
    return [Caller() for _ in outputs]


def check(events, outputs, plant):
    errors = [event for event in events if isinstance(event, OutriderError)]
    results = [
        (event, output)
        for event, output in zip(events, outputs, strict=True)
        if not isinstance(event, OutriderError)
    ]
    assert len(errors) == plant.errors
    assert all("planted" not in str(error) for error in errors), "its text is for the log"
    for result, output in results:
        assert result.token_ids == output.tokens
    assert sum(result.counters.drafter_faults for result, _ in results) == plant.drafters
    restarted = sum(result.counters.restarts for result, _ in results)
    assert (restarted > 1) == plant.restarts
    told = [line for result, _ in results for line in result.budget if "drafter failed" in line]
    assert len(told) == plant.drafters
    assert sum(result.counters.accepted for result, _ in results) > 0
    for result, _ in results:
        result.counters.check()


def test_a_sink_that_fails_ends_its_own_request(hybrid):
    outputs = hybrid.oracle("greedy", prompts(REQUESTS), TOKENS)
    stage = hybrid.stage("log", 8)
    own = engine(stage, SuffixDrafter)
    scheduler = Scheduler(own, own.tokenizer, admission())
    made = callers(outputs)
    made[3].at[3] = lambda: 1 / 0
    try:
        for output, caller in zip(outputs, made, strict=True):
            ask(scheduler, output.prompt, caller, TOKENS)
        for place, (output, caller) in enumerate(zip(outputs, made, strict=True)):
            if place != 3:
                assert caller.result().token_ids == output.tokens
        assert counters(scheduler)["tested"].accepted > 0
    finally:
        scheduler.close()
    assert made[3].ended.empty()
    assert stage.num_sessions == 0


def test_the_culprit_of_a_shared_pass_is_found(hybrid, monkeypatch):
    """A pass fails whenever one session is in it: that one ends, whatever runs beside it."""
    outputs = hybrid.oracle("greedy", prompts(REQUESTS), TOKENS)
    stage = hybrid.stage("log", 8)
    own = engine(stage, SuffixDrafter)
    scheduler = Scheduler(own, own.tokenizer, admission())
    evil, work = outputs[3].tokens[6], LayerRange.run_pass

    def failing(part, due):
        if any(evil in one.frame.window.tokens and one.frame.window.start > 60 for one in due):
            raise PlantedError("planted")
        return work(part, due)

    monkeypatch.setattr(LayerRange, "run_pass", failing)
    made = callers(outputs)
    try:
        for output, caller in zip(outputs, made, strict=True):
            ask(scheduler, output.prompt, caller, TOKENS)
        events = [caller.ended.get(timeout=SECONDS) for caller in made]
    finally:
        scheduler.close()
    ended = [place for place, event in enumerate(events) if isinstance(event, StageError)]
    assert 3 in ended
    assert len(ended) < REQUESTS
    for place, (event, output) in enumerate(zip(events, outputs, strict=True)):
        if place not in ended:
            assert event.token_ids == output.tokens
    assert stage.num_sessions == 0


@pytest.mark.parametrize("place", ["prompt", "text"])
def test_a_drafter_of_hidden_states_goes_on_after_a_lost_pass(hybrid, monkeypatch, place):
    """Rows that are run again are not shown to the drafter twice: same drafts, same acceptance."""
    asked = [random_tokens(150, seed=5), random_tokens(200, seed=6)]
    head = hybrid.heads["mtp"]

    def make():
        stage = hybrid.stage("log", 8)
        return engine(stage, lambda: HeadDrafter(head, GreedyChooser(vocab_size=VOCAB)), width=4)

    def both(own):
        running = [own.generate(prompt, max_tokens=TOKENS) for prompt in asked]
        iterators = [iter(one) for one in running]
        while any([next(iterator, None) for iterator in iterators]):
            pass
        return [one.result for one in running]

    expected = both(make())
    fault, number = Fault(after=True), 1 if place == "prompt" else 6
    monkeypatch.setattr(LocalStage, "run_batch", at_call(fault, number, LocalStage.run_batch))
    found = both(make())
    assert fault.raised == 1
    for result, truth in zip(found, expected, strict=True):
        assert result.token_ids == truth.token_ids
        assert result.counters.drafter_faults == 0
        assert result.counters.accepted > 0
        assert result.counters.accepted == truth.counters.accepted


def test_windows_in_flight_over_links_come_back_after_a_lost_pass(hybrid, monkeypatch):
    outputs = hybrid.oracle("greedy", prompts(), TOKENS)
    stage = ChainStage(hybrid.parts((1, 3), "log", 33))
    own = engine(stage, SuffixDrafter, width=4, depth=4)
    fault = Fault(after=True)
    monkeypatch.setattr(LayerRange, "run", at_call(fault, 40, LayerRange.run))
    running = [own.generate(output.prompt, max_tokens=TOKENS) for output in outputs]
    iterators = [iter(one) for one in running]
    while any([next(iterator, None) for iterator in iterators]):
        pass
    assert fault.raised == 1
    for generation, output in zip(running, outputs, strict=True):
        assert generation.result.token_ids == output.tokens
        generation.counters.check()
    assert max(generation.counters.max_in_flight for generation in running) > 1
    assert stage.num_sessions == 0


def test_a_void_that_fails_ends_its_own_request(hybrid, monkeypatch):
    outputs = hybrid.oracle("greedy", prompts(), TOKENS)
    stage = ChainStage(hybrid.parts((1, 3), "log", 33))
    own = engine(stage, SuffixDrafter, width=4, depth=4)
    fault = Fault()
    fault.armed.set()
    monkeypatch.setattr(ChainStage, "void", fault.wrap(ChainStage.void))
    running = [own.generate(output.prompt, max_tokens=TOKENS) for output in outputs]
    while not all(one.done for one in running):
        own.step()
    assert fault.raised == 1
    assert [type(one.fault) for one in running if one.fault] == [PlantedError]
    for generation, output in zip(running, outputs, strict=True):
        if generation.fault is None:
            assert generation.result.token_ids == output.tokens
        else:
            assert generation.result.finish_reason == "error"
            with pytest.raises(PlantedError):
                list(generation)
        generation.close()
    assert stage.num_sessions == 0


def test_scores_of_a_prompt_are_those_of_one_run_after_a_lost_pass(hybrid, monkeypatch):
    asked = [random_tokens(200, seed=7), random_tokens(210, seed=8)]

    def scores():
        own = engine(hybrid.stage("log", 8), None)
        requests = [
            own.prepare(p, sampling=SamplingParams(logprobs=1), max_tokens=2, score_prompt=True)
            for p in asked
        ]
        running = [own.begin(request) for request in requests]
        for _ in range(60):
            own.step(128)
        return [one.result.prompt_logprobs for one in running if one.done]

    expected = scores()
    assert [len(entries) for entries in expected] == [199, 209]
    fault = Fault(after=True)
    monkeypatch.setattr(LocalStage, "run_batch", at_call(fault, 2, LocalStage.run_batch))
    assert scores() == expected
    assert fault.raised == 1

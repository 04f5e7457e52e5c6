"""Many callers on one engine: each gets what it would get alone, and leaves nothing behind."""

import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from math import inf

import pytest

from outrider.assemble.limits import LentController
from outrider.assemble.memory_check import held_bytes
from outrider.costs.batch_model import BatchCostModel, Costs
from outrider.draft.base import ChainDrafter
from outrider.draft.lookup.suffix import SuffixDrafter
from outrider.engine.draft_budget import FixedBudget
from outrider.engine.facade import EngineFacade, GenerationResult
from outrider.engine.prefix import PrefixCache
from outrider.engine.scheduler import Scheduler
from outrider.engine.session import Piece
from outrider.errors import BusyError, OutriderError, RequestError, StageError
from outrider.sampling.params import SamplingParams
from tests.exactness.targets import SAMPLINGS, admission, engine, generate, prompts
from tests.helpers.checkpoints import VOCAB
from tests.helpers.runs import random_tokens
from tests.helpers.scripted import PARTLY_RIGHT, ScriptedDrafter

SECONDS = 60


@dataclass
class Caller:
    """Collects the events of one sequence."""

    pieces: list[Piece] = field(default_factory=list)
    ended: "queue.Queue[GenerationResult | OutriderError]" = field(default_factory=queue.Queue)
    at: dict[int, Callable[[], None]] = field(default_factory=dict)

    def __call__(self, event: object) -> None:
        if isinstance(event, Piece):
            self.pieces.append(event)
            self.at.get(len(self.pieces), lambda: None)()
        else:
            self.ended.put(event)

    def result(self) -> GenerationResult:
        event = self.ended.get(timeout=SECONDS)
        assert isinstance(event, GenerationResult), event
        return event


@pytest.fixture
def scheduled():
    """Makes schedulers and closes them; nothing may be left open."""
    made = []

    def make(stage, drafter=SuffixDrafter, *, prefix_bytes=0, width=8, **limits) -> Scheduler:
        own = engine(stage, drafter, width=width)
        if prefix_bytes:
            own.prefixes = PrefixCache(stage, prefix_bytes)
        scheduler = Scheduler(own, own.tokenizer, admission(**limits))
        made.append((scheduler, stage))
        return scheduler

    yield make
    for scheduler, stage in made:
        scheduler.close()
        assert stage.num_sessions == 0


def ask(scheduler, prompt, caller, max_tokens=40, settings=None, **more):
    sampling = SamplingParams(**(settings or {}))
    request = scheduler.prepare(prompt, sampling=sampling, max_tokens=max_tokens, **more)
    return scheduler.submit([(request, caller)])


def counters(scheduler):
    return scheduler.snapshot().result(timeout=SECONDS).counters


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_sixteen_callers_get_what_each_would_get_alone(hybrid, scheduled, sampling):
    outputs = hybrid.oracle(sampling, prompts(16), 40)
    stage = hybrid.stage("log", 8)
    packed = []
    poll = stage.run_batch
    stage.run_batch = lambda: (replies := poll(), packed.append(len(replies)))[0]
    scheduler = scheduled(stage)
    callers = [Caller() for _ in outputs]
    for output, caller in zip(outputs, callers, strict=True):
        ask(scheduler, output.prompt, caller, settings=SAMPLINGS[sampling])
    for output, caller in zip(outputs, callers, strict=True):
        result = caller.result()
        assert result.token_ids == output.tokens
        assert tuple(t for piece in caller.pieces for t in piece.tokens) == output.tokens
        assert "".join(piece.text for piece in caller.pieces) == result.text
    total = counters(scheduler)["tested"]
    total.check()
    assert 0 < total.accepted < total.verified, "drafts were kept and taken back"
    assert max(packed) == 16, "all ran in one pass"


def share(own: EngineFacade) -> BatchCostModel:
    """Let the sessions of an engine decide together what they draft."""
    verify = [1.0 + 0.001 * rows for rows in range(1, 129)]
    costs, pool = Costs(verify=verify, draft={"suffix": ()}, drafts=7), list[LentController]()
    company = BatchCostModel(costs)

    def lend():
        company.join()
        return pool.pop() if pool else LentController(costs, pool, company)

    def drafter(sampling, budget):
        return ChainDrafter(SuffixDrafter(), limit=budget.limit, keep=budget.keep)

    own.speculation = replace(own.speculation, budget=lend, drafter=drafter)
    return company


def test_sixteen_callers_who_decide_together_get_what_each_would_get_alone(hybrid, scheduled):
    outputs = hybrid.oracle("greedy", prompts(16), 40)
    scheduler = scheduled(hybrid.stage("log", 8))
    company, bounds = share(scheduler._engine), []
    callers = [Caller() for _ in outputs]
    for output, caller in zip(outputs, callers, strict=True):
        caller.at[10] = lambda: bounds.append(company.bound)
        ask(scheduler, output.prompt, caller)
    for output, caller in zip(outputs, callers, strict=True):
        assert caller.result().token_ids == output.tokens
    assert counters(scheduler)["tested"].verified > 0
    assert 2.0 <= min(bounds) < inf
    assert company.paces == {}, "who left holds nobody back"


def test_a_budget_is_told_of_the_rows_of_the_whole_pass(hybrid, scheduled, monkeypatch):
    told = []
    monkeypatch.setattr(FixedBudget, "share", lambda self, *told_of: told.append(told_of))
    timed = []
    monkeypatch.setattr(FixedBudget, "timed", lambda self, rows, *costs: timed.append(rows))
    stage = hybrid.stage("log", 8)
    passes, poll = [], stage.run_batch

    def watched():
        rows = [len(slot.queue[0].window.tokens) for slot in stage.held.values() if slot.queue]
        passes.append(rows)
        return poll()

    stage.run_batch = watched
    scheduler = scheduled(stage)
    callers = [Caller() for _ in range(3)]
    for caller, prompt in zip(callers, prompts(3), strict=True):
        ask(scheduler, prompt, caller, max_tokens=20)
    for caller in callers:
        caller.result()
    expected = sorted((sum(rows), len(rows), 0) for rows in passes[-5:] for _ in rows)
    count = len(expected)
    assert sorted(told[-count:]) == expected
    assert sorted(timed[-count:]) == sorted(sum(rows) for rows in passes[-5:] for _ in rows)
    assert max(len(rows) for rows in passes[-20:]) == 3
    assert any(len(set(rows)) > 1 for rows in passes[-20:] if len(rows) > 1)


def test_choices_of_one_seed_differ_and_repeat(hybrid, scheduled):
    scheduler = scheduled(hybrid.stage("log", 8))

    def run():
        callers = [Caller() for _ in range(3)]
        for choice, caller in enumerate(callers):
            settings = {"temperature": 1.0, "seed": 5, "choice": choice}
            ask(scheduler, prompts()[1], caller, settings=settings)
        return [caller.result().token_ids for caller in callers]

    first = run()
    assert len(set(first)) == 3
    assert run() == first


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_a_second_turn_goes_on_from_the_first(hybrid, scheduled, sampling):
    first = random_tokens(150, seed=3)
    second = [*first, *random_tokens(30, seed=4), *first[:40]]
    settings = SAMPLINGS[sampling]
    truth = generate(engine(hybrid.stage("log", 8), SuffixDrafter), second, settings, 30)
    scheduler = scheduled(hybrid.stage("log", 8), prefix_bytes=1 << 30)
    for prompt, owner, reused in [
        (first, "a", 0),
        (second, "a", 128),
        (second, "b", 0),
        (second, "b", 192),
        (first, "a", 128),
    ]:
        caller = Caller()
        ask(scheduler, prompt, caller, max_tokens=30, settings=settings, owner=owner)
        result = caller.result()
        assert result.timings["cache_n"] == reused, "never across owners"
        if prompt is second:
            assert result.token_ids == truth.result.token_ids
            for key in ("draft_n", "draft_n_accepted", "speculative_windows"):
                assert result.timings[key] == truth.result.timings[key]
    assert truth.counters.accepted > 0


def test_prefixes_are_bounded_in_bytes(hybrid, scheduled):
    stage = hybrid.stage("log", 8)
    stage.open(0, SamplingParams(), 1)
    empty = stage.snapshot(0, 0)
    stage.close(0)
    stage.drop_snapshot(0)
    most = 5 * empty
    scheduler = scheduled(stage, prefix_bytes=most)
    for seed in range(6):
        caller = Caller()
        ask(scheduler, random_tokens(70, seed=seed), caller, max_tokens=1)
        caller.result()
    seen = scheduler.snapshot().result(timeout=SECONDS)
    assert 0 < seen.prefixes < 6
    assert seen.prefix_bytes <= most


def test_a_caller_that_leaves_frees_its_place(hybrid, scheduled):
    outputs = hybrid.oracle("greedy", prompts(4), 40)
    stage = hybrid.stage("log", 8)
    drafters = []

    def drafter():
        output = outputs[len(drafters)]
        drafters.append(ScriptedDrafter(output.all_tokens, PARTLY_RIGHT, VOCAB))
        return drafters[-1]

    scheduler = scheduled(stage, drafter)
    callers = [Caller() for _ in outputs]
    tickets = []
    callers[0].at[3] = lambda: scheduler.cancel(tickets)
    callers[2].at[2] = lambda: 1 / 0  # a sink that fails counts as one that left
    tickets += ask(scheduler, outputs[0].prompt, callers[0])
    for output, caller in zip(outputs[1:], callers[1:], strict=True):
        ask(scheduler, output.prompt, caller)
    for place in (1, 3):
        assert callers[place].result().token_ids == outputs[place].tokens
    seen = scheduler.snapshot().result(timeout=SECONDS)
    assert seen.running == seen.waiting == stage.num_sessions == 0
    assert [drafter.closed for drafter in drafters] == [1] * 4
    assert callers[0].ended.empty()
    assert callers[2].ended.empty()


def test_bytes_and_the_queue_decide_who_runs(hybrid, scheduled):
    stage = hybrid.stage("log", 8)
    scheduler = scheduled(stage, max_bytes=100, max_queue=3, max_sequences=2)
    with pytest.raises(RequestError, match="up to 101 tokens needs 0 MiB of state"):
        ask(scheduler, [1] * 61, Caller())
    started, gate = threading.Event(), threading.Event()
    first, others = Caller(), [Caller() for _ in range(4)]
    first.at[1] = lambda: (started.set(), gate.wait(SECONDS))
    ask(scheduler, [1] * 20, first)
    started.wait(SECONDS)
    for caller in others:
        ask(scheduler, [1] * 20, caller, max_tokens=30)
    with pytest.raises(BusyError, match="queue of 3 is full"):
        ask(scheduler, [1], Caller())
    gate.set()
    for caller in [first, *others]:
        caller.result()
    seen = scheduler.snapshot().result(timeout=SECONDS)
    assert (seen.running, seen.waiting, seen.state_bytes) == (0, 0, 0)


def test_running_callers_move_on_beside_a_long_prompt(hybrid, scheduled):
    stage = hybrid.stage("log", 8)
    passes = []
    poll = stage.run_batch

    def watched():
        rows = [len(slot.queue[0].window.tokens) for slot in stage.held.values() if slot.queue]
        passes.append(rows)
        return poll()

    stage.run_batch = watched
    scheduler = scheduled(stage, None)
    running, late = Caller(), Caller()
    running.at[2] = lambda: ask(scheduler, random_tokens(400, seed=9), late, max_tokens=2)
    ask(scheduler, prompts()[1], running, max_tokens=40)
    late.result()
    running.result()
    shared = [rows for rows in passes if max(rows) > 1 and len(rows) == 2]
    assert len(shared) == 7, "400 rows, 64 a pass, each with a row of the other"
    assert all(sorted(rows)[0] == 1 and max(rows) <= 64 for rows in shared)


def test_prompts_share_a_pass_fairly(hybrid, scheduled):
    long, short = Caller(), Caller()
    order = []
    long.at[1] = lambda: order.append("long")
    short.at[1] = lambda: order.append("short")
    scheduler = scheduled(hybrid.stage("log", 8), None)
    pair = [(random_tokens(500, seed=1), long), (random_tokens(90, seed=2), short)]
    sampling = SamplingParams()
    requests = [
        (scheduler.prepare(p, sampling=sampling, max_tokens=2), caller) for p, caller in pair
    ]
    scheduler.submit(requests)
    short.result()
    long.result()
    assert order == ["short", "long"]


def test_a_failing_pass_ends_its_requests_and_not_the_server(hybrid, scheduled):
    stage = hybrid.stage("log", 8)
    poll, faults = (
        stage.run_batch,
        iter([RuntimeError("secret"), StageError("stage 0 died: restart.")]),
    )

    def failing():
        fault = next(faults, None)
        if fault is not None:
            raise fault
        return poll()

    stage.run_batch = failing
    scheduler = scheduled(stage)
    output = hybrid.oracle("greedy", prompts(), 40)[1]
    for expected in ("the engine failed on this request", "stage 0 died"):
        caller = Caller()
        ask(scheduler, output.prompt, caller)
        error = caller.ended.get(timeout=SECONDS)
        assert isinstance(error, StageError)
        assert expected in str(error)
        assert "secret" not in str(error)
    caller = Caller()
    ask(scheduler, output.prompt, caller)
    assert caller.result().token_ids == output.tokens


def test_draining_and_closing(hybrid, scheduled):
    scheduler = scheduled(hybrid.stage("log", 8))
    caller, waits = Caller(), threading.Event()
    caller.at[1] = waits.set
    ask(scheduler, prompts()[1], caller, max_tokens=400)
    waits.wait(SECONDS)
    scheduler.drain()
    with pytest.raises(BusyError, match="going down"):
        ask(scheduler, prompts()[1], Caller())
    scheduler.close()
    ended = caller.ended.get(timeout=SECONDS)
    assert isinstance(ended, BusyError | GenerationResult)
    with pytest.raises(BusyError):
        scheduler.snapshot().result(timeout=SECONDS)


@pytest.mark.parametrize("size", [1, 63, 64, 65, 200])
def test_a_prompt_is_scored_as_it_would_be_generated(hybrid, scheduled, size):
    plain = engine(hybrid.stage("log", 8), None)
    written = generate(plain, prompts()[1], {"logprobs": 2}, size).result
    whole = [*prompts()[1], *written.token_ids]
    scheduler = scheduled(hybrid.stage("log", 8), prefix_bytes=1 << 30)
    for _ in range(2):
        caller = Caller()
        settings = {"logprobs": 2, "repetition_penalty": 1.1}
        ask(scheduler, whole, caller, max_tokens=1, settings=settings, score_prompt=True)
        result = caller.result()
        scores = result.prompt_logprobs
        assert [entry.token for entry in scores] == whole[1:]
        assert scores[len(prompts()[1]) - 1 :] == written.logprobs
        assert len(result.logprobs) == 1


def test_what_admission_counts_is_never_exceeded(hybrid, scheduled):
    """The bytes that a sequence truly holds stay within those that it was admitted with."""
    stage = hybrid.stage("log", 8)
    spec = hybrid.decoder.state_spec("log", 8)
    held = []
    poll = stage.run_batch

    def watched():
        replies = poll()
        held.append(sum(slot.state.nbytes() for slot in stage.held.values()))
        return replies

    stage.run_batch = watched
    most = 3 * held_bytes(spec, 130)
    scheduler = scheduled(stage, max_bytes=most, state_bytes=lambda n: held_bytes(spec, n))
    callers = [Caller() for _ in range(6)]
    for caller in callers:
        ask(scheduler, random_tokens(90, seed=6), caller, max_tokens=40)
    for caller in callers:
        caller.result()
    assert most / 3 < max(held) <= most

"""Many sessions through one engine: each as if it ran alone; leaving early frees everything."""

import gc

import pytest

from outrider.records import Window
from outrider.sampling.params import SamplingParams
from tests.exactness.cells import Cell, drafter_for, make_stage
from tests.exactness.targets import SAMPLINGS, engine, finished, generate, prompts
from tests.helpers.checkpoints import VOCAB
from tests.helpers.scripted import PARTLY_RIGHT, ScriptedDrafter

MIXED = [
    ({}, 40),
    (SAMPLINGS["seeded"], 17),
    ({"temperature": 0.7, "seed": 4}, 30),
    ({"repetition_penalty": 1.2}, 3),
    ({"temperature": 1.3, "top_k": 5, "seed": 9}, 25),
    ({"logit_bias": {5: 3.0}, "logprobs": 0}, 33),
]


def speculating(target, depth, truths):
    cell = Cell(method="partly", depth=depth, late=depth > 1)
    return engine(make_stage(target, cell), drafter_for(target, "partly", truths), depth=depth)


def plain_engine(target):
    return engine(make_stage(target, Cell(method="off")), None)


@pytest.mark.parametrize("depth", [1, 3])
def test_sessions_with_different_settings_do_not_disturb_each_other(hybrid, depth):
    alone = [
        generate(plain_engine(hybrid), prompt, settings, size).result
        for prompt, (settings, size) in zip(prompts(), MIXED, strict=True)
    ]
    truths = iter(
        [[*prompt, *result.token_ids] for prompt, result in zip(prompts(), alone, strict=True)]
    )
    made = speculating(hybrid, depth, truths)
    running = [
        made.generate(prompt, sampling=SamplingParams(**settings), max_tokens=size)
        for prompt, (settings, size) in zip(prompts(), MIXED, strict=True)
    ]
    iterators = [iter(generation) for generation in running]
    while any([next(iterator, None) for iterator in iterators]):
        made.stage.check()
    for generation, expected in zip(running, alone, strict=True):
        generation.counters.check()
        assert generation.result.token_ids == expected.token_ids
        assert generation.result.text == expected.text
        assert generation.result.logprobs == expected.logprobs
    assert made.stage.num_sessions == 0


def test_a_session_that_joins_late_changes_nothing(hybrid):
    first, second = hybrid.oracle("greedy", prompts(), 48)[1:3]
    made = speculating(hybrid, 1, iter([first.all_tokens, second.all_tokens]))
    early = made.generate(first.prompt, max_tokens=48)
    iterator = iter(early)
    for _ in range(5):
        next(iterator)
    late = made.generate(second.prompt, max_tokens=48)
    finished(late)
    list(iterator)
    assert early.result.token_ids == first.tokens
    assert late.result.token_ids == second.tokens


@pytest.mark.parametrize("depth", [1, 4])
def test_cancelling_in_the_middle_frees_the_state(hybrid, depth):
    output = hybrid.oracle("greedy", prompts(), 48)[1]
    drafters = []

    def make():
        drafters.append(ScriptedDrafter(output.all_tokens, PARTLY_RIGHT, VOCAB))
        return drafters[-1]

    stage = make_stage(hybrid, Cell(method="partly", depth=depth, late=depth > 1))
    made = engine(stage, make, depth=depth)
    leaving, staying = (made.generate(output.prompt, max_tokens=48) for _ in range(2))
    iterator = iter(leaving)
    for _ in range(3):
        next(iterator)
    assert stage.num_sessions == 2
    leaving.close()
    leaving.close()
    assert stage.num_sessions == 1
    assert drafters[0].closed == 1
    assert leaving.result.finish_reason == "cancelled"
    given = leaving.result.token_ids
    assert given == output.tokens[: len(given)]
    leaving.counters.check()
    finished(staying)
    assert staying.result.token_ids == output.tokens
    assert stage.num_sessions == 0


def test_cancelling_before_the_first_token(hybrid):
    made = plain_engine(hybrid)
    generation = made.generate(prompts()[0], max_tokens=5)
    generation.close()
    assert generation.result.token_ids == ()
    assert generation.result.finish_reason == "cancelled"
    assert made.stage.num_sessions == 0


def test_dropping_a_request_frees_its_state(hybrid):
    made = plain_engine(hybrid)
    generation = made.generate(prompts()[0], max_tokens=5)
    iterator = iter(generation)
    next(iterator)
    del generation, iterator
    gc.collect()
    assert made.stage.num_sessions == 0


def test_closing_the_engine_ends_all_requests(hybrid):
    made = plain_engine(hybrid)
    running = [made.generate(prompt, max_tokens=9) for prompt in prompts()[:2]]
    next(iter(running[0]))
    made.close()
    assert [len(list(generation)) for generation in running] == [0, 1]
    assert {generation.result.finish_reason for generation in running} == {"cancelled"}
    assert made.stage.num_sessions == 0


def test_a_window_from_the_future_is_refused(hybrid):
    stage = hybrid.stage("log", 8)
    stage.open(0, SamplingParams(), 1)
    stage.submit(Window(session=0, id=0, epoch=0, start=3, floor=3, tokens=(1,), wanted=1))
    (reply,) = stage.run_batch()
    assert "a window starts at 3, but only 0 tokens came" in str(reply.fault)

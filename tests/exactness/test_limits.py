"""Where a request ends: text, tokens, state and counters are cut at the same token."""

import pytest

from outrider.errors import RequestError
from tests.exactness.cells import Cell, make_stage
from tests.exactness.targets import Letters, engine, generate, prompts
from tests.helpers.checkpoints import VOCAB
from tests.helpers.runs import random_tokens
from tests.helpers.scripted import ALWAYS_RIGHT, PARTLY_RIGHT, ScriptedDrafter
from tests.oracle.decoder import cut, decode

SIZE = 48
CONTEXT = 512  # max_position_embeddings of the tiny checkpoints


@pytest.fixture(params=[1, 4], ids=["depth1", "depth4"])
def depth(request):
    return request.param


def output_of(target):
    return target.oracle("greedy", prompts(), SIZE)[1]


def run(target, output, *, depth=1, script=ALWAYS_RIGHT, max_tokens=SIZE, ends=(), **more):
    drafter = ScriptedDrafter(output.all_tokens, script, VOCAB)
    stage = make_stage(target, Cell(method="right", depth=depth, late=depth > 1))
    made = engine(stage, lambda: drafter, depth=depth, tokenizer=Letters(ends))
    return generate(made, output.prompt, {}, max_tokens, **more), drafter


def same(generation, ending):
    result = generation.result
    assert (result.token_ids, result.text) == (ending.tokens, ending.text)
    assert result.finish_reason == ending.reason
    assert result.usage["completion_tokens"] == len(ending.tokens)
    assert result.timings["predicted_n"] == len(ending.tokens)


@pytest.mark.parametrize("place", [0, 3, 11])
def test_an_end_token_inside_a_window(hybrid, depth, place):
    output = output_of(hybrid)
    ends = (output.tokens[place],)
    generation, _ = run(hybrid, output, depth=depth, ends=ends)
    same(generation, cut(output.tokens, Letters().decode, max_tokens=SIZE, end_tokens=ends))


def test_ignore_eos(hybrid, depth):
    output = output_of(hybrid)
    generation, _ = run(hybrid, output, depth=depth, ends=output.tokens[:5], ignore_eos=True)
    same(generation, cut(output.tokens, Letters().decode, max_tokens=SIZE))


@pytest.mark.parametrize(("start", "length"), [(0, 1), (5, 4), (13, 5), (40, 2)])
def test_a_stop_string_over_token_borders(hybrid, depth, start, length):
    output = output_of(hybrid)
    stop = Letters().decode(output.tokens)[start : start + length]
    ending = cut(output.tokens, Letters().decode, max_tokens=SIZE, stops=[stop])
    generation, _ = run(hybrid, output, depth=depth, stop=[stop])
    same(generation, ending)
    assert ending.reason == "stop"
    assert stop not in generation.result.text


@pytest.mark.parametrize("size", [1, 2, 8, 9, 10])
def test_max_tokens(hybrid, depth, size):
    output = output_of(hybrid)
    generation, _ = run(hybrid, output, depth=depth, max_tokens=size)
    same(generation, cut(output.tokens, Letters().decode, max_tokens=size))
    assert generation.counters.cut == 0


@pytest.mark.parametrize("script", [ALWAYS_RIGHT, PARTLY_RIGHT])
def test_a_proposal_never_exceeds_what_remains(hybrid, depth, script):
    output = output_of(hybrid)
    generation, drafter = run(hybrid, output, depth=depth, script=script, max_tokens=21)
    last = len(output.prompt) + 21
    assert drafter.asked
    assert all(budget >= 1 and size + budget <= last - 1 for size, budget in drafter.asked)
    assert generation.counters.cut == 0


def test_drafters_observe_every_token_once_and_in_order(hybrid, depth):
    output = output_of(hybrid)
    _, drafter = run(hybrid, output, depth=depth, script=PARTLY_RIGHT)
    seen = []
    for commit in drafter.commits:
        assert commit.position == len(seen)
        seen += commit.tokens
    assert seen == output.all_tokens[: len(seen)]
    assert drafter.closed == 1


@pytest.mark.parametrize("room", [1, 2, 5])
def test_the_context_ends_with_length(dense, depth, room):
    prompt = random_tokens(CONTEXT - room, seed=5)
    output = decode(dense.oracle_model, [prompt], {}, room)[0]
    generation, _ = run(dense, output, depth=depth, max_tokens=None)
    same(generation, cut(output.tokens, Letters().decode, max_tokens=room))


@pytest.mark.parametrize(
    ("prompt", "more", "message"),
    [
        ([], {}, "the prompt is empty"),
        ("", {}, "the prompt is empty"),
        ([1] * CONTEXT, {}, "the prompt has 512 tokens and the context 512"),
        ([1, VOCAB], {}, f"prompt token {VOCAB} is outside the vocabulary of {VOCAB}"),
        ([-1], {}, "prompt token -1 is outside the vocabulary"),
        ([1], {"max_tokens": 0}, "max_tokens = 0 must be 1 or more"),
        ([1], {"max_tokens": -3}, "max_tokens = -3 must be 1 or more"),
        ([1], {"stop": [""]}, "stop = '' would end every output at once"),
        ([1], {"method": "dspark"}, "method = 'dspark' is not the one loaded"),
    ],
)
def test_requests_that_cannot_be_served(dense, prompt, more, message):
    made = engine(make_stage(dense, Cell(method="off")), None)
    with pytest.raises(RequestError, match=message):
        made.generate(prompt, **more)
    assert made.stage.num_sessions == 0

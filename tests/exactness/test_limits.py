"""Where a request ends: text, tokens, state and counters are cut at the same token."""

import pytest
import torch

from outrider.errors import RequestError
from outrider.sampling.params import SamplingParams
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
        (None, {}, "prompt = None is neither text nor a list of token ids: give one of them"),
        (5, {}, "prompt = 5 is neither text nor a list"),
        (b"ab", {}, "prompt = b'ab' is neither text nor a list"),
        ({"a": 1}, {}, "is neither text nor a list"),
        (["a", "b"], {}, "the prompt holds 'a', which is no token id: .* several prompts are req"),
        ([[1, 2]], {}, r"the prompt holds \[1, 2\], which is no token id"),
        ([1.5], {}, "the prompt holds 1.5, which is no token id"),
        ([65, True], {}, "the prompt holds True, which is no token id"),
        ("a\ud83d", {}, r"the prompt holds '\\ud83d' at 1, half of a surrogate pair"),
        ([1], {"max_tokens": "8"}, "max_tokens = '8' is no whole number: use 1 or more"),
        ([1], {"max_tokens": 8.0}, "max_tokens = 8.0 is no whole number"),
        ([1], {"max_tokens": True}, "max_tokens = True is no whole number"),
        ([1], {"stop": [1]}, r"stop = \[1\] is neither a text nor a list of texts"),
        ([1], {"stop": 5}, "stop = 5 is neither a text nor a list of texts"),
        ([1], {"stop": ""}, "stop = '' would end every output at once"),
        ([1], {"method": ["off"]}, r"method = \['off'\] is not the one loaded"),
        ([1], {"sampling": {"temperature": 1}}, "is no SamplingParams: give one"),
        ([1], {"ignore_eos": "no"}, "ignore_eos = 'no' is neither true nor false"),
    ],
)
def test_requests_that_cannot_be_served(dense, prompt, more, message):
    made = engine(make_stage(dense, Cell(method="off")), None)
    with pytest.raises(RequestError, match=message):
        made.generate(prompt, **more)
    assert made.stage.num_sessions == 0


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"max_draft_tokens": "2"}, "max_draft_tokens = '2' is no whole number: use 0 or more"),
        ({"max_draft_tokens": -1}, "max_draft_tokens = -1 must be 0 or more"),
        ({"score_prompt": True}, r"score_prompt = True needs sampling\.logprobs"),
        (
            {"score_prompt": True, "sampling": SamplingParams(temperature=0.5)},
            r"score_prompt = True needs sampling\.logprobs",
        ),
    ],
)
def test_requests_that_cannot_be_prepared(dense, more, message):
    made = engine(make_stage(dense, Cell(method="off")), None)
    with pytest.raises(RequestError, match=message):
        made.prepare([1] * 300, **more)


def test_a_scored_prompt_of_several_pieces_ends(dense):
    made = engine(make_stage(dense, Cell(method="off")), None)
    sampling = SamplingParams(logprobs=0)
    request = made.prepare([5] * 300, sampling=sampling, max_tokens=3, score_prompt=True)
    generation = made.begin(request)
    for _ in range(20):
        made.step()
    assert generation.done
    assert len(generation.result.prompt_logprobs) == 299
    assert len(generation.result.token_ids) == 3


def test_other_sequences_of_whole_numbers_are_prompts(dense):
    made = engine(make_stage(dense, Cell(method="off")), None)
    for prompt in ((1, 2), torch.tensor([1, 2]), range(1, 3), torch.tensor([1, 2]).numpy()):
        prepared = made.prepare(prompt, max_tokens=3)
        assert prepared.tokens == (1, 2)
        assert all(type(token) is int for token in prepared.tokens)


def test_a_plain_string_is_one_stop_string(dense):
    made = engine(make_stage(dense, Cell(method="off")), None)
    assert made.prepare([1], stop="ab").stop == ("ab",)
    assert made.prepare([1], stop=None).stop == ()
    whole = generate(made, [1, 2, 3], {}, 12).result.text
    stop = whole[3:5]
    stopped = made.generate([1, 2, 3], max_tokens=12, stop=stop)
    assert "".join(piece.text for piece in stopped) == whole[: whole.index(stop)]
    assert stopped.result.finish_reason == "stop"


def test_a_closed_engine_begins_nothing(dense):
    made = engine(make_stage(dense, Cell(method="off")), None)
    prepared, running = made.prepare([1], max_tokens=3), made.generate([1, 2], max_tokens=3)
    made.close()
    assert running.result.finish_reason == "cancelled"
    with pytest.raises(RequestError, match="the engine is closed and runs no more requests"):
        made.generate([1])
    with pytest.raises(RequestError, match="the engine is closed"):
        made.begin(prepared)
    assert made.stage.num_sessions == 0
    made.close()


def test_figures_of_a_request_left_early_are_final(dense):
    made = engine(make_stage(dense, Cell(method="off")), None)
    generation = made.generate([1, 2, 3], max_tokens=9, ignore_eos=True)
    pieces = iter(generation)
    given = [next(pieces) for _ in range(4)]
    generation.close()
    result = generation.result
    assert result.finish_reason == "cancelled"
    assert result.token_ids == tuple(token for piece in given for token in piece.tokens)
    assert result.timings["predicted_ms"] > 0
    assert result.timings == generation.result.timings

"""A row has the same bits in every window, and a settled state those of a stepped one."""

import itertools
import random

import pytest
import torch

from outrider.errors import StateError
from outrider.kernels.pass_plan import Span
from outrider.models.decoder import Decoder
from outrider.state.spec import POLICIES, Rollback
from tests.helpers.runs import make_decoder, random_tokens, run, same_state, step

FAMILIES = ("qwen3", "llama-biased", "mistral", "qwen3_5", "qwen3_next")


@pytest.fixture(scope="module", params=FAMILIES)
def decoder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Decoder:
    return make_decoder(request.param, tmp_path_factory.mktemp(request.param))


@pytest.fixture(scope="module")
def hybrid(tmp_path_factory: pytest.TempPathFactory) -> Decoder:
    return make_decoder("qwen3_5", tmp_path_factory.mktemp("hybrid"))


@pytest.mark.parametrize("prompt", [1, 63, 100])
@torch.inference_mode()
def test_windows_of_every_width_equal_steps(decoder: Decoder, prompt: int) -> None:
    tokens = random_tokens(prompt + 64)
    plain = decoder.new_state("log", 0)
    run(decoder, plain, tokens[:prompt], revocable=False)
    steps = step(decoder, plain, tokens[prompt:])
    for width in range(1, 65):
        state = decoder.new_state("log", 64)
        run(decoder, state, tokens[:prompt], revocable=False)
        window = run(decoder, state, tokens[prompt : prompt + width])
        assert torch.equal(window, steps[:width]), f"window of {width} rows"


@pytest.mark.parametrize("policy", POLICIES)
@torch.inference_mode()
def test_settled_state_equals_stepped_state(decoder: Decoder, policy: str) -> None:
    tokens = random_tokens(400)
    chance = random.Random(3)
    state = decoder.new_state(policy, 16)
    plain = decoder.new_state(policy, 0)
    run(decoder, state, tokens[:40], revocable=False)
    run(decoder, plain, tokens[:40], revocable=False)
    position, partly = 40, 0
    while position < 300:
        rows, wrong = chance.randint(1, 16), random_tokens(16, seed=position)
        keep = chance.randint(1, rows)
        window = tokens[position : position + keep] + wrong[: rows - keep]
        if state.rollback(rows) is Rollback.CHECKPOINT:
            saved = state.checkpoint()
            run(decoder, state, window, revocable=False)
            state.restore(saved)
            run(decoder, state, window[:keep], revocable=False)
        else:
            run(decoder, state, window)
            state.settle(position + keep)
            state.raise_floor(position + keep)
        step(decoder, plain, tokens[position : position + keep])
        position += keep
        partly += keep < rows
        state.check()
        assert same_state(state, plain), f"after keeping {keep} of {rows} at {position}"
    assert partly > 5


@torch.inference_mode()
def test_a_prompt_cut_anywhere_gives_the_same_bits(decoder: Decoder) -> None:
    tokens = random_tokens(260)
    whole = decoder.new_state("log", 8)
    logits = run(decoder, whole, tokens, revocable=False)
    for cuts in ([64], [1, 2], [33, 64, 65, 200], [128, 192], [257]):
        state = decoder.new_state("log", 8)
        parts = [0, *cuts, len(tokens)]
        pieces = [
            run(decoder, state, tokens[a:b], revocable=False) for a, b in itertools.pairwise(parts)
        ]
        assert torch.equal(torch.cat(pieces), logits), f"cut at {cuts}"
        assert same_state(state, whole)


@torch.inference_mode()
def test_a_restored_checkpoint_continues_with_the_same_bits(decoder: Decoder) -> None:
    tokens = random_tokens(150)
    state = decoder.new_state("checkpoint", 0)
    run(decoder, state, tokens[:96], revocable=False)
    saved = state.checkpoint()
    first = run(decoder, state, tokens[96:], revocable=False)
    state.restore(saved)
    assert torch.equal(run(decoder, state, tokens[96:], revocable=False), first)


@torch.inference_mode()
def test_interleaved_and_packed_sequences_equal_separate_ones(decoder: Decoder) -> None:
    one, two = random_tokens(90, seed=5), random_tokens(70, seed=6)
    alone = [run(decoder, decoder.new_state("log", 8), t, revocable=False) for t in (one, two)]
    states = [decoder.new_state("log", 8) for _ in range(2)]
    hidden = decoder.embed(torch.tensor(one[:50] + two[:61]))
    hidden, _ = decoder.run(
        hidden, [Span(states[0], 50, revocable=False), Span(states[1], 61, revocable=False)]
    )
    packed = decoder.logits(hidden)
    assert torch.equal(packed[:50], alone[0][:50])
    assert torch.equal(packed[50:], alone[1][:61])
    for first, second in zip(range(50, 90, 8), range(61, 70, 2), strict=True):
        hidden = decoder.embed(torch.tensor(one[first : first + 8] + two[second : second + 2][:2]))
        rows = [8, len(two[second : second + 2])]
        spans = [Span(s, n, revocable=False) for s, n in zip(states, rows, strict=True)]
        hidden, _ = decoder.run(hidden, spans)
        logits = decoder.logits(hidden)
        assert torch.equal(logits[:8], alone[0][first : first + 8])
        assert torch.equal(logits[8:], alone[1][second : second + 2])


@torch.inference_mode()
def test_several_windows_in_flight_settle_to_any_row(hybrid: Decoder) -> None:
    tokens = random_tokens(200)
    for keep in range(50, 99):
        state = hybrid.new_state("log", 48)
        run(hybrid, state, tokens[:50], revocable=False)
        for first in range(50, 98, 12):
            run(hybrid, state, tokens[first : first + 12])
        state.settle(keep)
        plain = hybrid.new_state("log", 0)
        run(hybrid, plain, tokens[:keep], revocable=False)
        assert same_state(state, plain)
        state.raise_floor(keep)
        again = run(hybrid, state, tokens[keep : keep + 4])
        assert torch.equal(again, step(hybrid, plain, tokens[keep : keep + 4]))


@torch.inference_mode()
def test_a_second_rollback_is_right_or_refused(hybrid: Decoder) -> None:
    tokens = random_tokens(120)
    state = hybrid.new_state("log", 8)
    run(hybrid, state, tokens[:70], revocable=False)
    run(hybrid, state, tokens[70:78])
    state.settle(75)
    state.settle(72)
    plain = hybrid.new_state("log", 0)
    run(hybrid, plain, tokens[:72], revocable=False)
    assert same_state(state, plain)
    with pytest.raises(StateError, match="cannot go back to 69 tokens: final below 70"):
        state.settle(69)
    with pytest.raises(StateError, match="cannot keep 73 tokens"):
        state.settle(73)
    with pytest.raises(StateError, match="exceed the rollback capacity of 8"):
        run(hybrid, state, tokens[72:80])


@torch.inference_mode()
def test_a_skipped_rollback_is_noticed(hybrid: Decoder) -> None:
    """The comparison itself can fail: one row too many kept gives another state."""
    tokens = random_tokens(80)
    state, plain = hybrid.new_state("log", 8), hybrid.new_state("log", 0)
    run(hybrid, state, tokens[:60], revocable=False)
    run(hybrid, plain, tokens[:60], revocable=False)
    run(hybrid, state, [*tokens[60:62], 1, 2])
    step(hybrid, plain, tokens[60:62])
    state.settle(63)
    assert not same_state(state, plain)
    state.settle(62)
    assert same_state(state, plain)

"""Random scripts of run and settle against fresh runs, and two sequences interleaved."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from outrider.kernels.pass_plan import Span
from outrider.state.spec import POLICIES, Rollback
from tests.helpers.runs import run, same_state, step

CAPACITY = 9
tokens = st.integers(0, 95)
rounds = st.lists(
    st.tuples(st.lists(tokens, min_size=1, max_size=12), st.integers(0, 12)), max_size=8
)


def play(decoder, state, script, kept):
    """Run each window and keep some of its rows, the way a stage does it."""
    for window, keep in script:
        keep = min(keep, len(window))
        start = state.length
        if state.rollback(len(window)) is not Rollback.CHECKPOINT:
            run(decoder, state, window)
            state.settle(start + keep)
        else:
            saved = state.checkpoint()
            run(decoder, state, window, revocable=False)
            if keep < len(window):
                state.restore(saved)
                if keep:
                    run(decoder, state, window[:keep], revocable=False)
        kept += window[:keep]
        state.raise_floor(state.length)
        state.check()


@pytest.mark.parametrize("policy", POLICIES)
@given(prompt=st.lists(tokens, min_size=1, max_size=40), script=rounds)
@settings(max_examples=6, deadline=None, derandomize=True)
def test_any_script_leaves_the_state_of_a_fresh_run(hybrid, policy, prompt, script):
    decoder, kept = hybrid.decoder, list(prompt)
    state, fresh = (decoder.new_state(policy, CAPACITY) for _ in range(2))
    with torch.inference_mode():
        step(decoder, state, prompt)
        play(decoder, state, script, kept)
        step(decoder, fresh, kept)
        assert same_state(state, fresh)
        assert torch.equal(step(decoder, state, [7]), step(decoder, fresh, [7]))


@pytest.mark.parametrize("policy", POLICIES)
@given(one=rounds, other=rounds)
@settings(max_examples=4, deadline=None, derandomize=True)
def test_two_sequences_in_one_pass_are_as_if_apart(hybrid, policy, one, other):
    decoder = hybrid.decoder
    together, apart = ([decoder.new_state(policy, 64) for _ in range(2)] for _ in range(2))
    with torch.inference_mode():
        for (first, _), (second, _) in zip(one, other, strict=False):
            rows = decoder.embed(torch.tensor([*first, *second]))
            spans = [
                Span(together[0], len(first), revocable=False),
                Span(together[1], len(second), revocable=False),
            ]
            logits = decoder.logits(decoder.run(rows, spans)[0])
            expected = [
                run(decoder, state, window, revocable=False)
                for state, window in zip(apart, (first, second), strict=True)
            ]
            assert torch.equal(logits, torch.cat(expected))
        assert all(same_state(a, b) for a, b in zip(together, apart, strict=True))

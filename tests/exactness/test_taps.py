"""A drafter gets the hidden states of exactly the kept rows, each with the token behind it."""

import pytest
import torch

from outrider.errors import ConfigError
from outrider.records import Needs
from tests.exactness.targets import engine, generate
from tests.helpers.checkpoints import VOCAB
from tests.helpers.runs import random_tokens
from tests.helpers.scripted import PARTLY_RIGHT, ScriptedDrafter


def run(target, policy, prompt):
    """Generate with a drafter that errs now and then; it and the oracle's hidden states."""
    (truth,) = target.oracle("greedy", [prompt], 32)
    layers = target.decoder.config.num_layers
    needs = Needs((*range(-1, layers - 1), layers))
    drafter = ScriptedDrafter(truth.all_tokens, PARTLY_RIGHT, VOCAB, needs=needs)
    made = engine(target.stage(policy, 8), lambda: drafter)
    generation = generate(made, prompt, {}, 32)
    assert generation.result.token_ids == truth.tokens
    assert 0 < generation.counters.accepted < generation.counters.verified
    with torch.no_grad():
        out = target.oracle_model(torch.tensor([truth.all_tokens]), output_hidden_states=True)
    # transformers' last hidden state is the one behind the final norm.
    return drafter, truth.all_tokens, torch.cat(out.hidden_states, -1)[0]


@pytest.mark.parametrize("policy", ["log", "snapshots", "checkpoint"])
@pytest.mark.parametrize("length", [1, 20, 256, 300])
def test_every_kept_row_comes_once(hybrid, policy, length):
    check(*run(hybrid, policy, random_tokens(length, seed=length)), length)


def test_dense(dense):
    check(*run(dense, "log", random_tokens(300, seed=3)), 300)


def check(drafter, tokens, states, length):
    rows = 0
    for commit in drafter.commits:
        count = len(commit.features)
        first = commit.position + len(commit.tokens) - 1 - count
        assert first == rows
        assert list(commit.tokens[-count:]) == tokens[rows + 1 : rows + 1 + count]
        torch.testing.assert_close(
            commit.features, states[rows : rows + count], atol=1e-4, rtol=1e-4
        )
        rows += count
    prompt_commits = [commit for commit in drafter.commits if commit.position < length]
    assert [len(commit.features) for commit in prompt_commits] == [
        min(256, length - start) for start in range(0, length, 256)
    ]
    assert rows > length + 16


def test_without_taps_the_prompt_is_one_commit(hybrid):
    prompt = random_tokens(300, seed=300)
    (truth,) = hybrid.oracle("greedy", [prompt], 32)
    drafter = ScriptedDrafter(truth.all_tokens, PARTLY_RIGHT, VOCAB)
    generate(engine(hybrid.stage("log", 8), lambda: drafter), prompt, {}, 32)
    assert len(drafter.commits[0].tokens) == 301
    assert all(commit.features is None for commit in drafter.commits)


def test_windows_in_flight_are_refused(hybrid):
    drafter = ScriptedDrafter((), PARTLY_RIGHT, VOCAB, needs=Needs((0,)))
    for windows in ({"depth": 2}, {"runahead": 20}):
        with pytest.raises(ConfigError, match="hidden states of each window before it drafts"):
            engine(hybrid.stage("log", 32), lambda: drafter, **windows).generate([1, 2])

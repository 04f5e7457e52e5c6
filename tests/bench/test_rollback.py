"""Acceptance on every rollback path of a real hybrid model equals a count made by hand."""

from dataclasses import replace
from itertools import count

import pytest

from outrider.bench import record
from outrider.bench.legs import Refusal
from outrider.bench.peers import PeerTarget, make
from outrider.bench.run import Settings, measure
from outrider.bench.workload import Prompt, Workload
from outrider.engine.facade import EngineFacade
from outrider.stage.local import LocalStage
from tests.bench.world import Letters, ScriptedDrafter, World, make_engine
from tests.helpers.checkpoints import save_model
from tests.helpers.runs import make_decoder, random_tokens

TOKENS = 1 + 3 * 6
"""The prefill's token, then 6 rounds of 2 drafts kept and the target's own token."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("hybrid")


@pytest.fixture(scope="module")
def decoder(folder):
    return make_decoder("qwen3_5", folder)


def engine_on(decoder, policy, capacity, drafter) -> EngineFacade:
    stage = LocalStage(decoder, policy, capacity)
    return make_engine(stage, drafter)


@pytest.mark.parametrize(
    ("policy", "capacity", "path"),
    [
        ("log", 5, "log"),
        ("snapshots", 5, "snapshots"),
        ("checkpoint", 5, "checkpoint"),
        ("log", 2, "checkpoint"),
    ],
)
def test_acceptance_equals_a_hand_count(decoder, policy, capacity, path):
    prompt = [9, *random_tokens(11)]
    plain = engine_on(decoder, policy, capacity, lambda: None)
    generation = plain.generate(prompt, max_tokens=TOKENS, ignore_eos=True, method="off")
    output = [*prompt, *(token for piece in generation for token in piece.tokens), *[0] * 9]
    world = World()
    ticks = count()
    tools = replace(world.tools, clock=lambda: float(next(ticks)))
    engine = engine_on(
        decoder,
        policy,
        capacity,
        lambda: ScriptedDrafter(world, wrong=2, known=lambda place: output[place]),
    )
    words = " ".join(map(str, prompt))
    workload = Workload(name="one", prompts=(Prompt(id="p", text=words, category="c"),))
    settings = Settings(tokens=TOKENS, repeats=1, max_drift=10.0, calibration_repeats=1)
    run = measure(engine, Letters().encode, workload, settings, tools)
    counters = record.build(run, "suffix", {})["counters"]
    # Four drafts of which the third is wrong, but two right ones at the end of the budget.
    assert counters["speculative_windows"] == 6
    assert counters["speculative_verified_n"] == 5 * 4 + 2
    assert counters["speculative_accepted_n"] == 6 * 2
    assert counters[f"rollback_{path}_n"] == 5
    assert run.gates[0].state == "passed"


def test_transformers_runs_plainly_and_its_refusal_is_passed_on(folder, decoder):
    target = PeerTarget(target=folder, draft=None, dtype="float32", device="cpu")
    plain, lookup = make("transformers", target)
    prompt = random_tokens(12)
    ours = engine_on(decoder, "log", 5, lambda: None)
    generation = ours.generate(prompt, max_tokens=9, ignore_eos=True, method="off")
    leg = plain.run(prompt, 9, World().clock)
    assert leg.tokens == tuple(token for piece in generation for token in piece.tokens)
    assert [count for count, _ in leg.marks] == list(range(1, 10))
    with pytest.raises(Exception, match=r"(?i)assisted|stateful"):
        lookup.run(prompt, 9, World().clock)


def test_transformers_prompt_lookup_runs_on_dense_models(tmp_path):
    save_model("llama", tmp_path)
    target = PeerTarget(target=tmp_path, draft=tmp_path, dtype="float32", device="cpu")
    plain, lookup, assisted = make("transformers", target)
    prompt = [5, 6, 7, 8] * 4
    expected = plain.run(prompt, 9, World().clock).tokens
    for peer in (lookup, assisted):
        leg = peer.run(prompt, 9, World().clock)
        assert leg.tokens == expected
        assert leg.timed == 9 - leg.marks[0][0]


def test_a_model_that_transformers_cannot_load_is_a_refusal(tmp_path):
    target = PeerTarget(target=tmp_path, draft=None, dtype="float32", device="cpu")
    (peer,) = make("transformers", target)
    with pytest.raises(Refusal, match=r"config|model"):
        peer.run([1], 4, World().clock)

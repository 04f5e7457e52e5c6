"""llama.cpp as target and draft: every method gives what plain decoding gives, and rolls back."""

import gc
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from outrider import Engine, SpeculativeConfig, TargetConfig, VerifyWindowConfig, demo
from outrider.draft.base import ChainDrafter, Drafter
from outrider.draft.lookup.suffix import SuffixDrafter
from outrider.draft.model.draft_model import DraftModel, DraftModelDrafter
from outrider.draft.token_choice import GreedyChooser
from outrider.kernels.pass_plan import Span
from outrider.llamacpp.llama_context import ContextSettings, LlamaContext, LlamaWeights, Snapshots
from outrider.llamacpp.llama_model import LlamaModel, LlamaStage
from outrider.llamacpp.llama_state import LlamaState
from outrider.models.model_file import load_tokenizer
from outrider.sampling.params import SamplingParams
from outrider.telemetry.counters import Counters, merge
from recipes import gguf
from tests.exactness.targets import engine

WIDTH, TOKENS, PROMPTS = 4, 40, 3
LONGEST = 512
SAMPLINGS = {"greedy": {}, "seeded": {"temperature": 0.7, "top_p": 0.95, "seed": 20}}
Outputs = list[tuple[int, ...]]


@dataclass
class Family:
    """Target and draft as files that llama.cpp holds, prompts, and what plain decoding gave."""

    target: LlamaWeights
    draft: LlamaWeights
    prompts: list[list[int]]
    plain: dict[str, Outputs]

    def stage(self, rollback: int, *, in_step: bool = True) -> LlamaStage:
        settings = ContextSettings(
            length=LONGEST, sequences=PROMPTS, rollback=rollback, threads=1, kv="f32"
        )
        model = LlamaModel(LlamaContext(self.target, settings))
        policy = "snapshots" if rollback else "checkpoint"
        return LlamaStage(model, policy, in_step=in_step)

    def drafters(self, method: str) -> Callable[[], Drafter] | None:
        """What a method drafts with; one context of the draft model serves all sessions."""
        if method == "off":
            return None
        if method == "suffix":
            return SuffixDrafter
        settings = ContextSettings(length=LONGEST, sequences=PROMPTS, threads=1, kv="f32")
        model = LlamaModel(LlamaContext(self.draft, settings))
        draft = DraftModel(model, model.vocab_size)
        chooser = GreedyChooser(vocab_size=model.vocab_size)
        if method == "draft":
            return lambda: DraftModelDrafter(draft, chooser)
        return lambda: ChainDrafter(SuffixDrafter(), DraftModelDrafter(draft, chooser))

    def run(
        self, method: str, sampling: str, *, rollback: int = WIDTH, depth: int = 1, **more: bool
    ) -> tuple[Outputs, Counters]:
        stage = self.stage(rollback, **more)
        made = engine(stage, self.drafters(method), width=WIDTH, depth=depth)
        params = SamplingParams(**SAMPLINGS[sampling])
        asked = [
            made.generate(prompt, sampling=params, max_tokens=TOKENS, ignore_eos=True)
            for prompt in self.prompts
        ]
        for request in asked:
            list(request)
            request.counters.check()
        stage.check()
        assert stage.num_sessions == 0
        return [one.result.token_ids for one in asked], merge([one.counters for one in asked])

    def expected(self, sampling: str) -> Outputs:
        if sampling not in self.plain:
            self.plain[sampling] = self.run("off", sampling)[0]
        return self.plain[sampling]


@pytest.fixture(scope="module")
def family(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Family]:
    folder = tmp_path_factory.mktemp("family")
    files: dict[str, Path] = {}
    for name in ("demo", "demo-draft"):
        files[name] = folder / f"{name}.gguf"
        gguf.convert(demo.path(name), files[name], pre="qwen2")
    rows = demo.workloads()["code"].read_text(encoding="utf-8").splitlines()[:PROMPTS]
    tokenizer = load_tokenizer(files["demo"])
    prompts = [tokenizer.encode(json.loads(row)["prompt"]) for row in rows]
    yield Family(LlamaWeights(files["demo"]), LlamaWeights(files["demo-draft"]), prompts, {})
    gc.collect()


def check(counts: Counters, *kinds: str) -> None:
    """Drafts were verified, partly accepted, and taken back in these ways alone."""
    assert 0 < counts.accepted < counts.verified
    assert set(counts.rollbacks) == set(kinds)
    pairs = zip(counts.reached_at[1:], [*counts.accepted_at[1:], 0], strict=False)
    assert any(reached > accepted for reached, accepted in pairs)


@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("method", ["suffix", "draft", "suffix+draft"])
def test_bounded_rollback(family, method, sampling):
    found, counts = family.run(method, sampling)
    assert found == family.expected(sampling)
    check(counts, "snapshots")


@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("depth", [2, 4])
def test_windows_in_flight_need_no_checkpoint_where_each_is_judged(family, depth, sampling):
    found, counts = family.run("suffix+draft", sampling, depth=depth)
    assert found == family.expected(sampling)
    assert counts.max_in_flight > 1
    check(counts, "snapshots")


@pytest.mark.parametrize("depth", [2, 4])
def test_the_configured_fallback_drafts_where_n_grams_have_nothing(family, depth):
    speculative = SpeculativeConfig(
        method="suffix",
        draft_model=str(family.draft.path),
        ngram_fallback="draft",
        verify_window=VerifyWindowConfig(max_tokens=WIDTH, depth=depth),
    )
    target = TargetConfig(
        path=str(family.target.path), backend="llama.cpp", threads=1, max_length=LONGEST
    )
    loaded, found, counted = Engine.load(target, speculative=speculative), [], []
    for prompt in family.prompts:
        generation = loaded.generate(prompt, max_tokens=TOKENS, ignore_eos=True)
        list(generation)
        generation.counters.check()
        found.append(generation.result.token_ids)
        counted.append(generation.counters)
    loaded.close()
    assert found == family.expected("greedy")
    counts = merge(counted)
    assert counts.fallback_tokens > 0
    assert counts.max_in_flight > 1
    assert counts.draft_rollback_ms > 0
    check(counts, "snapshots")


@pytest.mark.parametrize("depth", [1, 4])
@pytest.mark.parametrize("method", ["suffix", "suffix+draft"])
def test_forced_checkpoints(family, method, depth):
    found, counts = family.run(method, "greedy", rollback=0, depth=depth)
    assert found == family.expected("greedy")
    check(counts, "checkpoint")


def test_drafts_beyond_the_snapshots_take_a_checkpoint_for_their_round(family):
    found, counts = family.run("suffix+draft", "greedy", rollback=2)
    assert found == family.expected("greedy")
    assert counts.rollbacks["checkpoint"] > 0
    assert set(counts.rollbacks) <= {"snapshots", "checkpoint"}


def test_rows_whose_judgement_is_unknown_have_checkpoints(family):
    found, counts = family.run("suffix+draft", "greedy", depth=2, in_step=False)
    assert found == family.expected("greedy")
    assert counts.rollbacks["checkpoint"] > 0


def test_a_stale_snapshot_would_show(family, monkeypatch):
    """The planted fault: every pass is believed to have written all snapshots."""
    monkeypatch.setattr(Snapshots, "reaches", lambda *args: True)
    monkeypatch.setattr(Snapshots, "ran", lambda self, rows: setattr(self, "rows", self.capacity))
    context = family.stage(WIDTH).decoder.context
    model = LlamaModel(context)
    assert lasting(family, model, stale=True) != lasting(family, model, stale=False)


def lasting(family: Family, model: LlamaModel, *, stale: bool) -> list[int]:
    """The greedy tokens after a prompt of which the last row was taken back and run again, by a
    snapshot that its own pass of one row never wrote, or not at all."""
    state = model.new_state("snapshots", WIDTH)
    prompt = family.prompts[0]
    step(model, state, prompt[:-1])
    newest = step(model, state, prompt[-1:])
    if stale:
        state.floor = 0
        state.settle(len(prompt) - 3)
        for token in prompt[-3:]:
            newest = step(model, state, [token])
    found = []
    for _ in range(TOKENS):
        found.append(newest)
        newest = step(model, state, [newest])
    return found


def step(model: LlamaModel, state: LlamaState, tokens: list[int]) -> int:
    """Run final rows; the greedy token behind the last one."""
    span = Span(state, len(tokens), revocable=False, wanted=1)
    hidden, _ = model.run(torch.tensor(tokens), [span])
    return int(model.logits(hidden[-1:]).argmax())

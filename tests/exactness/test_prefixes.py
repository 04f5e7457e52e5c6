"""A second turn that goes on from kept states: the tokens and the drafts of a fresh run."""

import pytest

from outrider.draft.block.drafter import BlockDrafter
from outrider.draft.block.load import load_block
from outrider.draft.chain import ChainDrafter
from outrider.draft.choice import GreedyChooser
from outrider.draft.head import HeadDrafter
from outrider.draft.lookup.suffix import SuffixDrafter
from outrider.draft.model.drafter import DraftModelDrafter
from outrider.draft.model.runner import DraftRunner
from outrider.engine.prefix import PrefixCache
from outrider.models.load import LoadOptions, load_decoder
from outrider.models.mtp import load_mtp
from outrider.ops.selftest import Kernels
from outrider.stage.local import LocalStage
from tests.exactness.targets import engine, generate, make_picker, make_target
from tests.helpers.blocks import Kind, write
from tests.helpers.checkpoints import VOCAB, save_model
from tests.helpers.heads import add_mtp, mtp_tensors
from tests.helpers.runs import random_tokens

FIRST = random_tokens(200, seed=21)
OTHER = [*FIRST[:192], (FIRST[192] + 1) % VOCAB, *FIRST[:60]]


@pytest.fixture(scope="module")
def makers(tmp_path_factory):
    """What makes each drafter, and the target they draft for."""
    folder = tmp_path_factory.mktemp("target")
    made = make_target("hybrid", folder)
    target, model = made.decoder, made.oracle_model
    add_mtp(folder, mtp_tensors(model, likely=True))
    kernels, options = Kernels(exact=True), LoadOptions()
    small = tmp_path_factory.mktemp("small")
    save_model("qwen3_5", small, seed=3)
    draft = load_decoder(small, kernels, options)
    head = load_mtp(folder, target, kernels, options)
    blocks = tmp_path_factory.mktemp("block")
    write(Kind(), blocks, likely_for=model)
    block = load_block(blocks, target, kernels)

    def greedy():
        return GreedyChooser(vocab_size=VOCAB)

    return target, {
        "draft": lambda: DraftModelDrafter(draft, greedy()),
        "suffix+draft": lambda: ChainDrafter(SuffixDrafter(), DraftModelDrafter(draft, greedy())),
        "mtp": lambda: ChainDrafter(HeadDrafter(head, greedy())),
        "dflash": lambda: ChainDrafter(BlockDrafter(block, greedy())),
    }


@pytest.mark.parametrize("name", ["draft", "suffix+draft", "mtp", "dflash"])
def test_output_and_drafts_equal_those_of_a_fresh_run(makers, name, monkeypatch):
    target, drafters = makers
    resets = []
    reset = DraftRunner._reset
    monkeypatch.setattr(DraftRunner, "_reset", lambda self: (resets.append(1), reset(self))[1])

    def fresh():
        stage = LocalStage(target, "log", 8, make_picker)
        return engine(stage, drafters[name], width=8, budget=4)

    stage = LocalStage(target, "log", 8, make_picker)
    reusing = engine(stage, drafters[name], width=8, budget=4)
    reusing.prefixes = PrefixCache(stage, 1 << 30)
    reused, prompt = [], FIRST
    for turn in range(4):
        expected = generate(fresh(), prompt, {}, 24)
        resets.clear()
        found = generate(reusing, prompt, {}, 24)
        reused.append(found.counters.reused)
        assert found.result.token_ids == expected.result.token_ids
        for key in ("proposed", "verified", "accepted", "windows_judged"):
            assert getattr(found.counters, key) == getattr(expected.counters, key)
        if turn in (1, 2):
            assert resets == [], "a draft model went on, too"
        prompt = [*prompt, *found.result.token_ids, *random_tokens(30, seed=turn), *FIRST[:40]]
        prompt = OTHER if turn == 2 else prompt
    # A drafter of hidden states saw the token behind the prefix, and it is another one now.
    assert reused == [0, 192, 256, 0 if name in ("mtp", "dflash") else 192]
    assert found.counters.proposed > found.counters.accepted
    assert found.counters.accepted > 0 or name == "draft"

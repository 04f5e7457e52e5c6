"""A second turn that goes on from kept states: the tokens and the drafts of a fresh run."""

import pytest

from outrider.draft.base import ChainDrafter
from outrider.draft.block.block_drafter import BlockDrafter
from outrider.draft.block.block_loader import load_block
from outrider.draft.heads.mtp import load_mtp
from outrider.draft.heads.one_token import HeadDrafter
from outrider.draft.lookup.suffix import SuffixDrafter
from outrider.draft.model.draft_model import DraftModel, DraftModelDrafter
from outrider.draft.model.sync import DraftSync
from outrider.draft.token_choice import GreedyChooser
from outrider.engine.prefix import PrefixCache
from outrider.models.load import LoadOptions, load_decoder
from outrider.stage.local import LocalStage
from tests.exactness.targets import engine, generate, make_target
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
    options = LoadOptions()
    small = tmp_path_factory.mktemp("small")
    save_model("qwen3_5", small, seed=3)
    draft = DraftModel(load_decoder(small, options), VOCAB)
    head = load_mtp(folder, target)
    blocks = tmp_path_factory.mktemp("block")
    write(Kind(), blocks, likely_for=model)
    block = load_block(blocks, target)

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
    reset = DraftSync.record_reset
    monkeypatch.setattr(DraftSync, "record_reset", lambda self: (resets.append(1), reset(self))[1])

    def fresh():
        stage = LocalStage(target, "log", 8)
        return engine(stage, drafters[name], width=8, budget=4)

    stage = LocalStage(target, "log", 8)
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


@pytest.mark.parametrize("name", ["dflash", "mtp"])
def test_a_prefix_larger_than_the_cache_leaves_the_others_there(makers, name):
    """It is not even copied."""
    target, drafters = makers
    stage = LocalStage(target, "log", 8)
    own = engine(stage, drafters[name], width=8, budget=4)
    own.prefixes = cache = PrefixCache(stage, 1 << 30)
    generate(own, FIRST[:100], {}, 4)
    cache.max_bytes = small = cache.bytes
    assert cache.held == 1
    copies, snapshot = [], stage.snapshot
    stage.snapshot = lambda *given: (copies.append(given), snapshot(*given))[1]
    large = random_tokens(450, seed=9)
    expected = generate(engine(LocalStage(target, "log", 8), None), large, {}, 8)
    for _ in range(2):
        found = generate(own, large, {}, 8)
        assert found.result.token_ids == expected.result.token_ids
        assert found.counters.reused == 0
    assert copies == []
    assert (cache.held, cache.bytes) == (1, small)
    again = generate(own, [*FIRST[:100], *FIRST[:9]], {}, 4)
    assert again.counters.reused == 64


def test_a_drafter_too_large_for_the_cache_leaves_the_prefix_there(makers):
    target, drafters = makers
    stage = LocalStage(target, "log", 8)
    own = engine(stage, drafters["draft"], width=8, budget=4)
    own.prefixes = cache = PrefixCache(stage, 1 << 30)
    request = own.begin(own.prepare(FIRST, max_tokens=8))
    own.step()
    cache.max_bytes = cache.bytes  # the target's part alone
    assert len(list(request)) > 0
    kept = cache.find("", [*FIRST, *FIRST[:9]], ())
    assert kept.drafter is None
    assert generate(own, [*FIRST, *FIRST[:9]], {}, 8).counters.reused == 192

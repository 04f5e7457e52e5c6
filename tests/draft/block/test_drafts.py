"""Drafts of every kind and packaging equal those of an independent, naive drafter."""

import statistics
from dataclasses import replace

import pytest
import torch

from outrider.draft.block.block_drafter import BlockDrafter
from outrider.draft.block.block_loader import load_block
from outrider.draft.token_choice import GreedyChooser
from outrider.models.load import LoadOptions, load_decoder
from outrider.records import Commit, Context
from tests.draft.block.oracle import Oracle
from tests.draft.block.recorder import Recorder
from tests.helpers.blocks import HIDDEN, VOCAB, Kind, write
from tests.helpers.checkpoints import save_model

PLAIN = Kind()
SPARK = Kind(packaging="DeepSpec", anchor_first=True, markov="vanilla", confidence=True)
KINDS = {
    "dflash": PLAIN,
    "dflash-one-layer": replace(PLAIN, layers=1, taps=(1,)),
    "dflash-bias": replace(PLAIN, bias=True),
    "dflash-embedding-tap": replace(PLAIN, taps=(-1, 1, 3)),
    "dflash-sliding": replace(PLAIN, window=7),
    "dflash-sliding-both-ways": replace(PLAIN, window=4, causal=False),
    "dflash-causal": replace(PLAIN, causal=True),
    "dflash-speculators": replace(PLAIN, packaging="speculators"),
    "dflash-speculators-sliding": replace(PLAIN, packaging="speculators", window=7),
    "dflash-speculators-sliding-both-ways": replace(
        PLAIN, packaging="speculators", window=7, causal=False
    ),
    "dflash-reduced": replace(PLAIN, packaging="speculators", reduced=40),
    "dflash-anchor-first": replace(SPARK, markov=None, confidence=False),
    "dspark": SPARK,
    "dspark-own-embedding": replace(SPARK, own_embedding=True),
    "dspark-gated": replace(SPARK, markov="gated"),
    "dspark-rnn": replace(SPARK, markov="rnn"),
    "dspark-plain-confidence": replace(SPARK, reads_code=False),
    "dspark-log-snr": replace(SPARK, log_snr=True),
    "dspark-specforge": replace(SPARK, packaging="SpecForge"),
    "dspark-bonus": replace(SPARK, packaging="speculators", anchor_first=False),
    "dspark-bonus-reduced-rnn": replace(
        SPARK, packaging="speculators", anchor_first=False, reduced=40, markov="rnn"
    ),
}


@pytest.fixture(scope="module")
def target(tmp_path_factory):
    folder = tmp_path_factory.mktemp("target")
    model = save_model("qwen3_5", folder)
    return load_decoder(folder, LoadOptions()), model


@pytest.fixture(scope="module")
def reference(tmp_path_factory):
    """The same target by torch's operations."""
    folder = tmp_path_factory.mktemp("reference")
    model = save_model("qwen3_5", folder)
    return load_decoder(folder, LoadOptions(reference=True)), model


@pytest.fixture(autouse=True)
def _without_gradients():
    with torch.no_grad():
        yield


def load(kind, target, folder):
    decoder, model = target
    tensors = write(kind, folder)
    oracle = Oracle(kind, tensors, model.model.embed_tokens.weight, model.lm_head.weight)
    return load_block(folder, decoder), oracle


def feed(drafter, features, tokens, sizes):
    """Commit the features of tokens[:-1] in pieces of the given sizes."""
    done = 0
    for size in sizes:
        first = done + 1 if done else 0
        kept = tuple(tokens[first : done + size + 1])
        drafter.observe(Commit(position=first, tokens=kept, features=features[done : done + size]))
        done += size
    assert done == len(features)


def case(kind, length, seed=0):
    torch.manual_seed(seed)
    features = torch.randn(length, len(kind.taps) * HIDDEN) * 2
    return features, torch.randint(0, VOCAB - 1, (length + 1,)).tolist()


@pytest.mark.parametrize("kernels", ["compiled", "torch"])
@pytest.mark.parametrize("name", KINDS)
def test_drafts_are_those_of_the_papers(target, reference, tmp_path, name, kernels):
    kind, compiled = KINDS[name], kernels == "compiled"
    model, oracle = load(kind, target if compiled else reference, tmp_path)
    assert (model.trunk.compiled is not None) == compiled
    features, tokens = case(kind, 20)
    chooser = Recorder()
    drafter = BlockDrafter(model, chooser)
    # An earlier block leaves rows behind that must not count.
    feed(drafter, features[:12], tokens[:13], [12])
    first = drafter.propose(Context(tokens[:13]), 16)
    wanted = oracle.draft(features[:12], tokens[12])
    assert list(first.tokens) == wanted.tokens
    del chooser.rows[:], chooser.positions[:]
    drafter.observe(
        Commit(position=13, tokens=tuple(tokens[13:]), accepted=3, features=features[12:])
    )
    draft = drafter.propose(Context(tokens), 16)
    wanted = oracle.draft(features, tokens[20])
    assert len(wanted.tokens) == model.config.max_drafts == kind.rows - (not kind.anchor_first)
    assert list(draft.tokens) == wanted.tokens
    assert chooser.positions == list(range(21, 21 + len(wanted.tokens)))
    torch.testing.assert_close(torch.stack(chooser.rows), wanted.logits, atol=1e-4, rtol=1e-4)
    if kind.confidence:
        assert draft.confidence == pytest.approx(wanted.confidence, abs=1e-4)
    assert drafter.name == draft.source == ("dspark" if kind.markov else "dflash")


@pytest.mark.parametrize("name", KINDS)
def test_compiled_choices_are_those_row_by_row(target, tmp_path, name):
    kind = KINDS[name]
    model, _ = load(kind, target, tmp_path)
    assert model.greedy is not None
    features, tokens = case(kind, 70)  # more than a page
    drafters = [BlockDrafter(model, one(vocab_size=VOCAB)) for one in (GreedyChooser, Recorder)]
    for drafter in drafters:
        feed(drafter, features, tokens, [70])
    found = []
    for budget in (16, 1, 3):
        compiled, apart = (drafter.propose(Context(tokens), budget) for drafter in drafters)
        assert compiled.tokens == apart.tokens
        assert compiled.confidence == pytest.approx(apart.confidence, abs=1e-5)
        found += compiled.confidence
    least = statistics.fmean(found)
    for sure, likely in ((least, 0.0), (0.0, least)):
        sizes = []
        for one in (GreedyChooser, Recorder):
            chooser = one(vocab_size=VOCAB, min_probability=likely)
            drafter = BlockDrafter(model, chooser, sure)
            feed(drafter, features, tokens, [70])
            draft = drafter.propose(Context(tokens), 16)
            sizes.append(draft.tokens if draft else ())
        assert sizes[0] == sizes[1]


@pytest.mark.parametrize("name", ["dflash", "dflash-sliding", "dspark"])
def test_pieces_of_a_prompt_give_the_drafts_of_the_whole(target, tmp_path, name):
    kind = KINDS[name]
    model, _ = load(kind, target, tmp_path)
    features, tokens = case(kind, 300)
    seen = []
    for sizes in ([300], [256, 44], [1, 170, 128, 1]):
        chooser = Recorder()
        drafter = BlockDrafter(model, chooser)
        feed(drafter, features, tokens, sizes)
        draft = drafter.propose(Context(tokens), 8)
        seen.append((draft.tokens, torch.stack(chooser.rows)))
    for tokens, rows in seen[1:]:
        assert tokens == seen[0][0]
        torch.testing.assert_close(rows, seen[0][1], atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("budget", [1, 2, 4])
def test_a_smaller_budget_is_the_beginning_of_the_whole(target, tmp_path, budget):
    model, oracle = load(SPARK, target, tmp_path)
    features, tokens = case(SPARK, 9)
    drafter = BlockDrafter(model, GreedyChooser(vocab_size=VOCAB))
    feed(drafter, features, tokens, [9])
    wanted = oracle.draft(features, tokens[9]).tokens
    assert list(drafter.propose(Context(tokens), budget).tokens) == wanted[:budget]

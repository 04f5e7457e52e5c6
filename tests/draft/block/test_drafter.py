"""The drafter around the network: sampling, truncation, catching up, and what goes wrong."""

import statistics
from collections import Counter, defaultdict
from dataclasses import replace

import pytest
import torch

from outrider.draft.block.block_drafter import BlockDrafter
from outrider.draft.block.block_loader import load_block
from outrider.draft.block.block_trunk import BlockContext, Trunk
from outrider.draft.tap_drafter import PASS_ROWS
from outrider.draft.token_choice import GreedyChooser, SampledChooser
from outrider.errors import StageError
from outrider.models.load import LoadOptions, load_decoder
from outrider.records import Commit, Context
from outrider.sampling.rng import Key
from tests.draft.block.recorder import Recorder
from tests.helpers.blocks import HIDDEN, VOCAB, Kind, write
from tests.helpers.checkpoints import save_model

SPARK = Kind(packaging="DeepSpec", anchor_first=True, markov="vanilla", confidence=True)
DRAWS = 400


@pytest.fixture(scope="module")
def target(tmp_path_factory):
    folder = tmp_path_factory.mktemp("target")
    save_model("qwen3_5", folder)
    return load_decoder(folder, LoadOptions())


@pytest.fixture(scope="module")
def model(target, tmp_path_factory):
    folder = tmp_path_factory.mktemp("dspark")
    write(SPARK, folder)
    return load_block(folder, target)


def text(length, seed=0):
    generator = torch.Generator().manual_seed(seed)
    features = torch.randn(length, 2 * HIDDEN, generator=generator) * 2
    return torch.randint(0, VOCAB - 1, (length + 1,), generator=generator).tolist(), features


def commit(tokens, features, start, end):
    first = start + 1 if start else 0
    return Commit(
        position=first, tokens=tuple(tokens[first : end + 1]), features=features[start:end]
    )


def drafter_of(model, chooser=None, least=0.0):
    return BlockDrafter(model, chooser or GreedyChooser(vocab_size=VOCAB), least)


def draws(model, temperature, least=0.0):
    """Drafts for many seeds, in one place of one text."""
    tokens, features = text(30)
    for seed in range(DRAWS):
        chooser = SampledChooser(
            vocab_size=VOCAB, target_rows=VOCAB, temperature=temperature, key=Key(seed=seed)
        )
        drafter = drafter_of(model, chooser, least)
        drafter.observe(commit(tokens, features, 0, 30))
        yield drafter.propose(Context(tokens), 3)


def test_tokens_are_drawn_from_the_distributions_handed_over(model):
    counts, rows = defaultdict(Counter), {}
    for draft in draws(model, 3.0):
        for place, token in enumerate(draft.tokens):
            prefix = draft.tokens[:place]
            counts[prefix][token] += 1
            known = rows.setdefault(prefix, draft.probs[place])
            # Corrected by the tokens before, and by nothing else that was drawn.
            assert torch.equal(known, draft.probs[place])
    often = [prefix for prefix, found in counts.items() if found.total() > 60]
    assert max(map(len, often)) >= 1
    for prefix in often:
        size = counts[prefix].total()
        wanted = {t: p * size for t, p in enumerate(rows[prefix].tolist()) if p * size > 4}
        chi = sum((counts[prefix][t] - w) ** 2 / w for t, w in wanted.items())
        assert len(wanted) > 2
        assert chi < len(wanted) + 5 * (2 * len(wanted)) ** 0.5


def test_where_a_draft_ends_depends_on_the_tokens_before_alone(model):
    ends = defaultdict(set)
    middle = statistics.median(value for draft in draws(model, 3.0) for value in draft.confidence)
    for draft in draws(model, 3.0, least=middle):
        tokens = draft.tokens if draft else ()
        for place in range(3):
            if place <= len(tokens):
                ends[tokens[:place]].add(place < len(tokens))
    assert all(len(found) == 1 for found in ends.values())
    assert {False, True} == set.union(*ends.values())


def test_confidence_ends_a_draft_before_it_is_handed_over(model):
    tokens, features = text(30)
    whole = drafter_of(model)
    whole.observe(commit(tokens, features, 0, 30))
    draft = whole.propose(Context(tokens), 8)
    least = sorted(draft.confidence)[2]
    size = next(n for n, value in enumerate(draft.confidence) if value < least)
    short = drafter_of(model, least=least)
    short.observe(commit(tokens, features, 0, 30))
    found = short.propose(Context(tokens), 8)
    assert (found.tokens if found else ()) == draft.tokens[:size]
    assert drafter_of(model, least=1.0).observe(commit(tokens, features, 0, 30)) is None


def test_rounds_of_rest_are_caught_up_on_in_bounded_pieces(model, monkeypatch):
    rows, original = [], Trunk.consume

    def counted(self, features, context):
        rows.append(len(features))
        original(self, features, context)

    monkeypatch.setattr(Trunk, "consume", counted)
    tokens, features = text(480)
    drafter = drafter_of(model)
    for start in range(0, 450, 50):
        drafter.observe(commit(tokens, features, start, start + 50))
        assert len(drafter.backlog.tokens) < PASS_ROWS
    drafter.propose(Context(tokens[:451]), 3)
    assert sum(rows) == 450
    assert max(rows) <= PASS_ROWS
    assert rows[-1] == 450 - sum(rows[:-1]) > 0


def test_the_context_takes_the_bytes_that_are_counted(model):
    for length in (1, 64, 65, 300):
        context = BlockContext(model.trunk)
        context.reserve(length)
        assert context.storage.nbytes == model.trunk.state_spec.bytes(length)


def test_drafts_end_with_the_drafters_positions(target, tmp_path):
    write(replace(SPARK, max_length=40), tmp_path)
    drafter = drafter_of(load_block(tmp_path, target))
    tokens, features = text(45)
    drafter.observe(commit(tokens, features, 0, 35))
    assert len(drafter.propose(Context(tokens[:36]), 8).tokens) == 5
    drafter.observe(commit(tokens, features, 35, 36))
    assert drafter.propose(Context(tokens[:37]), 8) is None
    drafter.observe(commit(tokens, features, 36, 45))
    assert drafter.propose(Context(tokens), 8) is None


def test_a_failed_pass_leaves_nothing_behind(model, monkeypatch):
    tokens, features = text(50)
    chooser, fresh_chooser = Recorder(), Recorder()
    drafter, fresh = drafter_of(model, chooser), drafter_of(model, fresh_chooser)
    for one in (drafter, fresh):
        one.observe(commit(tokens, features, 0, 50))
    for name in ("consume", "run"):
        real = getattr(Trunk, name)

        def failing(self, *given, real=real):
            context = given[1]
            length = context.length
            real(self, *given)
            context.length = length  # as if it had failed on the way
            raise RuntimeError("out of memory")

        with monkeypatch.context() as patch:
            patch.setattr(Trunk, name, failing)
            with pytest.raises(RuntimeError, match="out of memory"):
                drafter.propose(Context(tokens), 4)
    assert drafter.propose(Context(tokens), 4) == fresh.propose(Context(tokens), 4)
    assert all(map(torch.equal, chooser.rows, fresh_chooser.rows))


def test_rows_that_hold_no_numbers_are_an_error(model):
    tokens, features = text(30)
    drafter = drafter_of(model)
    drafter.observe(commit(tokens, features * torch.inf, 0, 30))
    with pytest.raises(StageError, match="logits for position 31 hold NaN or infinity"):
        drafter.propose(Context(tokens), 3)


def test_the_first_sentence_of_what_is_wrong(model):
    tokens, features = text(50)
    drafter = drafter_of(model)
    drafter.observe(commit(tokens, features, 0, 20))
    with pytest.raises(StageError, match="behind committed tokens only"):
        drafter.propose(Context(tokens[:21], tokens[21:22]), 2)
    with pytest.raises(StageError, match=r"dspark was asked to follow 30 tokens, but has .* of 20"):
        drafter.propose(Context(tokens[:30]), 2)

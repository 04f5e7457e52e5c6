"""A head drafts what a fresh one would, whatever was drafted, rejected or left out before."""

import random

import pytest
import torch

from outrider.draft.heads.eagle3 import load_eagle3
from outrider.draft.heads.mtp import load_mtp
from outrider.draft.heads.one_token import Head, HeadDrafter
from outrider.draft.tap_drafter import PASS_ROWS
from outrider.draft.token_choice import GreedyChooser, SampledChooser
from outrider.errors import StageError
from outrider.models.load import LoadOptions, load_decoder
from outrider.records import Commit, Context
from outrider.sampling.rng import Key
from tests.helpers.checkpoints import VOCAB, save_model
from tests.helpers.heads import (
    add_mtp,
    eagle3_config,
    eagle3_tensors,
    mtp_tensors,
    save_eagle3,
)
from tests.helpers.runs import random_tokens

HIDDEN = 48


@pytest.fixture(scope="module", params=["mtp", "eagle3"])
def head(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Head:
    folder = tmp_path_factory.mktemp(request.param)
    model = save_model("qwen3_5", folder)
    add_mtp(folder, mtp_tensors(model))
    options = LoadOptions()
    target = load_decoder(folder, options)
    if request.param == "mtp":
        return load_mtp(folder, target)
    raw = eagle3_config(model, eagle_config={"eagle_aux_hidden_state_layer_ids": [1, 2]})
    file = save_eagle3(folder / "eagle3", raw, eagle3_tensors(raw, HIDDEN, 2))
    return load_eagle3(file, target)


def drafter_of(head: Head) -> HeadDrafter:
    return HeadDrafter(head, GreedyChooser(vocab_size=VOCAB))


def commit(tokens: list[int], features: torch.Tensor, first: int, last: int) -> Commit:
    """Rows `first` .. `last` - 1, each with the token behind it."""
    position = first + 1 if first else 0
    return Commit(
        position=position, tokens=tuple(tokens[position : last + 1]), features=features[first:last]
    )


def text(head: Head, count: int) -> tuple[list[int], torch.Tensor]:
    features = torch.randn(
        count, len(head.taps) * HIDDEN, generator=torch.Generator().manual_seed(3)
    )
    return random_tokens(count, seed=4), features


def test_drafts_equal_those_of_a_fresh_drafter(head: Head) -> None:
    tokens, features = text(head, 400)
    rng, drafter, done, rests = random.Random(1), drafter_of(head), 70, 0
    drafter.observe(commit(tokens, features, 0, done))
    while done < 390:
        context = Context(tokens[: done + 1])
        budget = rng.randint(1, 6)
        if rng.random() < 0.7:
            fresh = drafter_of(head)
            for start in range(0, done, 100):
                fresh.observe(commit(tokens, features, start, min(start + 100, done)))
            expected = fresh.propose(context, budget)
            assert expected is not None
            found = drafter.propose(context, budget)
            assert found is not None
            assert found.tokens == expected.tokens
            assert len(found.tokens) == budget
            assert found.source == head.name
        else:
            rests += 1
        # Up to all of the drafts stay, and one token of the target.
        more = min(rng.randint(1, budget + 1), 399 - done)
        drafter.observe(commit(tokens, features, done, done + more))
        done += more
    assert rests > 10


def test_the_state_holds_true_pairs_only(head: Head) -> None:
    tokens, features = text(head, 50)
    drafter = drafter_of(head)
    drafter.observe(commit(tokens, features, 0, 30))
    drafter.propose(Context(tokens[:31]), 5)
    assert drafter._state.length == 30
    drafter.observe(commit(tokens, features, 30, 34))
    assert drafter._state.length == 30
    drafter.propose(Context(tokens[:35]), 1)
    assert drafter._state.length == 34


def test_what_waits_is_bounded_and_passes_are_too(head: Head, monkeypatch) -> None:
    rows, real = [], Head.run

    def counted(self, features, tokens, state):
        rows.append(len(tokens))
        return real(self, features, tokens, state)

    monkeypatch.setattr(Head, "run", counted)
    tokens, features = text(head, 510)
    drafter = drafter_of(head)
    for start in range(0, 500, 50):
        drafter.observe(commit(tokens, features, start, start + 50))
        assert len(drafter.backlog.tokens) < PASS_ROWS
    assert rows == [256, 44]
    drafter.propose(Context(tokens[:501]), 3)
    assert rows == [256, 44, 200, 1, 1]


def test_sampled_drafts_come_with_what_they_were_drawn_from(head: Head) -> None:
    tokens, features = text(head, 50)
    key = Key(seed=3, choice=0)
    chooser = SampledChooser(vocab_size=VOCAB, target_rows=VOCAB, temperature=0.7, key=key)
    drafter = HeadDrafter(head, chooser)
    drafter.observe(commit(tokens, features, 0, 30))
    draft = drafter.propose(Context(tokens[:31]), 4)
    assert draft is not None
    assert isinstance(draft.probs, torch.Tensor)
    assert torch.allclose(draft.probs.sum(-1), torch.ones(4, dtype=torch.float64))
    assert all(row[token] > 0 for row, token in zip(draft.probs, draft.tokens, strict=True))
    if head.ids is not None:
        outside = [token for token in range(VOCAB) if token not in head.ids.tolist()]
        assert not draft.probs[:, outside].any()


def test_drafts_end_with_the_positions(head: Head) -> None:
    tokens, features = text(head, 512)
    drafter = drafter_of(head)
    drafter.observe(commit(tokens, features, 0, 250))
    drafter.observe(commit(tokens, features, 250, 510))
    draft = drafter.propose(Context(tokens[:511]), 8)
    assert draft is not None
    assert len(draft.tokens) == 3
    assert drafter._state.length == 510


def test_the_first_sentence_of_what_is_wrong(head: Head) -> None:
    tokens, features = text(head, 50)
    drafter = drafter_of(head)
    with pytest.raises(StageError, match="without the hidden states"):
        drafter.observe(Commit(position=0, tokens=(1, 2)))
    drafter.observe(commit(tokens, features, 0, 20))
    with pytest.raises(StageError, match="from position 21 on came, but 20 is the next"):
        drafter.observe(commit(tokens, features, 21, 25))
    with pytest.raises(StageError, match="behind committed tokens only"):
        drafter.propose(Context(tokens[:21], tokens[21:22]), 2)
    with pytest.raises(StageError, match=r"asked to follow 30 tokens, but has .* of 20"):
        drafter.propose(Context(tokens[:30]), 2)


def test_a_failed_pass_leaves_nothing_behind(head: Head, monkeypatch) -> None:
    tokens, features = text(head, 50)
    drafter, fresh = drafter_of(head), drafter_of(head)
    for one in (drafter, fresh):
        one.observe(commit(tokens, features, 0, 40))
    real = type(head.layers).run

    def failing(self, rows, spans, taps=()):
        real(self, rows, spans, taps)
        raise RuntimeError("out of memory")

    with monkeypatch.context() as patch:
        patch.setattr(type(head.layers), "run", failing)
        with pytest.raises(RuntimeError, match="out of memory"):
            drafter.propose(Context(tokens[:41]), 4)
    expected = fresh.propose(Context(tokens[:41]), 4)
    assert expected is not None
    assert drafter.propose(Context(tokens[:41]), 4) == expected

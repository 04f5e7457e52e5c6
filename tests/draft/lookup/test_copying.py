"""Copies with edits: what a suffix drafter makes of a text that is repeated and changed."""

import random
from collections.abc import Sequence

import pytest

from outrider.draft.lookup.suffix import SuffixDrafter
from outrider.records import Commit, Context

NAME, FIRST, SECOND = 500, 501, 502


def plain_text(length: int = 160) -> list[int]:
    """Words of 40 kinds with a name at every tenth place, never the same one before it."""
    chance = random.Random(3)
    return [NAME if place % 10 == 9 else chance.randrange(40) for place in range(length)]


def renamed(text: Sequence[int], *, new: Sequence[int]) -> list[int]:
    return [token for old in text for token in (new if old == NAME else [old])]


def rejections(source: Sequence[int], answer: Sequence[int], budget: int = 8) -> list[int]:
    """Decode `answer` behind `source` with drafts; where drafts were wrong or missing."""
    drafter, tokens, wrong = SuffixDrafter(), [*source, *answer[:6]], []
    truth = [*source, *answer]
    drafter.observe(Commit(position=0, tokens=tuple(tokens)))
    while len(tokens) < len(truth):
        draft = drafter.propose(Context(tokens), budget)
        guesses = draft.tokens if draft else ()
        rest = truth[len(tokens) :]
        kept = next((n for n, t in enumerate(rest) if n >= len(guesses) or guesses[n] != t), None)
        if kept is None or kept == len(guesses) == budget or len(tokens) + kept >= len(truth):
            kept = min(len(guesses), len(rest) - 1)
        else:
            wrong.append(len(tokens) + kept - len(source))
        new = tuple(rest[: kept + 1])
        drafter.observe(Commit(position=len(tokens), tokens=new, accepted=kept))
        tokens += new
    return wrong


@pytest.mark.parametrize(
    "new",
    [[FIRST], [NAME, FIRST], [FIRST, NAME], [NAME, FIRST, SECOND], [FIRST, SECOND], []],
    ids=["swap", "behind", "before", "two behind", "two for one", "drop"],
)
def test_a_rename_is_learned_from_its_first_places(new):
    source = plain_text()
    wrong = rejections(source, renamed(source, new=new))
    assert all(place < 60 for place in wrong)


def test_copies_go_on_behind_what_cannot_be_guessed():
    """One number for another: from the second on, the token behind it is copied at once."""
    chance, source = random.Random(1), plain_text()
    answer = [chance.randrange(600, 900) if token == NAME else token for token in source]
    wrong = rejections(source, answer)
    assert {19, 29, 39} < set(wrong)
    assert not {20, 30, 40, 50, 60, 70} & set(wrong)


def test_an_optimistic_suffix_with_edits_leaves_no_trace():
    source = plain_text()
    truth = [*source, *renamed(source, new=[NAME, FIRST])]
    asked, fresh, tokens = SuffixDrafter(), SuffixDrafter(), truth[: len(source) + 6]
    for drafter in (asked, fresh):
        drafter.observe(Commit(position=0, tokens=tuple(tokens)))
    while len(tokens) < len(truth):
        for length in (3, 20, 40):
            asked.propose(Context(tokens, truth[len(tokens) : len(tokens) + length]), 8)
        drafts = [drafter.propose(Context(tokens), 12) for drafter in (asked, fresh)]
        assert drafts[0] == drafts[1]
        new = tuple(truth[len(tokens) : len(tokens) + 4])
        for drafter in (asked, fresh):
            drafter.observe(Commit(position=len(tokens), tokens=new))
        tokens += new


def test_a_draft_in_pieces_is_the_draft_in_one():
    """Windows in flight ask for a few tokens at a time, and may stop within an edit."""
    source = plain_text()
    answer = renamed(source, new=[NAME, FIRST, SECOND])
    tokens, suffix, drafter = [*source, *answer[:6]], [], SuffixDrafter()
    drafter.observe(Commit(position=0, tokens=tuple(tokens)))
    for token in answer[6:60]:
        drafter.propose(Context(tokens), 8)
        drafter.observe(Commit(position=len(tokens), tokens=(token,)))
        tokens.append(token)
    while len(suffix) < 60:
        suffix += drafter.propose(Context(tokens, suffix), 1).tokens
    assert suffix == answer[60:120]
    assert drafter.propose(Context(tokens), 60).tokens == tuple(suffix)

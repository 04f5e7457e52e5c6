"""The suffix drafter against a brute-force longest match."""

import random
from collections.abc import Sequence

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from outrider.draft.lookup.suffix import MIN_RUN, SuffixDrafter
from outrider.errors import ConfigError, StateError
from outrider.records import Commit, Context

TEXT = st.lists(st.integers(0, 2), min_size=1, max_size=60)
SUFFIX = st.lists(st.integers(0, 2), max_size=6)


def drafter_for(
    committed: Sequence[int], *, min_match: int = 1, growth: int = 100, capacity: int = 65_536
) -> SuffixDrafter:
    drafter = SuffixDrafter(min_match=min_match, growth=growth, capacity=capacity)
    drafter.observe(Commit(position=0, tokens=tuple(committed)))
    return drafter


def longest_match(committed: Sequence[int], suffix: Sequence[int]) -> tuple[int, list[int]]:
    """Return the longest match of the context's end and every place right behind it.

    Occurrences lie in the committed tokens and end before the context does.
    """
    context = [*committed, *suffix]
    for length in range(len(context) - 1, 0, -1):
        newest = context[-length:]
        last = len(committed) if suffix else len(committed) - 1
        ends = [
            end for end in range(length, last + 1) if list(committed[end - length : end]) == newest
        ]
        if ends:
            return length, ends
    return 0, []


def repeated(context: Sequence[int], start: int, count: int) -> tuple[int, ...]:
    """Copy from `start` on, the copies themselves included."""
    tokens = list(context)
    for offset in range(count):
        tokens.append(tokens[start + offset])
    return tuple(tokens[len(context) :])


@settings(max_examples=300, deadline=None)
@given(TEXT, SUFFIX)
def test_the_draft_continues_the_most_recent_longest_match(
    committed: list[int], suffix: list[int]
) -> None:
    """Where no long copy differs from its source within the suffix (`test_copying`)."""
    assume(not suffix or longest_match(committed, ())[0] + len(suffix) <= MIN_RUN)
    draft = drafter_for(committed).propose(Context(committed, suffix), 8)
    length, ends = longest_match(committed, suffix)
    if length == 0:
        assert draft is None
    else:
        assert draft is not None
        count = min(8, 1 + 100 * (length - 1))
        assert draft.tokens == repeated([*committed, *suffix], ends[-1], count)
        assert draft.probs is None


@settings(max_examples=100, deadline=None)
@given(TEXT, st.integers(1, 4), st.integers(0, 3), st.integers(1, 12))
def test_drafts_grow_with_the_match_up_to_the_budget(
    committed: list[int], min_match: int, growth: int, budget: int
) -> None:
    drafter = drafter_for(committed, min_match=min_match, growth=growth)
    draft = drafter.propose(Context(committed), budget)
    length, _ = longest_match(committed, ())
    if length < min_match:
        assert draft is None
    else:
        assert draft is not None
        assert len(draft.tokens) == min(budget, 1 + growth * (length - min_match))


@settings(max_examples=100, deadline=None)
@given(TEXT, st.lists(SUFFIX, max_size=4), st.integers(0, 1000))
def test_an_optimistic_suffix_leaves_no_trace(
    committed: list[int], suffixes: list[list[int]], seed: int
) -> None:
    asked, fresh = drafter_for(committed), drafter_for(committed)
    for suffix in suffixes:
        asked.propose(Context(committed, suffix), 4)
    chance = random.Random(seed)
    tokens = list(committed)
    for _ in range(8):
        commit = Commit(position=len(tokens), tokens=(chance.randrange(3),))
        tokens += commit.tokens
        for drafter in (asked, fresh):
            drafter.observe(commit)
        assert asked.propose(Context(tokens), 6) == fresh.propose(Context(tokens), 6)


def test_commits_in_pieces_equal_one_commit() -> None:
    chance = random.Random(3)
    tokens = [chance.randrange(4) for _ in range(300)]
    whole, pieces, position = drafter_for(tokens), drafter_for(()), 0
    while position < len(tokens):
        part = tuple(tokens[position : position + chance.randrange(1, 9)])
        pieces.observe(Commit(position=position, tokens=part))
        position += len(part)
    assert whole.propose(Context(tokens), 9) == pieces.propose(Context(tokens), 9)


def test_a_loop_is_drafted_beyond_the_newest_token() -> None:
    tokens = [7, 1, 2, 1, 2]
    draft = drafter_for(tokens).propose(Context(tokens), 7)
    assert draft is not None
    assert draft.tokens == (1, 2, 1, 2, 1, 2, 1)


def test_a_repetitive_text_stays_cheap_and_right() -> None:
    tokens = [5] * 2000
    drafter = drafter_for(tokens, growth=2)
    draft = drafter.propose(Context(tokens), 16)
    assert draft is not None
    assert draft.tokens == (5,) * 16


@pytest.mark.parametrize(("distance", "found"), [(9, True), (18, True), (41, False), (99, False)])
def test_old_tokens_are_forgotten_and_recent_ones_kept(distance: int, found: bool) -> None:
    """With room for 40 tokens, the newest 20 at least are matched, and 40 at most."""
    for shift in range(40):
        filler = range(100, 100 + distance - 3)
        tokens = [*range(1000, 1000 + shift), 1, 2, 3, *filler, 1, 2]
        drafter = drafter_for(tokens, min_match=2, growth=2, capacity=40)
        draft = drafter.propose(Context(tokens), 1)
        assert (None if draft is None else draft.tokens) == ((3,) if found else None)


def test_a_missed_commit_is_refused() -> None:
    drafter = drafter_for([1, 2])
    with pytest.raises(StateError, match="seen 2 tokens and was told of tokens at position 3"):
        drafter.observe(Commit(position=3, tokens=(1,)))
    with pytest.raises(StateError, match="seen 2 tokens of 3 committed"):
        drafter.propose(Context([1, 2, 3]), 4)


@pytest.mark.parametrize(("key", "least"), [("min_match", 1), ("growth", 0), ("capacity", 2)])
def test_settings_are_checked(key: str, least: int) -> None:
    SuffixDrafter(**{key: least})
    with pytest.raises(ConfigError, match=f"{key} = {least - 1} must be {least} or more"):
        SuffixDrafter(**{key: least - 1})

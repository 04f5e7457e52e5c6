"""The n-gram cache drafter against counts made anew for every question."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outrider.draft.lookup.ngram_cache import NgramCacheDrafter
from outrider.errors import ConfigError, StateError
from outrider.records import Commit, Context

TEXT = st.lists(st.integers(0, 2), min_size=1, max_size=50)
Rules = dict[str, tuple[float, ...]]
STRICT: Rules = {"min_count": (3, 2, 2, 1), "min_share": (0.7, 0.6, 0.5, 0.5)}
DEFAULT: Rules = {"min_count": (3, 2, 1, 1), "min_share": (0.6, 0.6, 0.6, 0.6)}


def drafter_for(committed: Sequence[int], **settings: Any) -> NgramCacheDrafter:
    drafter = NgramCacheDrafter(**settings)
    drafter.observe(Commit(position=0, tokens=tuple(committed)))
    return drafter


def followers(committed: Sequence[int], context: Sequence[int]) -> list[int]:
    """Every token that followed `context` in `committed`, in order."""
    size = len(context)
    return [
        committed[end]
        for end in range(size, len(committed))
        if list(committed[end - size : end]) == list(context)
    ]


def first_to_most(tokens: Sequence[int]) -> int:
    """The most frequent token; of several, the one that reached the count first."""
    counts: Counter[int] = Counter()
    best = tokens[0]
    for token in tokens:
        counts[token] += 1
        if counts[token] > counts[best]:
            best = token
    return best


def trusted(committed: Sequence[int], context: list[int], rules: Rules) -> int | None:
    for order in range(min(4, len(context)), 0, -1):
        seen = followers(committed, context[-order:])
        if seen:
            best = first_to_most(seen)
            count = seen.count(best)
            share = rules["min_share"][order - 1]
            if count >= rules["min_count"][order - 1] and count >= share * len(seen):
                return best
    return None


@settings(max_examples=200, deadline=None)
@given(TEXT, st.lists(st.integers(0, 2), max_size=5), st.sampled_from([STRICT, DEFAULT]))
def test_drafts_equal_a_recount(committed: list[int], suffix: list[int], rules: Rules) -> None:
    expected: list[int] = []
    while len(expected) < 6:
        token = trusted(committed, [*committed, *suffix, *expected], rules)
        if token is None:
            break
        expected.append(token)
    draft = drafter_for(committed, **rules).propose(Context(committed, suffix), 6)
    assert (draft.tokens if draft else ()) == tuple(expected)


def test_confidence_is_the_share_with_one_unseen_case() -> None:
    tokens = [1, 2, 3, 9, 1, 2, 3, 9, 1, 2, 4, 9, 1, 2]
    rules = {"min_count": (1, 1), "min_share": (0.5, 0.5)}
    draft = drafter_for(tokens, **rules).propose(Context(tokens), 2)
    assert draft is not None
    assert draft.tokens == (3, 9)
    assert draft.confidence == pytest.approx((2 / 4, 2 / 3))
    assert draft.probs is None


def test_a_draft_goes_on_while_the_text_is_predictable() -> None:
    tokens = [1, 2, 3, 4] * 5
    draft = drafter_for(tokens).propose(Context(tokens), 30)
    assert draft is not None
    assert draft.tokens == tuple([1, 2, 3, 4] * 8)[:30]


def test_the_optimistic_suffix_is_read_and_not_counted() -> None:
    tokens = [1, 2, 3] * 3
    drafter = drafter_for(tokens)
    asked = [drafter.propose(Context(tokens, [8, 8, 8, 8, 8, 8]), 4) for _ in range(3)]
    assert asked == [None] * 3
    assert drafter.propose(Context(tokens, [8]), 4) is None
    onward = drafter.propose(Context(tokens, [1, 2]), 2)
    assert onward is not None
    assert onward.tokens == (3, 1)


def test_old_tokens_are_forgotten() -> None:
    tokens = [*([1, 2, 3] * 4), *range(100, 130), 1, 2]
    assert drafter_for(tokens, capacity=20).propose(Context(tokens), 1) is None
    assert drafter_for(tokens).propose(Context(tokens), 1) is not None


def test_large_token_ids_do_not_collide() -> None:
    top = 2**31
    tokens = [top, 0, 7, 0, top, 8, top, 0]
    rules = {"min_count": (1, 1), "min_share": (0.9, 0.9)}
    draft = drafter_for(tokens, **rules).propose(Context(tokens), 1)
    assert draft is not None
    assert draft.tokens == (7,)


def test_a_missed_commit_is_refused() -> None:
    with pytest.raises(StateError, match="the ngram-cache drafter has seen 2 tokens"):
        drafter_for([1, 2]).observe(Commit(position=0, tokens=(1,)))


@pytest.mark.parametrize(
    "rules",
    [
        {"min_count": (1,), "min_share": (0.5, 0.5)},
        {"min_count": (0,), "min_share": (0.5,)},
        {"min_count": (1,), "min_share": (1.5,)},
        {"capacity": 1},
    ],
)
def test_settings_are_checked(rules: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match="ngram-cache drafter"):
        NgramCacheDrafter(**rules)  # type: ignore[arg-type]

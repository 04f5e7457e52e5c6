"""The decision what a draft state consumes and forgets, without a model."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outrider.draft.model.sync import DraftSync, between
from outrider.errors import StateError
from outrider.records import Commit, Context


def synced(*tokens: int) -> DraftSync:
    sync = DraftSync()
    sync.record(tokens)
    return sync


def plan(sync: DraftSync, *committed: int, suffix: tuple[int, ...] = ()) -> int:
    return sync.plan(Context(committed, suffix))


def test_an_empty_state_always_starts_anew():
    assert plan(DraftSync(), 1, 2, 3) == 0
    assert plan(DraftSync(), 1) == 0


def test_only_missing_tokens_are_consumed():
    assert plan(synced(1, 2), 1, 2, 3, 4, 5) == 2


def test_exact_sync_is_a_no_op():
    assert plan(synced(1, 2, 3), 1, 2, 3, 4) == 3


def test_a_different_token_trims_to_the_common_prefix():
    assert plan(synced(1, 2, 9, 9), 1, 2, 3, 4, 5) == 2


def test_a_synced_run_longer_than_the_target_is_trimmed():
    assert plan(synced(1, 2, 3, 4, 5), 1, 2, 3) == 2


def test_nothing_in_common_trims_to_nothing():
    assert plan(synced(7, 8), 1, 2, 3) == 0


def test_accepted_steps_join_the_prefix():
    sync = synced(1, 2)
    sync.record([3])  # The context's last token, then two drafts: 4 and 5, of which 5 was not run.
    sync.record([4])
    assert plan(sync, 1, 2, 3, 4, 5, 6) == 4


def test_a_rejected_step_is_trimmed():
    sync = synced(1, 2)
    sync.record([3])
    sync.record([4])
    assert plan(sync, 1, 2, 3, 8) == 3


def test_below_the_lowest_restorable_length_it_starts_anew():
    context = Context((1, 2, 3, 8, 9))
    assert synced(1, 2, 3, 4, 5).plan(context, lowest=3) == 3
    assert synced(1, 2, 3, 4, 5).plan(context, lowest=4) == 0


def test_a_saved_length_below_serves_where_trimming_cannot():
    context = Context((1, 2, 3, 8, 9))
    assert synced(1, 2, 3, 4, 5).plan(context, lowest=5, saved=2) == 2
    assert synced(1, 2, 3, 4, 5).plan(context, lowest=5, saved=4) == 0


def test_a_failed_step_is_not_recorded():
    sync = synced(1, 2, 3)  # A step over 4 raised: nothing was recorded for it.
    assert plan(sync, 1, 2, 3, 4, 5) == 3


def test_a_failed_prefill_leaves_nothing():
    sync = synced(1, 2, 3)
    sync.record_reset()  # Before the passes, which then raised.
    assert sync.length == 0
    assert plan(sync, 1, 2, 3, 4) == 0


def test_the_kept_length_indexes_the_callers_context():
    context = Context((1, 2, 3), (4, 5, 6))
    kept = synced(1, 2).plan(context)
    assert between(context, kept, len(context) - 1) == [3, 4, 5]
    assert between(context, 4, 6) == [5, 6]
    assert between(context, 0, 2) == [1, 2]


def test_the_optimistic_suffix_is_compared_but_never_final():
    sync = synced(1, 2, 3, 4)
    assert plan(sync, 1, 2, suffix=(3, 4, 5)) == 4
    assert sync.final == 2
    assert plan(sync, 1, 2, 7, suffix=(8,)) == 2


def test_observed_tokens_become_final_only_as_far_as_they_agree():
    sync = synced(1, 2, 3, 4)
    sync.observe(Commit(position=0, tokens=(1, 2)))
    assert sync.final == 2
    sync.observe(Commit(position=2, tokens=(3, 9)))
    assert sync.final == 3
    sync.observe(Commit(position=4, tokens=(5,)))
    assert sync.final == 3


def test_only_the_whole_context_is_held():
    assert synced(1, 2, 3).holds(Context((1, 2), (3,)))
    assert not synced(1, 2, 3).holds(Context((1, 2, 3, 4)))
    assert not synced(1, 2, 3).holds(Context((1, 2)))
    assert not synced(1, 2, 3).holds(Context((1, 2, 4)))


def test_another_sessions_context_is_refused():
    sync = synced(1, 2, 3)
    plan(sync, 1, 2, 3, 4)
    with pytest.raises(StateError, match="use one drafter per session"):
        plan(sync, 1, 2)
    with pytest.raises(StateError, match="use one drafter per session"):
        plan(sync, 1, 2, 9, 9)


def test_a_trim_to_more_than_was_consumed_is_refused():
    with pytest.raises(StateError, match="cannot be trimmed to 3 tokens: it consumed 2"):
        synced(1, 2).record_trim(3)


def test_final_tokens_are_not_compared_again():
    """The work of a call does not grow with the context."""
    sync = synced(*range(1000))
    committed = Counting(range(1001))
    sync.plan(Context(committed))
    committed.extend([1001, 1002])
    committed.read = 0
    sync.record([1000])
    sync.plan(Context(committed))
    assert committed.read <= 4


class Counting(list):
    """Counts how many of its tokens are read."""

    read = 0

    def __getitem__(self, index):
        found = super().__getitem__(index)
        self.read += len(found) if isinstance(index, slice) else 1
        return found


TOKENS = st.lists(st.integers(0, 2), min_size=1, max_size=6)


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_a_followed_plan_always_holds_all_but_the_last_token(data: st.DataObject) -> None:
    sync, committed = DraftSync(), data.draw(TOKENS)
    for _ in range(6):
        suffix = data.draw(st.lists(st.integers(0, 2), max_size=4))
        context, whole = Context(committed, suffix), committed + suffix
        lowest = data.draw(st.integers(0, sync.length))
        saved = data.draw(st.none() | st.integers(0, sync.length))
        before = list(sync.consumed)
        kept = sync.plan(context, lowest=lowest, saved=saved)
        assert kept in (0, saved, len(before)) or kept >= lowest
        assert before[:kept] == whole[:kept]
        sync.record_trim(kept)
        sync.record(between(context, kept, len(context) - 1))
        assert list(sync.consumed) == whole[:-1]
        drafts = data.draw(TOKENS)
        sync.record([whole[-1], *drafts[:-1]])
        kept = data.draw(st.integers(0, len(suffix)))
        new = suffix[:kept] + data.draw(TOKENS)
        sync.observe(Commit(position=len(committed), tokens=tuple(new)))
        committed = committed + new
        assert list(sync.consumed[: sync.final]) == committed[: sync.final]

"""Definitions of the figures, checked on scripted requests."""

import json

import pytest

from outrider.telemetry import counters as c


def request() -> c.Counters:
    """Prefill, then windows: 3 drafts of which 1 kept, 2 of which 2 kept, none; 2 tokens cut."""
    counters = c.Counters(prompt_n=5, first_tokens=1, exact=True, predicted_ms=500.0)
    for drafts, kept in ((3, 1), (2, 2)):
        counters.propose("suffix", drafts)
        counters.judge(["suffix"] * drafts, kept)
    counters.propose("suffix", 4)  # a voided window: proposed, never judged
    counters.windows_voided = 1
    counters.judge([], 0)
    counters.roll_back("log", 1.5)
    counters.epochs_closed = 3
    counters.cut = 2
    counters.emitted = 5
    return counters


def test_identity_holds_and_breaks():
    counters = request()
    counters.check()
    counters.emitted += 1
    with pytest.raises(AssertionError, match=r"emitted 6 tokens, but accepted 3 \+ epochs closed"):
        counters.check()


def test_accepted_verified_proposed_are_ordered():
    counters = request()
    counters.proposed = 4
    with pytest.raises(AssertionError, match=r"accepted 3 <= verified 5 <= proposed 4"):
        counters.check()


def test_figures_of_a_request():
    counters = request()
    assert c.acceptance_rate(counters) == 3 / 5
    assert c.mean_acceptance_length(counters) == 4 / 3
    assert c.accepted_per_position(counters) == [1.0, 0.5, 0.0]
    assert c.conditional_per_position(counters) == [1.0, 0.5]
    assert counters.by_source["suffix"] == c.SourceCount(proposed=9, verified=5, accepted=3)


def test_conditional_acceptance_counts_what_a_boundary_rejects():
    counters = request()
    counters.rejected = 2  # one in its window, one in a window behind that was voided
    assert c.conditional_acceptance(counters) == 3 / 5
    assert c.conditional_acceptance(c.Counters()) == 0.0


def test_plain_decoding_has_mean_acceptance_length_one():
    counters = c.Counters(first_tokens=1, emitted=8, epochs_closed=7)
    for _ in range(7):
        counters.judge([], 0)
    counters.check()
    assert c.mean_acceptance_length(counters) == 1.0
    assert c.mean_acceptance_length(c.Counters()) == 0.0


def test_timings_are_the_agreed_keys_and_json():
    record = c.timings(request())
    assert set(record) == {
        "predicted_n",
        "predicted_ms",
        "predicted_per_second",
        "prompt_n",
        "cache_n",
        "prompt_ms",
        "draft_n",
        "draft_n_accepted",
        "speculative_windows",
        "speculative_proposed_n",
        "speculative_verified_n",
        "speculative_accepted_n",
        "speculative_accepted_per_position",
        "mean_acceptance_length",
        "speculative_rejected_n",
        "speculative_conditional_acceptance",
        "verify_window_stale_ms",
        "verify_window_occupancy_ms_by_depth",
        "rollback_log_n",
        "rollback_snapshots_n",
        "rollback_checkpoint_n",
        "rollback_ms",
        "draft_rollback_ms",
        "drafter_faults",
        "restarts",
        "draft_ms",
        "verify_ms",
        "exact",
        "speculative_fallback_draft_proposals",
        "speculative_fallback_draft_tokens",
        "speculative_fallback_draft_ms",
        "verify_window_opened",
        "verify_window_max_in_flight",
        "verify_window_voided",
        "verify_window_skipped",
        "verify_window_refill_attempts",
        "verify_window_refill_hits",
        "verify_window_refill_tokens",
        "verify_window_refill_misses",
    }
    assert json.loads(json.dumps(record)) == record
    assert record["predicted_per_second"] == 10.0
    assert (record["draft_n"], record["draft_n_accepted"]) == (5, 3)
    assert (record["rollback_log_n"], record["rollback_ms"]) == (1, 1.5)
    assert record["verify_window_voided"] == 1


def test_merged_requests_keep_the_identity_and_their_parts():
    one, two = request(), request()
    two.exact, two.max_in_flight = False, 3
    one.occupy(2, 4.0)
    two.occupy(0, 1.0)
    total = c.merge([one, two])
    total.check()
    assert (total.emitted, total.first_tokens, total.proposed) == (10, 2, 18)
    assert total.verified_at == [4, 4, 2]
    assert total.by_source["suffix"].accepted == 6
    assert total.rollbacks == {"log": 2}
    assert total.occupancy_ms == [1.0, 0.0, 4.0]
    assert (total.exact, total.max_in_flight) == (False, 3)
    assert one.rollbacks == {"log": 1}
    assert one.verified_at == [2, 2, 1]
    assert not c.merge([]).exact

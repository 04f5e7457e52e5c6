"""Rows of the statistics table."""

from outrider.telemetry.counters import Counters, table_rows, timings


def test_rows_of_a_speculative_request():
    counters = Counters(prompt_n=3, prompt_ms=2.0, first_tokens=1, emitted=4, predicted_ms=8.0)
    counters.propose("suffix", 4)
    counters.judge(["suffix"] * 4, 2)
    counters.roll_back("log", 0.25)
    counters.windows_voided = 1
    table = dict(table_rows(timings(counters)))
    assert table["prompt"] == "3 tokens in 2.0 ms"
    assert table["speed"] == "500.0 tokens/s"
    assert table["mean acceptance length"] == "3.00"
    assert table["drafts"] == "4 proposed, 4 verified, 2 accepted (50.0% of verified)"
    assert table["accepted by position"] == "100% 100% 0% 0%"
    assert table["rollbacks by log"] == "1"
    assert table["windows voided"] == "1"
    assert table["same bits as plain decoding"] == "not claimed"
    assert "rollbacks by snapshots" not in table


def test_plain_decoding_has_no_draft_rows():
    table = dict(table_rows(timings(Counters(exact=True))))
    assert "drafts" not in table
    assert table["same bits as plain decoding"] == "yes"

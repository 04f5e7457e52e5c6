"""Rows of the `--stats` table: plain strings, so that any caller can print them."""

from collections.abc import Iterator, Mapping

from outrider.telemetry.counters import ROLLBACK_KINDS


def rows(timings: Mapping[str, object]) -> Iterator[tuple[str, str]]:
    """(label, value) pairs of a `timings` record; what did not happen is left out."""
    yield "prompt", f"{_count(timings, 'prompt_n')} tokens in {_ms(timings, 'prompt_ms')}"
    yield "generated", f"{_count(timings, 'predicted_n')} tokens in {_ms(timings, 'predicted_ms')}"
    yield "speed", f"{_number(timings, 'predicted_per_second'):.1f} tokens/s"
    yield "target passes", str(_count(timings, "speculative_windows"))
    yield "mean acceptance length", f"{_number(timings, 'mean_acceptance_length'):.2f}"
    if _count(timings, "speculative_proposed_n"):
        yield from _drafts(timings)
    for kind in ROLLBACK_KINDS:
        if count := _count(timings, f"rollback_{kind}_n"):
            yield f"rollbacks by {kind}", str(count)
    yield "drafting", _ms(timings, "draft_ms")
    if _number(timings, "draft_rollback_ms"):
        yield "of that, rolling the draft model back", _ms(timings, "draft_rollback_ms")
    yield "verifying", _ms(timings, "verify_ms")
    yield "rolling back", _ms(timings, "rollback_ms")
    yield "same bits as plain decoding", "yes" if timings["exact"] else "not claimed"


def _drafts(timings: Mapping[str, object]) -> Iterator[tuple[str, str]]:
    proposed, verified, accepted = (
        _count(timings, f"speculative_{word}_n") for word in ("proposed", "verified", "accepted")
    )
    rate = f" ({accepted / verified:.1%} of verified)" if verified else ""
    yield "drafts", f"{proposed} proposed, {verified} verified, {accepted} accepted{rate}"
    places = timings["speculative_accepted_per_position"]
    assert isinstance(places, list)
    if places:
        yield "accepted by position", " ".join(f"{share:.0%}" for share in places[:16])
    if fallback := _count(timings, "speculative_fallback_draft_tokens"):
        yield "drafts by the fallback", str(fallback)
    for word in ("voided", "skipped"):
        if count := _count(timings, f"verify_window_{word}"):
            yield f"windows {word}", str(count)


def _number(timings: Mapping[str, object], key: str) -> float:
    value = timings[key]
    assert isinstance(value, int | float)
    return value


def _count(timings: Mapping[str, object], key: str) -> int:
    return int(_number(timings, key))


def _ms(timings: Mapping[str, object], key: str) -> str:
    return f"{_number(timings, key):.1f} ms"

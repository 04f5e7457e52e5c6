"""Counters of one request, and the figures made from it: the only definition of each.

The engine fills a `Counters` with plain additions; everything else here is a pure reduction. Times
are in milliseconds, counts in tokens or windows. Standard library only. Words are those of
docs/architecture.md: `accepted <= verified <= proposed`; a voided window is proposed, not verified.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from itertools import zip_longest

ROLLBACK_KINDS = ("log", "snapshots", "checkpoint")


@dataclass(slots=True)
class SourceCount:
    """Drafts of one source (`suffix`, `draft`, ...): offered, judged and kept tokens."""

    proposed: int = 0
    verified: int = 0
    accepted: int = 0


@dataclass(slots=True, kw_only=True)
class Counters:
    """Mutable tally of one request, or of several merged.

    - `first_tokens`: 1 once the prefill has given its token (0 before).
    - `emitted`: tokens that left the engine, the prefill's token included; tokens dropped by a stop
      string, end token or length limit are in `cut` instead. `accepted` and `epochs_closed` count
      them all, whether cut or not.
    - `epochs_closed`: corrections and bonus tokens, which is one for each epoch that ended.
    - `reused`: tokens of the prompt whose state was kept from an earlier request.
    - `windows_judged`: target passes after the prefill, those without a draft included.
    - `verified_at[i]`, `reached_at[i]`, `accepted_at[i]`: windows that had a draft at place i; of
      these, windows that kept all drafts before it; of these, windows that kept it too.
    - `rejected`: drafts found wrong, by their own window or by the boundary before it. One that a
      boundary rejects was in a voided window or still queued: it is not `verified`.
    - `occupancy_ms[n]`: time with n windows in flight, after the prefill. `stale_ms`: compute spent
      on windows that were void before their reply came.
    - `rollbacks`: settles that took rows back, by kind; `rollback_ms` wherever that time was spent;
      `draft_rollback_ms`: the part of `draft_ms` in which a draft model's state went back.
    - `restarts`: states brought back from their tokens after a pass of several sessions had failed.
    - `drafter_faults`: drafters that failed; their requests went on without drafts.
    - `exact`: the passes ran in exact mode (same bits as plain decoding).
    """

    prompt_n: int = 0
    prompt_ms: float = 0.0
    reused: int = 0
    predicted_ms: float = 0.0
    first_tokens: int = 0
    emitted: int = 0
    cut: int = 0
    epochs_closed: int = 0
    proposed: int = 0
    verified: int = 0
    accepted: int = 0
    verified_at: list[int] = field(default_factory=list)
    reached_at: list[int] = field(default_factory=list)
    accepted_at: list[int] = field(default_factory=list)
    by_source: dict[str, SourceCount] = field(default_factory=dict)
    windows_opened: int = 0
    windows_judged: int = 0
    windows_voided: int = 0
    windows_skipped: int = 0
    rejected: int = 0
    occupancy_ms: list[float] = field(default_factory=list)
    stale_ms: float = 0.0
    max_in_flight: int = 0
    refill_attempts: int = 0
    refill_hits: int = 0
    refill_tokens: int = 0
    refill_misses: int = 0
    fallback_proposals: int = 0
    fallback_tokens: int = 0
    fallback_ms: float = 0.0
    rollbacks: dict[str, int] = field(default_factory=dict)
    rollback_ms: float = 0.0
    draft_ms: float = 0.0
    draft_rollback_ms: float = 0.0
    drafter_faults: int = 0
    restarts: int = 0
    verify_ms: float = 0.0
    exact: bool = False

    def propose(self, source: str, tokens: int) -> None:
        """Count `tokens` drafts offered by `source`."""
        self.proposed += tokens
        self._of(source).proposed += tokens

    def _of(self, source: str) -> SourceCount:
        found = self.by_source.get(source)
        if found is None:
            found = self.by_source[source] = SourceCount()
        return found

    def judge(self, sources: Sequence[str], accepted: int) -> None:
        """Count one judged window: who proposed each draft in it; the first `accepted` stay."""
        verified = len(sources)
        self.windows_judged += 1
        if not verified:
            return
        self.verified += verified
        self.accepted += accepted
        _count_prefix(self.verified_at, verified)
        _count_prefix(self.reached_at, min(accepted + 1, verified))
        _count_prefix(self.accepted_at, accepted)
        for place, source in enumerate(sources):
            count = self._of(source)
            count.verified += 1
            count.accepted += place < accepted

    def occupy(self, in_flight: int, ms: float) -> None:
        """Count `ms` with `in_flight` windows in flight."""
        if in_flight >= len(self.occupancy_ms):
            self.occupancy_ms.extend([0.0] * (in_flight + 1 - len(self.occupancy_ms)))
        self.occupancy_ms[in_flight] += ms

    def roll_back(self, kind: str, ms: float) -> None:
        """Count one settle that took rows back by `kind` (one of ROLLBACK_KINDS)."""
        self.rollbacks[kind] = self.rollbacks.get(kind, 0) + 1
        self.rollback_ms += ms

    def check(self) -> None:
        """Raise AssertionError where the counts contradict each other.

        emitted = accepted + epochs closed + the prefill's token - cut, and
        accepted <= verified <= proposed.
        """
        expected = self.accepted + self.epochs_closed + self.first_tokens - self.cut
        if self.emitted != expected:
            raise AssertionError(
                f"emitted {self.emitted} tokens, but accepted {self.accepted} + epochs closed "
                f"{self.epochs_closed} + first {self.first_tokens} - cut {self.cut} = {expected}"
            )
        if not self.accepted <= self.verified <= self.proposed:
            raise AssertionError(
                f"accepted {self.accepted} <= verified {self.verified} <= proposed "
                f"{self.proposed} does not hold"
            )


def _count_prefix(counts: list[int], length: int) -> None:
    if length > len(counts):
        counts.extend([0] * (length - len(counts)))
    for position in range(length):
        counts[position] += 1


def mean_acceptance_length(counters: Counters) -> float:
    """Emitted tokens per target pass, bonus included; 0.0 before the first pass.

    The prefill is no target pass, so its token is left out: plain decoding gives exactly 1.
    """
    if not counters.windows_judged:
        return 0.0
    return (counters.emitted - counters.first_tokens) / counters.windows_judged


def acceptance_rate(counters: Counters) -> float:
    """Accepted / verified; 0.0 where nothing was verified."""
    return counters.accepted / counters.verified if counters.verified else 0.0


def conditional_acceptance(counters: Counters) -> float:
    """Share of drafts that were right among those whose predecessors were; 0.0 before any was."""
    judged = counters.accepted + counters.rejected
    return counters.accepted / judged if judged else 0.0


def accepted_per_position(counters: Counters) -> list[float]:
    """Unconditional acceptance at each draft position: accepted there / verified there."""
    pairs = zip_longest(counters.accepted_at, counters.verified_at, fillvalue=0)
    return [accepted / verified if verified else 0.0 for accepted, verified in pairs]


def conditional_per_position(counters: Counters) -> list[float]:
    """Acceptance at each draft position given that all before it in the window were accepted."""
    pairs = zip_longest(counters.accepted_at, counters.reached_at, fillvalue=0)
    return [accepted / reached if reached else 0.0 for accepted, reached in pairs]


def per_second(tokens: int, ms: float) -> float:
    """Tokens per second; 0.0 where no time was measured."""
    return tokens * 1000.0 / ms if ms > 0 else 0.0


def merge(parts: Iterable[Counters]) -> Counters:
    """Sum of several requests' counters; `exact` only if all were, `max_in_flight` the maximum."""
    parts = list(parts)
    total = Counters(exact=bool(parts) and all(part.exact for part in parts))
    total.max_in_flight = max((part.max_in_flight for part in parts), default=0)
    for part in parts:
        _add(total, part)
    return total


def _add(total: Counters, part: Counters) -> None:
    for item in fields(Counters):
        mine, other = getattr(total, item.name), getattr(part, item.name)
        if item.name in ("exact", "max_in_flight"):
            continue
        if item.name in ("verified_at", "reached_at", "accepted_at", "occupancy_ms"):
            mine[:] = [a + b for a, b in zip_longest(mine, other, fillvalue=0)]
        elif item.name == "rollbacks":
            mine.update({kind: mine.get(kind, 0) + n for kind, n in other.items()})
        elif item.name == "by_source":
            _add_sources(mine, other)
        else:
            setattr(total, item.name, mine + other)


def _add_sources(total: dict[str, SourceCount], part: Mapping[str, SourceCount]) -> None:
    for name, count in part.items():
        mine = total.setdefault(name, SourceCount())
        mine.proposed += count.proposed
        mine.verified += count.verified
        mine.accepted += count.accepted


def timings(counters: Counters) -> dict[str, object]:
    """The JSON-ready record that `--json`, the server and the benchmarks report.

    `draft_n` and `draft_n_accepted` are named as other local servers name them and count verified
    and accepted drafts, so that their ratio is the acceptance rate.
    """
    return {
        "prompt_n": counters.prompt_n,
        "prompt_ms": counters.prompt_ms,
        "cache_n": counters.reused,
        "predicted_n": counters.emitted,
        "predicted_ms": counters.predicted_ms,
        "predicted_per_second": per_second(counters.emitted, counters.predicted_ms),
        "draft_n": counters.verified,
        "draft_n_accepted": counters.accepted,
        "speculative_windows": counters.windows_judged,
        "speculative_proposed_n": counters.proposed,
        "speculative_verified_n": counters.verified,
        "speculative_accepted_n": counters.accepted,
        "speculative_accepted_per_position": accepted_per_position(counters),
        "speculative_rejected_n": counters.rejected,
        "speculative_conditional_acceptance": conditional_acceptance(counters),
        "mean_acceptance_length": mean_acceptance_length(counters),
        "draft_ms": counters.draft_ms,
        "draft_rollback_ms": counters.draft_rollback_ms,
        "drafter_faults": counters.drafter_faults,
        "restarts": counters.restarts,
        "verify_ms": counters.verify_ms,
        "rollback_ms": counters.rollback_ms,
        "exact": counters.exact,
        **{f"rollback_{kind}_n": counters.rollbacks.get(kind, 0) for kind in ROLLBACK_KINDS},
        **_window_timings(counters),
        **_fallback_timings(counters),
    }


def _window_timings(counters: Counters) -> dict[str, object]:
    return {
        "verify_window_opened": counters.windows_opened,
        "verify_window_max_in_flight": counters.max_in_flight,
        "verify_window_voided": counters.windows_voided,
        "verify_window_skipped": counters.windows_skipped,
        "verify_window_stale_ms": counters.stale_ms,
        "verify_window_occupancy_ms_by_depth": list(counters.occupancy_ms),
        "verify_window_refill_attempts": counters.refill_attempts,
        "verify_window_refill_hits": counters.refill_hits,
        "verify_window_refill_tokens": counters.refill_tokens,
        "verify_window_refill_misses": counters.refill_misses,
    }


def _fallback_timings(counters: Counters) -> dict[str, object]:
    return {
        "speculative_fallback_draft_proposals": counters.fallback_proposals,
        "speculative_fallback_draft_tokens": counters.fallback_tokens,
        "speculative_fallback_draft_ms": counters.fallback_ms,
    }


def table_rows(timings: Mapping[str, object]) -> Iterator[tuple[str, str]]:
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

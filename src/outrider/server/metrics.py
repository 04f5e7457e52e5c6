"""Figures for Prometheus. The speculation counters end as other servers' do: `spec_decode_…`."""

import logging
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)

from outrider.engine.scheduler import Event, Piece, SchedulerFigures
from outrider.server.problems import Problem
from outrider.telemetry.counters import Counters

LOG = logging.getLogger(__name__)
SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)
SIMPLE: tuple[tuple[str, str, str], ...] = (
    ("prompt_tokens", "prompt_n", "Prompt tokens of requests that got their first token"),
    ("prompt_tokens_cached", "reused", "Prompt tokens whose state was kept from before"),
    ("generation_tokens", "emitted", "Tokens generated"),
    ("target_passes", "windows_judged", "Windows judged, plain steps included"),
    ("spec_decode_num_draft_tokens", "verified", "Drafts in judged windows"),
    ("spec_decode_num_accepted_tokens", "accepted", "Drafts kept"),
    ("spec_decode_num_proposed_tokens", "proposed", "Drafts offered, voided ones included"),
    ("spec_decode_fallback_tokens", "fallback_tokens", "Drafts of the fallback"),
    ("drafter_faults", "drafter_faults", "Drafters that failed; their requests went on plainly"),
    ("restarts", "restarts", "States brought back from their tokens after a pass had failed"),
    ("windows_voided", "windows_voided", "Windows that became stale in flight"),
    ("windows_skipped", "windows_skipped", "Stale windows that stages did not run"),
)
TIMES: tuple[tuple[str, str, str], ...] = (
    ("draft_milliseconds", "draft_ms", "Time spent drafting"),
    (
        "draft_rollback_milliseconds",
        "draft_rollback_ms",
        "Of that, taking a draft model's rows back",
    ),
    ("rollback_milliseconds", "rollback_ms", "Time spent taking rows back"),
    ("stale_milliseconds", "stale_ms", "Compute spent on windows that became stale"),
)


@dataclass(slots=True)
class Watch:
    """Latencies of one request's sequences."""

    metrics: "Metrics"
    began: float
    last: dict[int, float] = field(default_factory=dict)

    def see(self, index: int, event: Event) -> None:
        """Take the time of an event."""
        now = time.monotonic()
        if not isinstance(event, Piece):
            self.metrics.whole.observe(now - self.began)
            return
        if index not in self.last:
            self.metrics.first.observe(now - self.began)
        else:
            gap = (now - self.last[index]) / max(len(event.tokens), 1)
            for _ in event.tokens:
                self.metrics.between.observe(gap)
        self.last[index] = now


class Metrics:
    """All figures of one server."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.requests = Counter(
            "outrider_requests",
            "HTTP requests answered",
            ["path", "status"],
            registry=self.registry,
        )
        self.failed = Counter(
            "outrider_streams_failed",
            "Streams that ended with an error",
            ["code"],
            registry=self.registry,
        )
        self.first = self._times("time_to_first_token", "From a request to its first token")
        self.between = self._times("inter_token_latency", "Between tokens of one sequence")
        self.whole = self._times("request_duration", "From a request to its sequence's end")

    def _times(self, name: str, text: str) -> Histogram:
        return Histogram(f"outrider_{name}_seconds", text, buckets=SECONDS, registry=self.registry)

    def fail(self, name: str, problem: Problem) -> None:
        """A stream ends with an error, after the status that was counted was sent."""
        LOG.warning("%s ended with an error: %s", name, problem.message)
        self.failed.labels(problem.code or str(problem.status)).inc()

    def watch(self, sequences: int) -> Watch:
        """Follow a request of some sequences from now on."""
        del sequences
        return Watch(self, time.monotonic())

    def page(self, snapshot: SchedulerFigures) -> bytes:
        """Everything in Prometheus' text form."""
        own = CollectorRegistry()
        own.register(_Collected(snapshot))
        text: bytes = generate_latest(self.registry) + generate_latest(own)
        return text


@dataclass(frozen=True, slots=True, eq=False)
class _Collected:
    """The engine's own counts as a collector."""

    snapshot: SchedulerFigures

    def collect(self) -> Iterator[Metric]:
        yield from _gauges(self.snapshot)
        methods = self.snapshot.counters
        for name, key, text in (*SIMPLE, *TIMES):
            values = {method: getattr(counters, key) for method, counters in methods.items()}
            yield _counter(name, text, values.items())
        first = {m: c.verified_at[0] if c.verified_at else 0 for m, c in methods.items()}
        yield _counter("spec_decode_num_drafts", "Judged windows with drafts", first.items())
        yield _labelled(
            "spec_decode_num_accepted_tokens_per_pos",
            "Drafts kept, by their place in the window",
            "position",
            [
                (m, str(place), count)
                for m, c in methods.items()
                for place, count in enumerate(c.accepted_at)
            ],
        )
        yield _labelled(
            "rollbacks",
            "Settles that took rows back, by kind",
            "kind",
            [(m, kind, n) for m, c in methods.items() for kind, n in c.rollbacks.items()],
        )
        yield _labelled(
            "window_occupancy_milliseconds",
            "Time with so many windows in flight",
            "windows",
            [
                (m, str(depth), ms)
                for m, c in methods.items()
                for depth, ms in enumerate(c.occupancy_ms)
            ],
        )
        yield _lengths(methods.items())


def _gauges(snapshot: SchedulerFigures) -> Iterator[Metric]:
    for name, value, text in (
        ("sequences_running", snapshot.running, "Sequences that run"),
        ("sequences_waiting", snapshot.waiting, "Sequences in the queue"),
        ("state_reserved_bytes", snapshot.state_bytes, "State that running sequences may fill"),
        ("prefixes_kept", snapshot.prefixes, "Prompts whose state is kept"),
        ("prefix_bytes", snapshot.prefix_bytes, "Bytes of those states"),
    ):
        yield GaugeMetricFamily(f"outrider_{name}", text, value=value)


def _counter(name: str, text: str, values: Iterable[tuple[str, float]]) -> Metric:
    family = CounterMetricFamily(f"outrider_{name}", text, labels=["method"])
    for method, value in values:
        family.add_metric([method], value)
    return family


def _labelled(name: str, text: str, label: str, values: Iterable[tuple[str, str, float]]) -> Metric:
    family = CounterMetricFamily(f"outrider_{name}", text, labels=["method", label])
    for method, key, value in values:
        family.add_metric([method, key], value)
    return family


def _lengths(methods: Iterable[tuple[str, Counters]]) -> Metric:
    """Drafts that the controller, or the fixed number, had judged in each window."""
    family = HistogramMetricFamily(
        "outrider_spec_decode_draft_length", "Drafts in each judged window", labels=["method"]
    )
    for method, counters in methods:
        more = [*counters.verified_at, 0]
        buckets = [
            (str(float(length)), float(counters.windows_judged - longer))
            for length, longer in enumerate(more)
        ]
        buckets.append(("+Inf", float(counters.windows_judged)))
        family.add_metric([method], buckets, sum_value=float(counters.verified))
    return family

"""The conditioned link, in times that the test makes up."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.stage.link import Link, LinkSettings

times = st.lists(st.tuples(st.floats(0, 0.2), st.integers(0, 20_000)), min_size=1, max_size=30)
delays = st.floats(0, 200)


def sent(settings: LinkSettings, gaps, seed=1):
    """A link with items 0, 1, ... sent `gaps` seconds apart; also when each was sent."""
    link, now, moments = Link(settings, seed), 0.0, []
    for item, (gap, nbytes) in enumerate(gaps):
        now += gap
        link.send(item, nbytes, now)
        moments.append(now)
    return link, moments


def arrivals(link: Link) -> list[tuple[float, int]]:
    found = []
    while len(link):
        moment = link.next_due
        assert link.due(moment - 1e-6) == []
        found += [(moment, item) for item in link.due(moment)]
    return found


@given(times, delays, st.floats(0, 1), st.sampled_from([None, 0.5, 100.0]))
def test_never_reorders_and_keeps_within_its_bounds(gaps, delay, share, mbps):
    settings = LinkSettings(delay_ms=delay, jitter_ms=delay * share, mbps=mbps)
    link, moments = sent(settings, gaps)
    found = arrivals(link)
    assert [item for _, item in found] == list(range(len(gaps)))
    assert [moment for moment, _ in found] == sorted(moment for moment, _ in found)
    for moment, item in found:
        assert moment >= moments[item] + (delay - settings.jitter_ms) / 1e3 - 1e-9
        if mbps is None:  # The latest that any before it, or itself, may take.
            assert moment <= moments[item] + (delay + settings.jitter_ms) / 1e3 + 1e-9


@given(times, delays)
def test_a_seed_gives_the_same_arrivals_and_another_seed_others(gaps, delay):
    settings = LinkSettings(delay_ms=delay + 1, jitter_ms=delay + 1)
    same = [arrivals(sent(settings, gaps, seed)[0]) for seed in (1, 1, 2)]
    assert same[0] == same[1]
    assert same[0] != same[2]


def test_bandwidth_spaces_what_is_sent_at_once():
    settings = LinkSettings(delay_ms=10.0, mbps=8.0)  # 1,000 bytes a millisecond
    link, _ = sent(settings, [(0.0, 5000), (0.0, 1000), (0.1, 2000)])
    assert [moment for moment, _ in arrivals(link)] == pytest.approx([0.015, 0.016, 0.112])


def test_without_settings_everything_is_there_at_once():
    link, _ = sent(LinkSettings(), [(0.0, 10), (0.5, 10)])
    assert link.due(0.0) == [0]
    assert link.due(0.5) == [1]

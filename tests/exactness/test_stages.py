"""Layers cut into stages over slow, jittery links: token for token what the oracle says."""

from itertools import product

import pytest

from outrider.errors import OutriderError
from outrider.stage.layer_range import LayerRange, Settled
from outrider.stage.link import Link
from outrider.state.spec import POLICIES
from tests.exactness.cells import Cell, check_cell
from tests.exactness.pairs import pairs, pairwise
from tests.exactness.targets import SAMPLINGS

DEPTHS = (1, 2, 4, 16)
SIZES = ((4,), (1, 3), (2, 1, 1))
"""Layers of the stages; the last of three holds attention only in the hybrid target."""
AXES = (DEPTHS, SIZES, ("hybrid", "deep"), tuple(SAMPLINGS), POLICIES)
COVER = pairwise(*AXES)


def check(targets, depth, sizes, name, sampling, policy, method="partly"):
    cell = Cell(
        method=method,
        policy=policy,
        sampling=sampling,
        depth=depth,
        sizes=sizes,
        width=4,
        count=4,
    )
    check_cell(targets[name], cell)


def test_the_cover_is_one():
    assert set().union(*map(pairs, COVER)) == set().union(*map(pairs, product(*AXES)))
    assert len(COVER) < 20


@pytest.mark.parametrize("row", COVER, ids=str)
def test_every_pair(targets, row):
    check(targets, *row)


@pytest.mark.parametrize("method", ["suffix", "right", "silent"])
def test_other_drafters(targets, method):
    check(targets, 4, (1, 3), "hybrid", "greedy", "log", method)


settle = LayerRange.settle
send = Link.send


def settle_only_the_first_stage(part, slot, window):
    return settle(part, slot, window) if part.decoder.first == 0 else Settled(None, 0.0)


def overtake(link, item, nbytes, now):
    """Of two items on the way, the newer arrives first."""
    send(link, item, nbytes, now)
    if len(link.flying) > 1:
        (late, old), (later, new) = link.flying[-2], link.flying[-1]
        link.flying[-2], link.flying[-1] = (late, new), (later, old)


@pytest.mark.parametrize(
    ("name", "fault"),
    [
        ("outrider.stage.layer_range.LayerRange.settle", settle_only_the_first_stage),
        ("outrider.stage.link.Link.send", overtake),
    ],
)
def test_a_planted_fault_fails(targets, monkeypatch, name, fault):
    monkeypatch.setattr(name, fault)
    with pytest.raises((AssertionError, OutriderError, IndexError)):
        check(targets, 4, (1, 3), "hybrid", "greedy", "log")


@pytest.mark.soak
@pytest.mark.parametrize("row", list(product(*AXES)), ids=str)
def test_the_product(targets, row):
    check(targets, *row)

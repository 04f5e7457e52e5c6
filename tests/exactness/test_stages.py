"""Layers cut into stages over slow, jittery links: token for token what the oracle says."""

from itertools import product

import pytest

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


@pytest.mark.soak
@pytest.mark.parametrize("row", list(product(*AXES)), ids=str)
def test_the_product(targets, row):
    check(targets, *row)

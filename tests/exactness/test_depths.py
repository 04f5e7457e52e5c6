"""Windows in flight: any depth, any run-ahead, a state that truly runs ahead: the same tokens."""

import pytest

from outrider.state.spec import POLICIES
from tests.exactness.cells import Cell, check_cell, run_cell
from tests.exactness.targets import SAMPLINGS
from tests.helpers.scripted import SCRIPTS


@pytest.mark.parametrize("late", [False, True], ids=["local", "late"])
@pytest.mark.parametrize("depth", [2, 4, 16])
@pytest.mark.parametrize("method", ["suffix", *SCRIPTS])
def test_depths(hybrid, method, depth, late):
    check_cell(hybrid, Cell(method=method, depth=depth, width=4, late=late))


@pytest.mark.parametrize("runahead", [2, 5, 24])
@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_run_ahead(hybrid, runahead, sampling):
    check_cell(hybrid, Cell(method="partly", sampling=sampling, runahead=runahead, late=True))


@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("method", ["partly", "silent", "ngram-cache"])
def test_every_policy_takes_back_what_ran_ahead(hybrid, method, policy, sampling):
    cell = Cell(method=method, policy=policy, sampling=sampling, depth=4, width=5, late=True)
    check_cell(hybrid, cell)


@pytest.mark.parametrize("capacity", [1, 3, 6, 11])
@pytest.mark.parametrize("policy", ["log", "snapshots"])
@pytest.mark.parametrize("depth", [1, 4])
def test_windows_beyond_the_capacity_take_checkpoints(hybrid, policy, depth, capacity):
    late = depth > 1
    cell = Cell(method="partly", policy=policy, depth=depth, capacity=capacity, late=late)
    counts = run_cell(hybrid, cell)
    assert (counts.rollbacks.get("checkpoint", 0) > 0) is (capacity < 8 or late)


def test_dense_runs_ahead(dense):
    check_cell(dense, Cell(method="partly", depth=4, late=True))

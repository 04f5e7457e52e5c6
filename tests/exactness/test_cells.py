"""Every method, policy, sampling and kind of target: token for token what the oracle says."""

import pytest

from outrider.assemble.drafter import LOOKUPS
from outrider.state.spec import POLICIES
from tests.exactness.cells import BLOCKS, HEADS, METHODS, Cell, check_cell
from tests.exactness.targets import SAMPLINGS, prompts

LEAST_MARGIN = 1e-6
DENSE_METHODS = [method for method in METHODS if method != "mtp"]


@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("name", ["hybrid", "dense"])
def test_the_oracle_is_sure_of_its_decisions(targets, name, sampling):
    """Else rounding alone could make a difference: choose another seed."""
    outputs = targets[name].oracle(sampling, prompts(), 48)
    assert min(output.margin for output in outputs) > LEAST_MARGIN
    assert len({token for output in outputs for token in output.tokens}) > 20


@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("method", METHODS)
def test_hybrid(hybrid, method, policy, sampling):
    check_cell(hybrid, Cell(method=method, policy=policy, sampling=sampling))


@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("method", DENSE_METHODS)
def test_dense(dense, method, sampling):
    check_cell(dense, Cell(method=method, sampling=sampling))


@pytest.mark.parametrize("method", HEADS)
def test_hidden_states_come_from_several_stages(hybrid, method):
    check_cell(hybrid, Cell(method=method, sizes=(1, 3)))


@pytest.mark.parametrize("method", [*HEADS, *BLOCKS])
def test_windows_beyond_the_capacity(hybrid, method):
    check_cell(hybrid, Cell(method=method, capacity=3))


@pytest.mark.soak
@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("policy", ["snapshots", "checkpoint"])
@pytest.mark.parametrize("method", DENSE_METHODS)
def test_dense_under_policies_that_it_does_not_need(dense, method, policy, sampling):
    check_cell(dense, Cell(method=method, policy=policy, sampling=sampling))


@pytest.mark.soak
@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("name", ["hybrid", "dense"])
@pytest.mark.parametrize("method", ["off", *LOOKUPS, "partly"])
def test_fifty_prompts(targets, name, method, sampling):
    check_cell(targets[name], Cell(method=method, sampling=sampling, count=50, tokens=128))

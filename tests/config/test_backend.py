"""Settings that only one backend knows."""

import pytest

from outrider.assemble.decisions import decide
from outrider.config.checks import check, llama_cpp_faults
from outrider.config.settings import (
    LinkConfig,
    RunConfig,
    SpeculativeConfig,
    StagesConfig,
    StateConfig,
    TargetConfig,
)
from outrider.errors import ConfigError

LLAMA_CPP = {
    "target.device = 'cuda' means nothing (it has target.gpu_layers": {
        "target": {"device": "cuda"}
    },
    "target.dtype = 'bfloat16' means nothing": {"target": {"dtype": "bfloat16"}},
    "target.exact = true cannot be kept": {"target": {"exact": True}},
    "state.rollback = 'log' means nothing": {"state": StateConfig(rollback="log")},
    "speculative.method = 'mtp' means nothing": {"speculative": SpeculativeConfig(method="mtp")},
    "stages.count = 2 means nothing": {"stages": StagesConfig(count=2)},
    "stages.processes = True means": {"stages": StagesConfig(processes=True)},
    "stages.link = ": {"stages": StagesConfig(link=LinkConfig(delay_ms=3))},
}


def make(backend: str, target: dict | None = None, **sections) -> RunConfig:
    return RunConfig(target=TargetConfig(backend=backend, **(target or {})), **sections)


@pytest.mark.parametrize(("message", "sections"), LLAMA_CPP.items())
def test_what_llama_cpp_cannot_follow_is_refused(message, sections):
    with pytest.raises(ConfigError) as caught:
        check(make("llama.cpp", **sections))
    assert str(caught.value).startswith(message)
    assert str(caught.value).endswith(
        "with target.backend = 'llama.cpp': leave one of the two out."
    )


@pytest.mark.parametrize(("message", "sections"), LLAMA_CPP.items())
def test_auto_can_still_choose_torch(message, sections):
    config = check(make("auto", **sections))
    assert next(llama_cpp_faults(config)).startswith(message)


@pytest.mark.parametrize("key", ["gpu_layers", "batch", "micro_batch"])
def test_what_torch_does_not_know_is_refused(key):
    with pytest.raises(ConfigError, match=rf"target\.{key} = 7 means nothing \(it is llama\.cpp's"):
        check(make("torch", {key: 7}))
    check(make("llama.cpp", {key: 7}))


@pytest.mark.parametrize("rollback", ["auto", "snapshots", "checkpoint"])
def test_other_policies_go_with_llama_cpp(rollback):
    config = make("llama.cpp", state=StateConfig(rollback=rollback))
    assert check(config) is config
    assert list(llama_cpp_faults(config)) == []


@pytest.mark.parametrize(
    ("sections", "name", "value"),
    [
        ({}, "backend", "torch"),
        ({"target": {"device": "cuda"}}, "kernels", "torch"),
        ({"target": {"exact": False}}, "kernels", "compiled, equality not claimed"),
        ({"stages": StagesConfig(count=2)}, "drafts", "link"),
        ({"stages": StagesConfig(count=2)}, "stages", "2"),
        ({"speculative": SpeculativeConfig(max_draft_tokens=3)}, "drafts", "fixed"),
        ({"speculative": SpeculativeConfig(max_draft_tokens=3)}, "windows", "4 rows, 1 in flight"),
        ({"state": StateConfig(capacity=5)}, "rollback", "log, 5 rows"),
    ],
)
def test_each_decision_is_made_once_and_has_a_reason(sections, name, value):
    config = check(make("torch", **sections))
    found = {one.name: one for one in decide(config).explained}
    assert found[name].value == value
    assert all(one.reason for one in found.values())
    assert str(found[name]).startswith(f"{name} = {value}: ")

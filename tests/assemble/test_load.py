"""`Engine.load` takes sections as records, mappings or their one key, and refuses all else."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from outrider.assemble.engine import Engine
from outrider.config.settings import (
    LinkConfig,
    RunConfig,
    SpeculativeConfig,
    StagesConfig,
    StateConfig,
    TargetConfig,
    VerifyWindowConfig,
)
from outrider.errors import ConfigError


@pytest.fixture
def loaded(monkeypatch: pytest.MonkeyPatch) -> list[RunConfig]:
    """The configurations that reached `load_run`, where nothing is loaded."""
    seen: list[RunConfig] = []
    monkeypatch.setattr(Engine, "load_run", lambda config: (seen.append(config), SimpleNamespace()))
    return seen


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, RunConfig()),
        ({"target": "demo"}, RunConfig()),
        ({"target": Path("a") / "b"}, RunConfig(target=TargetConfig(path="a/b"))),
        (
            {"target": {"path": Path("m"), "max_length": 9}},
            RunConfig(target=TargetConfig(path="m", max_length=9)),
        ),
        ({"target": TargetConfig(path="m")}, RunConfig(target=TargetConfig(path="m"))),
        (
            {"speculative": "ngram-cache"},
            RunConfig(speculative=SpeculativeConfig(method="ngram-cache")),
        ),
        (
            {"speculative": {"method": "draft", "draft_model": Path("d")}},
            RunConfig(speculative=SpeculativeConfig(method="draft", draft_model="d")),
        ),
        (
            {"speculative": {"verify_window": {"depth": 2}}},
            RunConfig(speculative=SpeculativeConfig(verify_window=VerifyWindowConfig(depth=2))),
        ),
        (
            {"speculative": {"verify_window": VerifyWindowConfig(depth=2)}},
            RunConfig(speculative=SpeculativeConfig(verify_window=VerifyWindowConfig(depth=2))),
        ),
        (
            {"state": {"rollback": "snapshots"}, "stages": {"link": {"delay_ms": 1}}},
            RunConfig(
                state=StateConfig(rollback="snapshots"),
                stages=StagesConfig(link=LinkConfig(delay_ms=1)),
            ),
        ),
    ],
)
def test_sections_are_what_they_say(
    loaded: list[RunConfig], given: dict[str, Any], expected: RunConfig
) -> None:
    Engine.load(**given)
    assert loaded == [expected]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"target": 5}, "target = 5 is no TargetConfig: give one, or a mapping of its keys, or"),
        ({"target": {"pth": "m"}}, "target.pth is not a configuration key: did you mean target.pa"),
        ({"target": ""}, "target.path = '' is empty"),
        ({"speculative": "sufix"}, r"speculative.method = 'sufix' is not .* mean 'suffix'\?"),
        (
            {"speculative": {"metod": "off"}},
            "speculative.metod is not a .* mean speculative.method",
        ),
        ({"speculative": {"method": 3}}, "speculative.method = 3 is not allowed"),
        ({"speculative": {1: 3}}, "speculative.1 is not a configuration key"),
        ({"speculative": {"verify_window": 4}}, "speculative.verify_window = 4 is a section"),
        (
            {"speculative": {"verify_window": {"deph": 4}}},
            "speculative.verify_window.deph is not a .* mean speculative.verify_window.depth",
        ),
        (
            {"speculative": StateConfig()},
            r"speculative = StateConfig\(.*\) is no SpeculativeConfig",
        ),
        ({"speculative": ["suffix"]}, r"speculative = \['suffix'\] is no SpeculativeConfig"),
        ({"state": "log"}, "state = 'log' is no StateConfig: give one, or a mapping of its keys."),
        ({"state": {"capacity": 0}}, "state.capacity = 0 is out of range"),
        ({"stages": 2}, "stages = 2 is no StagesConfig"),
        ({"stages": {"link": VerifyWindowConfig()}}, "stages.link.max_tokens is not a config"),
    ],
)
def test_sections_that_are_none(
    loaded: list[RunConfig], given: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        Engine.load(**given)
    assert loaded == []


def test_a_contradiction_is_refused_as_ever() -> None:
    with pytest.raises(ConfigError, match=r"needs speculative\.draft_model, but none"):
        Engine.load("demo", speculative="draft")

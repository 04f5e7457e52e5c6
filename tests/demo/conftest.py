"""The shipped target, and texts that it wrote, for tests of the drafters beside it."""

import pytest

from benchmarks import alignment
from outrider.assemble.engine import Engine
from outrider.assemble.target import LoadedTarget, load_target
from outrider.config.settings import SpeculativeConfig, TargetConfig


@pytest.fixture(scope="module")
def target() -> LoadedTarget:
    return load_target(TargetConfig())


@pytest.fixture(scope="module")
def texts(target: LoadedTarget) -> list[alignment.Text]:
    engine = Engine.load("demo", speculative=SpeculativeConfig(method="off"))
    return alignment.texts(engine, target.decoder.config.num_layers, prompts=24, new=40)

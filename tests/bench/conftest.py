"""The engine's own clock follows the scripted world."""

import pytest

from tests.bench.world import World, module_clock


@pytest.fixture
def world(monkeypatch) -> World:
    world = World()
    for module in ("loop", "session"):
        monkeypatch.setattr(f"outrider.engine.{module}.time", module_clock(world))
    return world

import pytest

from tests.exactness.targets import ARCHITECTURES, Target, make_target


@pytest.fixture(scope="session")
def targets(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Target]:
    return {name: make_target(name, tmp_path_factory.mktemp(name)) for name in ARCHITECTURES}


@pytest.fixture(scope="session")
def hybrid(targets: dict[str, Target]) -> Target:
    return targets["hybrid"]


@pytest.fixture(scope="session")
def dense(targets: dict[str, Target]) -> Target:
    return targets["dense"]

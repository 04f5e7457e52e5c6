import pytest

from tests.exactness.targets import Target, make_target


@pytest.fixture(scope="session")
def hybrid(tmp_path_factory: pytest.TempPathFactory) -> Target:
    return make_target("hybrid", tmp_path_factory.mktemp("hybrid"))

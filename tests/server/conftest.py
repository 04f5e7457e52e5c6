import pytest

from tests.exactness.conftest import hybrid, targets  # noqa: F401 - fixtures
from tests.server.world import running


@pytest.fixture
def world(hybrid):  # noqa: F811 - the fixture
    with running(hybrid.stage("log", 8)) as found:
        yield found

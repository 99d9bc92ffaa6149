"""What tests of the engine share."""

from collections.abc import Iterator

import pytest

from lab.engine.environment import environment
from tests.support.api_server import ApiServer, api_server
from tests.support.engine import require_engine


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    """An API server without nodes."""
    folder = tmp_path_factory.mktemp("api-server")
    require_engine(environment(folder)["PATH"])
    with api_server(folder) as found:
        yield found

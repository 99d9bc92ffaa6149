"""The server of the tests of the client."""

from collections.abc import Iterator

import pytest

from tests.support.prepared_api import Server, running


@pytest.fixture
def server() -> Iterator[Server]:
    with running() as made:
        yield made

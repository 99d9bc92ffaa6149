"""The folder in which functions of host scripts run."""

from pathlib import Path

import pytest

from tests.support.bash import Box


@pytest.fixture
def box(tmp_path: Path) -> Box:
    return Box(tmp_path)

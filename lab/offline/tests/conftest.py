"""Started plugins and an SSH host for their tests; everything is on loopback and ends with the test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from lab.offline.plugins.command.provider import CommandProvider
from lab.offline.plugins.random.provider import RandomProvider
from lab.offline.tests.loopback_host import SshHost
from lab.offline.tests.plugin_engine import Engine


@pytest.fixture
def command() -> Iterator[Engine]:
    engine = Engine(CommandProvider())
    yield engine
    engine.close()


@pytest.fixture
def random_plugin() -> Iterator[Engine]:
    engine = Engine(RandomProvider())
    yield engine
    engine.close()


@pytest.fixture
def host(tmp_path: Path) -> Iterator[SshHost]:
    host = SshHost(tmp_path)
    yield host
    host.close()

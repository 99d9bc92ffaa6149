"""Started plugins and an SSH host for their tests; everything is on loopback and ends with the test."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

# The modules beside this file are imported by plain name.
sys.path.insert(0, str(Path(__file__).parent))

from loopback_host import SshHost
from plugin_engine import Engine

from lab.plugins.command.provider import CommandProvider
from lab.plugins.random.provider import RandomProvider


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

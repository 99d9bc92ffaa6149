"""What all tests of the project share."""

import gc
import os
from collections.abc import Generator

import pytest
from hypothesis import settings

from busbar.finding import STACK_SHOWN

pytest_plugins = ["tests.support.shared", "tests.support.lab", "tests.support.drills", "tests.support.wheel"]

# The servers of tests are on loopback, where a proxy of the site cannot reach them.
for _name in ("no_proxy", "NO_PROXY"):
    os.environ[_name] = ",".join(filter(None, [os.environ.get(_name), "127.0.0.1", "localhost"]))

# No test logs in with the agent of whoever runs it.
os.environ.pop("SSH_AUTH_SOCK", None)


@pytest.fixture(autouse=True)
def _forget_the_stack_of_the_command_before() -> None:
    os.environ.pop(STACK_SHOWN, None)


@pytest.fixture
def stack_dev(monkeypatch: pytest.MonkeyPatch) -> None:
    """Show Fixes as a command on the stack dev does that is typed in its folder."""
    monkeypatch.setenv(STACK_SHOWN, "dev")


# The same examples in every run, and none fails because the machine is busy.
settings.register_profile("busbar", deadline=None, derandomize=True)
settings.load_profile("busbar")

# Importing the tests makes objects that stay. A sixth of its time went into looking for garbage in them.
gc.disable()


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Look for garbage again when the tests are collected, but not in what they and their imports made."""
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()

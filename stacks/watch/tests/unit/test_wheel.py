"""The commands in the installed wheel, without the extra `stack`."""

from __future__ import annotations

import pytest

from busbar.cli.main import build
from tests.support.wheel import Call, Installed

NEED_STACK: dict[str, Call] = {"refresh": (("dev",), None, 64)}


@pytest.mark.slow
@pytest.mark.parametrize("command", sorted(NEED_STACK))
def test_a_command_that_needs_the_extra_says_how_to_install_it(installed: Installed, command: str) -> None:
    installed.says_how_to_install_the_extra(f"watch {command}", NEED_STACK[command])


def test_every_command_is_tested_without_the_extra() -> None:
    group = build().commands["watch"]
    assert {*group.commands} == set(NEED_STACK)

"""The commands in the installed wheel, without the extra `stack`."""

import pytest

from busbar.cli.main import build
from tests.support.wheel import Call, Installed

NEED_STACK: dict[str, Call] = {"check": (("Pulumi.yaml", "--verdict", "Pulumi.yaml"), None, 64)}


@pytest.mark.slow
@pytest.mark.parametrize("command", sorted(build().commands["training"].commands))
def test_a_command_that_needs_the_extra_says_how_to_install_it(installed: Installed, command: str) -> None:
    installed.says_how_to_install_the_extra(f"training {command}", NEED_STACK[command])

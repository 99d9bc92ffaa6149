"""What is said of outputs that may be older than a fault."""

from __future__ import annotations

from pathlib import Path

import pytest

from busbar.capability import capabilities
from busbar.cli.stack.report import unchanged
from busbar.cli.stack.target import Target
from busbar.outputs import CLUSTER

GATES = {"busbar": CLUSTER, **{each.name: each.gate for each in capabilities() if each.gate}}


@pytest.mark.parametrize(
    ("project", "asks"), [("busbar", True), ("slurm", True), ("training", False), ("watch", False)]
)
def test_an_update_without_changes_says_that_nothing_was_asked_and_which_command_asks(
    project: str, asks: bool
) -> None:
    gate = GATES[project]
    said = unchanged(gate, Target(Path("."), "org/x/dev"))
    assert said.startswith("no changes, so no host was asked and nothing was measured")
    assert ("`busbar verify dev` asks the hosts" in said) is asks
    assert f"raise {gate.raised} in Pulumi.dev.yaml by one" in said

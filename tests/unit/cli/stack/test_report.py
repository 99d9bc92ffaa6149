"""What is said of outputs that may be older than a fault."""

from __future__ import annotations

from pathlib import Path

import pytest

from busbar.capability import capabilities
from busbar.cli.stack import Target
from busbar.cli.stack.report import unchanged
from busbar.outputs import CLUSTER_GATE

GATES = {"busbar": CLUSTER_GATE, **{each.name: each.gate for each in capabilities() if each.gate}}


@pytest.mark.parametrize(
    ("project", "asks"), [("busbar", True), ("slurm", True), ("training", False), ("watch", False)]
)
def test_an_update_without_changes_says_which_command_asks(project: str, asks: bool, tmp_path: Path) -> None:
    gate = GATES[project]
    section, _, key = gate.raised.partition(".")
    (tmp_path / "Pulumi.dev.yaml").write_text(f"config: {{'x:y': {{{section}: {{{key}: 7}}}}}}")
    said = unchanged(gate, Target(tmp_path, "org/x/dev"))
    assert said.startswith("no changes, so no host was asked and nothing was measured")
    assert ("`busbar verify dev` asks the hosts" in said) is asks
    assert f"to measure again, set {gate.raised}: 8 in Pulumi.dev.yaml" in said
    (tmp_path / "Pulumi.dev.yaml").write_text("config: {'x:y': {}}")
    assert f"set {gate.raised}: 2 in" in unchanged(gate, Target(tmp_path, "dev"))

"""Outputs on disk and on the terminal, and what is said of those that may be older than a fault."""

import io
import json
import os
import stat
from pathlib import Path

import pytest
from rich.console import Console

from busbar.capability import capabilities
from busbar.cli.stack import Target, report
from busbar.cli.stack.report import Outputs, failed_steps, former, keep_failed_steps, keep_outputs, unchanged
from busbar.outputs import CLUSTER_GATE


def _shown(outputs: Outputs, folder: Path) -> str:
    console = Console(file=io.StringIO(), width=110, highlight=False)
    report.show_outputs(console, outputs, Target(folder, "dev"))
    return console.file.getvalue()  # type: ignore[attr-defined]


def test_kubeconfig_and_outputs_are_readable_by_their_owner_only(tmp_path: Path) -> None:
    (tmp_path / "kubeconfig").write_text("old")
    (tmp_path / "kubeconfig").chmod(0o644)
    keep_outputs(Outputs({"kubeconfig": "apiVersion: v1", "word": 5}, frozenset({"kubeconfig"})), tmp_path)
    assert (tmp_path / "kubeconfig").read_text() == "apiVersion: v1"
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()}
    assert modes == {"kubeconfig": 0o600, "outputs.json": 0o600}


def test_no_secret_output_is_written_to_outputs_json(tmp_path: Path) -> None:
    keep_outputs(Outputs({"token": "s3cret", "word": "open"}, frozenset({"token"})), tmp_path)
    assert json.loads((tmp_path / "outputs.json").read_text()) == {"word": "open"}


def test_failed_steps_are_noted_until_they_have_ended(tmp_path: Path) -> None:
    folder = tmp_path / "dev"
    assert failed_steps(folder) == []
    keep_failed_steps({"b", "a"}, folder)
    assert failed_steps(folder) == ["a", "b"]
    keep_failed_steps((), folder)
    assert failed_steps(folder) == []


def test_outputs_of_an_earlier_update_are_one_line_with_its_time_and_verdict(tmp_path: Path) -> None:
    outputs = Outputs({"contract_version": 3, "nccl_passed": True}, frozenset())
    assert former(outputs, tmp_path) == "outputs are those of an earlier update: PASS"
    keep_outputs(outputs, tmp_path)
    os.utime(tmp_path / "outputs.json", (0, 1_700_000_000))
    assert former(outputs, tmp_path) == "outputs are those of 2023-11-14 22:13 UTC: PASS"
    assert former(Outputs({"word": "two"}, frozenset()), tmp_path).endswith("22:13 UTC")


def test_after_a_destroy_only_the_reports_stay(tmp_path: Path) -> None:
    keep_failed_steps(["a"], tmp_path)
    (tmp_path / "report.html").touch()
    keep_outputs(Outputs({"kubeconfig": "x"}, frozenset()), tmp_path)
    report.remove_kept(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["report.html"]


def test_outputs_of_another_project_are_listed_without_their_secrets(tmp_path: Path) -> None:
    outputs = Outputs({"word": "open", "nodes": [1, 2], "token": "s3cret"}, frozenset({"token"}))
    words = [" ".join(line.split()) for line in _shown(outputs, tmp_path).splitlines()]
    assert words == ["nodes [1, 2]", "token [secret]", "word open"]


def test_outputs_of_another_contract_are_listed_under_the_reason(tmp_path: Path) -> None:
    shown = _shown(Outputs({"contract_version": 1, "nccl_passed": True}, frozenset()), tmp_path)
    assert shown.startswith("outputs: unsupported contract_version 1 (supported: 3)")
    assert ["nccl_passed", "true"] in [line.split() for line in shown.splitlines()]


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

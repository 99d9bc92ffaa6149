"""`busbar preflight` as the engine and as a person calls it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from busbar.cli import EX_USAGE, build
from busbar.preflight.facts import HostRecord, pack
from tests.unit.preflight.samples import spec, target

runner = CliRunner()


def test_an_unknown_key_in_the_spec_is_bad_usage_and_the_private_key_stays_unseen() -> None:
    content = {"login": {"private_key": "SECRET-KEY", "colour": "red"}, "hosts": [], "requirements": {}}
    done = runner.invoke(build(), ["preflight"], input=json.dumps(content))
    assert done.exit_code == EX_USAGE
    assert "login.colour" in done.output
    assert "SECRET-KEY" not in done.output


def test_what_passed_before_is_printed_again_without_asking(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = spec(target(address="127.0.0.1", port=1))
    previous = pack({"worker-1": HostRecord(asked.fingerprint(asked.hosts[0]), "aaaaaaaa", {"gpus": 8})})
    monkeypatch.setenv("PULUMI_COMMAND_STDOUT", previous)
    done = runner.invoke(build(), ["preflight"], input=asked.model_dump_json())
    assert done.exit_code == 0
    assert done.stdout == f"{previous}\n", "the same result, so nothing that depends on it changes"
    assert "preflight passed on 1 host (1 checked before)" in done.stderr


def test_a_previous_result_that_is_broken_only_costs_asking_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PULUMI_COMMAND_STDOUT", "{}")
    done = runner.invoke(
        build(), ["preflight"], input=spec(target(address="127.0.0.1", port=1)).model_dump_json()
    )
    assert done.exit_code == 1
    assert "the previous result is not used" in done.stderr
    assert "error: worker-1: root@127.0.0.1:1 refuses the connection" in done.stderr
    assert done.stdout == ""


def test_a_stack_that_is_not_there_is_bad_usage(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    done = runner.invoke(build(), ["preflight", "nowhere"])
    assert done.exit_code == EX_USAGE
    assert "Pulumi.nowhere.yaml does not exist" in done.output

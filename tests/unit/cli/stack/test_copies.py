"""`busbar recover` replaces some states only, and `busbar up` keeps a copy of those that changed."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pulumi import automation as auto

from busbar.cli.stack import copies
from busbar.cli.stack.engine import Snapshot, snapshot
from busbar.cli.stack.target import Target
from busbar.exits import Failed
from busbar.operations import state_copies

ROOT = {"type": "pulumi:pulumi:Stack"}
CLUSTER = {"type": "busbar:index:Cluster"}
PROVIDER = {"type": "pulumi:providers:kubernetes", "custom": True}
REFERENCE = {"type": "pulumi:pulumi:StackReference", "custom": True}
TOKEN = {"type": "random:index/randomPassword:RandomPassword", "custom": True}
IDENTITY = {
    "type": "pulumi:index:Stash",
    "custom": True,
    "name": "cluster-id",
    "inputs": {"input": {"id": "a"}},
}
HOST = {"type": "command:remote:Command", "custom": True, "name": "busbar-worker@gpu-1"}
NAMESPACE = {"type": "kubernetes:core/v1:Namespace", "custom": True}


def state(*resources: dict[str, Any]) -> Snapshot:
    found = [
        {**each, "urn": f"urn:pulumi:prod::busbar::{each['type']}::{each.get('name', 'x')}"}
        for each in resources
    ]
    text = json.dumps({"deployment": {"resources": found}})
    command = SimpleNamespace(run=lambda *_: auto.CommandResult(stdout=text, stderr="", code=0))
    workspace = SimpleNamespace(work_dir=".", env_vars={}, pulumi_command=command)
    return snapshot(SimpleNamespace(name="prod", workspace=workspace))  # type: ignore[arg-type]


@pytest.mark.parametrize("resource", [HOST, NAMESPACE], ids=["host", "object without hosts"])
def test_a_state_that_has_made_something_is_not_replaced(resource: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(Failed, match="has 1 resource, and only a lost one is recovered"):
        copies._refuse_known(state(ROOT, resource), Target(tmp_path, "prod"))


def test_an_empty_state_and_one_of_an_update_that_preflight_refused_are_replaced(tmp_path: Path) -> None:
    for each in (state(), state(ROOT, CLUSTER, PROVIDER, REFERENCE, TOKEN, IDENTITY)):
        copies._refuse_known(each, Target(tmp_path, "prod"))


def test_a_state_that_is_kept_already_is_not_compressed_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "Pulumi.yaml").write_text("name: tiny\n")
    (tmp_path / "Pulumi.prod.yaml").write_text("config: {}\n")
    session: Any = SimpleNamespace(target=Target(tmp_path, "prod"), say=print)
    first = state(ROOT, NAMESPACE)
    copies.keep(session, state(), first)
    monkeypatch.setattr(state_copies, "packed", None)
    copies.keep(session, first, first)
    [kept] = (tmp_path / ".busbar/prod/state").iterdir()
    assert state_copies.read(kept.read_text())[1] == first.text

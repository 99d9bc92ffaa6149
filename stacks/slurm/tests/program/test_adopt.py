"""`busbar adopt` of a Slurm cluster on the real engine: the next update has nothing to do."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from busbar.cli.stack import adoption, session
from busbar.cli.stack.adopters import Adopters
from busbar.cli.stack.engine import open_stack
from busbar.cli.stack.target import Target
from busbar.hosts import k3s, scripts
from busbar.judge.archive import Archive
from busbar.operations.adoption import Found, Known, Part, Secrets
from busbar.outputs.pool import summarize
from busbar.preflight.facts import HostRecord, pack
from lab.engine.environment import environment
from stacks.slurm.package import operations, preflight
from stacks.slurm.tests.support import configured, facts, slurm
from tests.support.engine import require_engine
from tests.support.engine_site import EngineSite
from tests.support.verdicts import passing

pytestmark = pytest.mark.slow

PLACE = "stacks/slurm"
SECRETS = Secrets({"slurm-key": "thekey", "slurm-database": "its"})
ID = k3s.install_id("thekey")


def printed(text: str, inputs: Mapping[str, Any]) -> str:
    if "preflight" in text:
        return pack({name: HostRecord("f", name, each) for name, each in facts(slurm()).items()})
    assert "collect" in text
    return json.dumps(summarize(passing()))


def applied(state: Mapping[str, Any]) -> dict[str, Known]:
    """Hosts that have applied the steps of a state."""
    parts: dict[str, list[Part]] = {}
    for each in state["deployment"]["resources"]:
        values = scripts.values_of(each.get("inputs", {}).get("create") or "")
        if "OWNER" in values:
            stdin = each["inputs"]["stdin"]
            payload = scripts.payload_of(json.loads(stdin["plaintext"]) if "plaintext" in stdin else stdin)
            parts.setdefault(values["NODE_NAME"], []).append(Part(values["OWNER"], ID, frozenset(), payload))
    return {name: Known("", tuple(each), {}) for name, each in parts.items()}


def test_a_lost_state_is_written_again_and_an_update_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    require_engine(environment()["PATH"])
    server: Any = SimpleNamespace(kubeconfig="")
    site = EngineSite(tmp_path, server, {PLACE: "dev"})
    site.create(PLACE, {"busbar-slurm:slurm": configured()})
    variables, target = site.variables(), Target(site.project(PLACE), "dev")
    lost = operations.lost(target.project / target.file)

    def adopt(hosts: Mapping[str, Known]) -> Adopters:
        with monkeypatch.context() as patched:
            for key, value in variables.items():
                patched.setenv(key, value)
            patched.chdir(target.project)
            patched.setattr(session, "operation_lock", lambda *_: nullcontext())
            made = Adopters(lost, Found(ID, hosts, SECRETS), target.project, printed)
            code = session.run(
                "adopt", target, lambda s: adoption.write(s, open_stack(s.engine, target), made)
            )
        assert code == 0
        return made

    names = [host.name for host in preflight.hosts_of(slurm())]
    first = adopt({name: Known("", (), {}) for name in names})
    assert set(first.differences) == {
        *(
            "slurm-controller@ctl",
            "slurm-login@login",
            "slurm-compute@gpu-1",
            "slurm-compute@gpu-2",
            "nccl-h100-collect",
        )
    }
    state = site.export(PLACE)
    [spec] = [
        json.loads(each["inputs"]["stdin"])
        for each in state["deployment"]["resources"]
        if each["urn"].endswith("-collect")
    ]
    archive = Archive(target.project / spec["folder"])
    with archive.new_log():
        pass
    archive.mark_complete(spec["job"])
    assert adopt(applied(state)).differences == {}
    steps, error = site.up(PLACE)
    assert (error, {each.urn for each in steps if each.operation != "same"}) == ("", set())

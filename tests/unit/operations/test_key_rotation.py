"""`busbar rotate STACK encryption-key` on servers that answer as K3s does."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import asyncssh
import pytest
import yaml

from busbar.config import load
from busbar.exits import USAGE
from busbar.hosts.inventory import Inventory
from busbar.operations import key_rotation, lock
from busbar.operations.key_rotation import STAGES, KeyRotationError, KeyStatus, remaining
from tests.support.cli import busbar
from tests.support.clusters import site
from tests.support.ssh_hosts import CLOSED_PORT, HOST, at, login, machine, public

SERVERS = ("server-1", "server-2", "server-3")


@dataclass
class Keys:
    """The key of a cluster: the stage in etcd, and the stage with which each server runs."""

    stage: str = "start"
    running: dict[str, str] = field(default_factory=lambda: dict.fromkeys(SERVERS, "start"))
    steps: list[str] = field(default_factory=list)
    broken: str = ""
    """A step that fails once."""
    enabled: bool = True

    def answer(self, process: asyncssh.SSHServerProcess[str]) -> None:
        """What host/k3s-key.sh does."""
        values = dict(re.findall(r"\b([A-Z_]+)=([\w-]+)", process.command or ""))
        name, verb = values["NODE_NAME"], values["VERB"]
        facts: dict[str, Any] = {"node": name}
        if verb == "status":
            match = len(set(self.running.values())) == 1
            facts |= {"enabled": self.enabled, "stage": self.stage, "applied": self.running[name]}
            facts["hashes_match"] = match
        else:
            if verb == "stage":
                self.stage = "reencrypt_finished" if values["STAGE"] == "reencrypt" else values["STAGE"]
            step = f"{verb} {values.get('STAGE', self.stage)} {name}"
            self.steps.append(step)
            if step == self.broken:
                self.broken = ""
                process.stderr.write(f"busbar: {name}: K3s crashed 3 times. Fix: see the log\n")
                process.exit(1)
                return
            self.running[name] = self.stage
        process.stdout.write(json.dumps(facts) + "\n")
        process.exit(0)


async def rotated(keys: Keys) -> tuple[str, ...]:
    """One call of the command; returns the stages of its plan."""
    async with contextlib.AsyncExitStack() as stack:
        cluster = site(servers=3)
        for host in cluster["hosts"]["servers"]:
            port = await stack.enter_async_context(machine(keys.answer))
            host |= {"address": "127.0.0.1", "port": port, "host_key": public(HOST)}
        inventory = Inventory.of(load(cluster_without_duplicates(cluster)))
        hosts = tuple(
            replace(host, address="127.0.0.1") if host.role == "server" else host for host in inventory.hosts
        )
        plan = await key_rotation.plan(Inventory(inventory.cluster, hosts), login())
        await key_rotation.rotate(plan, login(), lambda _: None)
        return plan.stages


def cluster_without_duplicates(cluster: dict[str, Any]) -> dict[str, Any]:
    """Addresses that differ, for the configuration; the servers are reached on loopback."""
    for number, host in enumerate(cluster["hosts"]["servers"]):
        host["address"] = f"192.0.2.{11 + number}"
    return cluster


def test_in_each_stage_server_1_is_first_and_every_server_restarts_before_the_next() -> None:
    keys = Keys()
    assert asyncio.run(rotated(keys)) == STAGES
    assert keys.steps == [
        step
        for stage, reached in zip(STAGES, ("prepare", "rotate", "reencrypt_finished"), strict=True)
        for step in (f"stage {stage} server-1", f"follow {reached} server-2", f"follow {reached} server-3")
    ]


@pytest.mark.parametrize(
    ("broken", "left"),
    [
        ("stage prepare server-1", STAGES),
        ("follow prepare server-3", STAGES),
        ("stage rotate server-1", ("rotate", "reencrypt")),
        ("follow rotate server-2", ("rotate", "reencrypt")),
        ("stage reencrypt server-1", ("reencrypt",)),
        ("follow reencrypt_finished server-3", ("reencrypt",)),
    ],
)
def test_a_rotation_that_stopped_anywhere_is_finished_by_the_same_command(
    broken: str, left: tuple[str, ...]
) -> None:
    keys = Keys(broken=broken)
    with pytest.raises(KeyRotationError, match="run the same command again") as stopped:
        asyncio.run(rotated(keys))
    assert f"The rotation stopped in stage {broken.split()[1].partition('_')[0]}" in str(stopped.value)
    assert asyncio.run(rotated(keys)) == left
    assert keys.running == dict.fromkeys(SERVERS, "reencrypt_finished")


def test_a_server_that_does_not_answer_any_more_stops_the_rotation() -> None:
    plan = key_rotation.RotationPlan((at(CLOSED_PORT, "server-1", "server"),), STAGES)
    with pytest.raises(KeyRotationError, match=r"^server-1: .*The rotation stopped in stage prepare"):
        asyncio.run(key_rotation.rotate(plan, login(), lambda _: None))


def test_a_second_rotation_begins_anew() -> None:
    keys = Keys()
    asyncio.run(rotated(keys))
    assert asyncio.run(rotated(keys)) == STAGES


def test_without_encryption_nothing_changes() -> None:
    keys = Keys(enabled=False)
    with pytest.raises(KeyRotationError, match=r"(?s)Secrets are not encrypted.*no changes made") as refused:
        asyncio.run(rotated(keys))
    assert str(refused.value).count("not encrypted") == 3
    assert keys.steps == []


def test_a_stage_that_nobody_knows_is_refused() -> None:
    status = KeyStatus(node="server-1", enabled=True, stage="rotate_keys", applied="start", hashes_match=True)
    assert remaining([status]) == ("rotate", "reencrypt")
    with pytest.raises(KeyRotationError, match="the key is in stage 'later', expected one of prepare"):
        remaining([status.model_copy(update={"stage": "later"})])


def test_a_key_that_k3s_cannot_rotate_in_stages_is_refused_with_the_way_to_do_it_by_hand() -> None:
    k3s = {"sha256": {"amd64": "ab" * 32}, "server_args": {"secrets-encryption-provider": "secretbox"}}
    with pytest.raises(KeyRotationError, match=r"is 'secretbox'.*k3s secrets-encrypt rotate-keys"):
        asyncio.run(key_rotation.plan(Inventory.of(load(site(k3s=k3s))), login()))


def test_the_plan_is_printed_and_without_yes_nothing_is_rotated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[key_rotation.RotationPlan] = []

    async def plan(inventory: Inventory, _: Any) -> key_rotation.RotationPlan:
        return key_rotation.RotationPlan(inventory.servers, STAGES[1:])

    async def rotate(plan: key_rotation.RotationPlan, *_: Any) -> None:
        done.append(plan)

    monkeypatch.setenv("SSH_AUTH_SOCK", "/nowhere")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(key_rotation, "plan", plan)
    monkeypatch.setattr(key_rotation, "rotate", rotate)
    monkeypatch.setattr(lock, "held", lambda *_, **__: contextlib.nullcontext())
    (tmp_path / "Pulumi.prod.yaml").write_text(yaml.safe_dump({"config": {"busbar:cluster": site()}}))
    refused = busbar("rotate", "prod", "encryption-key")
    assert (refused.exit_code, done) == (USAGE, [])
    assert "an unfinished rotation; remaining stages: rotate, reencrypt" in refused.stdout
    assert refused.stderr.startswith("error: no changes made:") and "Fix: pass --yes" in refused.stderr
    allowed = busbar("rotate", "prod", "encryption-key", "--yes")
    assert (allowed.exit_code, len(done)) == (0, 1), allowed.output

    def held(*_: Any, **__: Any) -> None:
        raise lock.LockedError("`busbar up prod` is changing the cluster")

    monkeypatch.setattr(lock, "held", held)
    beside = busbar("rotate", "prod", "encryption-key", "--yes")
    assert (beside.exit_code, len(done)) == (1, 1)
    assert beside.stderr == "error: `busbar up prod` is changing the cluster\n"

"""When a failed Command is run again, and that the host has got its script before; Commands on this machine.

The host is an SSH server of this test on loopback; the hook is called as the engine calls it.
"""

import asyncio
import base64
import json
import shlex
import sys
from pathlib import Path
from typing import Any

import asyncssh
import pulumi
import pytest

from busbar.components.engine.hosts import SshLogin
from busbar.components.engine.local_command import busbar_command
from busbar.components.worker_pool import create_delivery_hook
from busbar.config import Cluster
from busbar.hosts import scripts
from busbar.hosts.inventory import Inventory
from tests.support.clusters import site
from tests.support.ssh_hosts import CLIENT, CLOSED_PORT, HOST, machine, public

COMMAND = scripts.command("k3s-agent", {}, user="root", timeout_seconds=9, delivered=True)
MISSING = f"exit status 1: running {COMMAND!r}:\n{scripts.not_delivered('k3s-agent')}\n"


@pytest.fixture
def warnings(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    said: list[str] = []
    monkeypatch.setattr(pulumi, "ErrorHook", lambda name, callback: callback)
    monkeypatch.setattr(pulumi.log, "warn", said.append)
    return said


def retried(folder: Path, errors: list[str], *, status: int = 0, up: bool = True) -> tuple[bool, list[str]]:
    """Whether the hook asks for a retry after `errors` (newest first), and what the host was given."""
    CLIENT.write_private_key(folder / "key")
    given: list[str] = []

    async def answer(process: asyncssh.SSHServerProcess[str]) -> None:
        payload = json.loads(await process.stdin.readline())
        given.append(base64.b64decode(payload["deliver_as"]).decode())
        process.stdout.write("{}\n")
        process.exit(status)

    async def scenario() -> bool:
        async with machine(answer) as port:
            made = site(workers={"h100": 1}, ssh={"key_file": str(folder / "key")})
            place = {"address": "127.0.0.1", "port": port if up else CLOSED_PORT, "host_key": public(HOST)}
            made["hosts"]["workers"][0].update(place)
            cluster = Cluster.model_validate(made)
            login = SshLogin.load(cluster.ssh, {}, folder)
            [worker] = Inventory.of(cluster).workers
            hook: Any = create_delivery_hook("delivery", login, {"busbar-worker@gpu-1": worker})
            asked = pulumi.ErrorHookArgs("urn", "id", "busbar-worker@gpu-1", "type", errors=errors)
            return bool(await hook(asked))

    return asyncio.run(scenario()), given


def test_a_host_without_its_script_is_given_it_and_asked_again(tmp_path: Path, warnings: list[str]) -> None:
    assert retried(tmp_path, [MISSING]) == (True, [scripts.identity("k3s-agent")])
    assert warnings == []


@pytest.mark.parametrize(
    "errors",
    [
        [f"exit status 1: running {COMMAND!r}:\nbusbar: gpu-1: Node gpu-1 Ready: timed out after 420 s"],
        [MISSING, MISSING],
        [],
    ],
)
def test_other_and_second_failures_stand(tmp_path: Path, warnings: list[str], errors: list[str]) -> None:
    assert retried(tmp_path, errors) == (False, [])


def test_a_host_that_refuses_the_script_is_not_asked_again(tmp_path: Path, warnings: list[str]) -> None:
    assert retried(tmp_path, [MISSING], status=1) == (False, [scripts.identity("k3s-agent")])
    assert warnings == ["gpu-1: preflight failed: exit status 1; it printed: {}"]


def test_a_host_that_is_gone_meanwhile_is_named(tmp_path: Path, warnings: list[str]) -> None:
    assert retried(tmp_path, [MISSING], up=False) == (False, [])
    [warning] = warnings
    assert "gpu-1: root@127.0.0.1:1 refuses the connection" in warning


@pytest.mark.parametrize(
    ("python", "shown"), [("project/.venv/bin/python", "./.venv/bin/python"), ("python", "{}/python")]
)
def test_the_engine_runs_the_interpreter_of_the_project_by_a_relative_path(
    python: str, shown: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "project").mkdir()
    monkeypatch.chdir(tmp_path / "project")
    monkeypatch.setattr(sys, "executable", str(tmp_path / python))
    words = [shown.format(tmp_path), "-m", "busbar", "preflight"]
    assert shlex.split(busbar_command("preflight")) == words

"""Removed hosts with the real engine, the real `busbar remove` and real SSH; some do not exist.

The host that exists is an SSH server of this test on loopback, which notes what it is told to run.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import asyncssh
import pytest

from tests.support.clusters import site
from tests.support.engine import throwaway_project

SECONDS = 900
# Whatever the network is: the kernel itself refuses a connection to a broadcast address, and the name has no
# address (RFC 6761).
NOWHERE, NOWHERE_TOO = "127.255.255.255", "gone.invalid"

PROGRAM = """
    import json
    from pathlib import Path
    import pulumi
    import busbar.config
    from busbar.hosts.inventory import Inventory
    from busbar.components.engine.host_command import HostArgs
    from busbar.components.engine.removal import create_host_removal
    from busbar.components.engine.ssh import SshLogin

    content = json.loads(Path("cluster.json").read_text())
    cluster = busbar.config.load(content, root=Path.cwd())
    inventory = Inventory.of(cluster)
    login = SshLogin.load(cluster.ssh, {}, Path.cwd())
    for host in (*inventory.load_balancers, *inventory.workers):
        on = HostArgs(
            login=login, host=host, fronts=inventory.fronts, owner=f"worker-{host.name}", install_id="1"
        )
        create_host_removal(on, "k3s-agent-remove", 30, {}, pulumi.ResourceOptions())
"""


@dataclass
class Stack:
    """A stack of removals; `commands` is what the host that exists was told to run."""

    folder: Path
    environment: Mapping[str, str]
    cluster: dict[str, Any]
    commands: list[str]

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        (self.folder / "cluster.json").write_text(json.dumps(self.cluster))
        return subprocess.run(
            words, cwd=self.folder, env=self.environment, text=True, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=SECONDS, check=False,
        )  # fmt: skip

    def uncleaned(self) -> dict[str, str]:
        records = (self.folder / ".busbar/dev/uncleaned").glob("*.json")
        return {path.stem: json.loads(path.read_text())["reason"] for path in records}


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[tuple[int, str, list[str]]]:
    """The host that exists: its port, its host key, and the commands it was given."""
    client = asyncssh.generate_private_key("ssh-ed25519")
    client.write_private_key(tmp_path / "key")
    host_key = asyncssh.generate_private_key("ssh-ed25519")
    commands: list[str] = []
    started, loop = threading.Event(), asyncio.new_event_loop()
    ports: list[int] = []

    def answer(process: asyncssh.SSHServerProcess[str]) -> None:
        commands.append(process.command or "")
        process.stdout.write('{"removed":true}\n')
        process.exit(0)

    async def serve() -> None:
        server = await asyncssh.create_server(
            asyncssh.SSHServer, "127.0.0.1", 0, server_host_keys=[host_key], process_factory=answer,
            authorized_client_keys=asyncssh.import_authorized_keys(client.export_public_key().decode()),
        )  # fmt: skip
        ports.append(server.get_port())
        started.set()

    def forever() -> None:
        loop.run_until_complete(serve())
        loop.run_forever()

    thread = threading.Thread(target=forever, daemon=True)
    thread.start()
    assert started.wait(30)
    yield ports[0], " ".join(host_key.export_public_key().decode().split()[:2]), commands
    loop.call_soon_threadsafe(loop.stop)
    thread.join(30)


@pytest.fixture
def stack(tmp_path: Path, machine: tuple[int, str, list[str]]) -> Stack:
    port, host_key, commands = machine
    cluster = site(servers=1, workers={"a": 2}, ssh={"key_file": str(tmp_path / "key")})
    here = {"address": "127.0.0.1", "port": port, "host_key": host_key}
    cluster["hosts"]["load_balancers"][0] |= here
    cluster["hosts"]["workers"][1]["address"] = NOWHERE
    cluster["hosts"]["workers"][0]["address"] = NOWHERE_TOO
    folder = tmp_path / "project"
    environment = throwaway_project(folder, PROGRAM, NO_COLOR="1")
    made = Stack(folder, environment, cluster, commands)
    assert made.run("pulumi", "stack", "init", "dev").returncode == 0
    (folder / "Pulumi.dev.yaml").touch()
    return made


def test_a_machine_that_is_gone_is_removed_recorded_and_shown_and_destroy_cleans_the_other(
    stack: Stack,
) -> None:
    up = ("pulumi", "up", "--yes", "--skip-preview", "--stack", "dev", "--non-interactive")
    done = stack.run(*up)
    assert done.returncode == 0, done.stdout
    assert stack.commands == [], "nothing runs on a host before it is removed"

    del stack.cluster["hosts"]["workers"][1]
    done = stack.run(*up)
    assert done.returncode == 0, done.stdout
    assert list(stack.uncleaned()) == ["worker-gpu-2"]
    assert NOWHERE in stack.uncleaned()["worker-gpu-2"]
    status = stack.run(sys.executable, "-m", "busbar", "status", "dev")
    assert "could not be cleaned: gpu-2 (" in status.stdout, status.stdout

    done = stack.run(sys.executable, "-m", "busbar", "destroy", "dev", "--yes")
    assert done.returncode == 0, done.stdout
    assert "could not be cleaned: gpu-1 (" in done.stdout, done.stdout
    assert [command for command in stack.commands if "VERB=remove" in command], stack.commands
    assert sorted(stack.uncleaned()) == ["worker-gpu-1", "worker-gpu-2"]

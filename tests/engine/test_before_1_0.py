"""A state that a busbar before 1.0 wrote is refused with the real engine, and no host is uninstalled."""

from __future__ import annotations

import asyncio
import contextlib
import json
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import asyncssh
import pytest

from tests.support.clusters import site
from tests.support.engine import PROJECT, throwaway_project
from tests.support.reports import report
from tests.support.ssh_hosts import CLIENT, HOST, public

SECONDS = 900
# Names and types of a cluster with one worker, as busbar wrote them before 1.0.
FORMER = """
    from pathlib import Path
    import pulumi
    from pulumi_command import local

    class Component(pulumi.ComponentResource):
        def __init__(self, kind, name, parent=None):
            super().__init__(f"busbar:index:{kind}", name, None, pulumi.ResourceOptions(parent=parent))

    def command(name, parent, delete=None):
        local.Command(name, create="true", delete=delete, opts=pulumi.ResourceOptions(parent=parent))

    UNINSTALL = f"touch {Path(__file__).parent}/uninstalled; : busbar remove host"
    cluster = Component("Cluster", "busbar")
    command("preflight-hosts", Component("Preflight", "preflight", cluster))
    for kind, component, host in (
        ("K3sControlPlane", "control-plane", "control-plane-server-1"),
        ("HAProxyLoadBalancer", "load-balancer", "load-balancer-lb-1"),
        ("InfiniBandWorkerPool", "pool-h100", "worker-gpu-1"),
    ):
        parent = Component(kind, component, cluster)
        command(host, parent)
        command(f"{host}-removal", parent, UNINSTALL)
    pulumi.export("contract_version", 3)
"""
CAPABILITY = """
    import pulumi
    pulumi.Stash("cluster-id", input="a1")
    pulumi.Stash("on-cluster", input="content")
"""


class Stack:
    """A stack with a state of former names, in the project of today's program."""

    def __init__(self, folder: Path, program: str) -> None:
        self.folder, self.environment = folder, dict(throwaway_project(folder, program, NO_COLOR="1"))
        settings = folder / "Pulumi.yaml"
        settings.write_text(settings.read_text().replace("tiny", "busbar"))
        assert self.pulumi("stack", "init")[0] == 0
        self.configure(site(servers=1))
        code, text = self.pulumi("up", "--yes", "--skip-preview")
        assert code == 0, text
        self.before = self.resources()

    def configure(self, cluster: Mapping[str, Any]) -> None:
        (self.folder / "Pulumi.dev.yaml").write_text(json.dumps({"config": {"busbar:cluster": cluster}}))

    def pulumi(self, *arguments: str) -> tuple[int, str]:
        return self._run("pulumi", *arguments, "--stack", "dev", "--non-interactive", "--color", "never")

    def busbar(self, *arguments: str) -> tuple[int, str]:
        return self._run(sys.executable, "-m", "busbar", *arguments)

    def resources(self) -> list[str]:
        exported = json.loads(self.pulumi("stack", "export")[1])
        return [each["urn"] for each in exported["deployment"]["resources"]]

    @property
    def is_untouched(self) -> bool:
        return not (self.folder / "uninstalled").exists() and {*self.before} <= {*self.resources()}

    def _run(self, *words: str) -> tuple[int, str]:
        done = subprocess.run(
            words, cwd=self.folder, env=self.environment, text=True, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=SECONDS, check=False,
        )  # fmt: skip
        return done.returncode, done.stdout


@contextlib.contextmanager
def hosts(marks: Mapping[str, str]) -> Iterator[int]:
    """SSH servers at the addresses of `marks`, each of which reports its owner mark; their port."""
    loop, ready = asyncio.new_event_loop(), threading.Event()
    ports: list[int] = []

    def answer(process: asyncssh.SSHServerProcess[str]) -> None:
        owner = {"owner": marks[process.get_extra_info("sockname")[0]], "install_id": "f" * 16}
        process.stdout.write(report(owner=owner).model_dump_json() + "\n")
        process.exit(0)

    async def serve() -> None:
        accepted = asyncssh.import_authorized_keys(public(CLIENT))
        for address in marks:
            server = await asyncssh.create_server(
                asyncssh.SSHServer, address, ports[0] if ports else 0, server_host_keys=[HOST],
                authorized_client_keys=accepted, process_factory=answer,
            )  # fmt: skip
            ports.append(server.get_port())
        ready.set()

    serving = threading.Thread(target=lambda: (loop.create_task(serve()), loop.run_forever()), daemon=True)
    serving.start()
    assert ready.wait(60)
    yield ports[0]
    loop.call_soon_threadsafe(loop.stop)
    serving.join(60)


@pytest.fixture
def stack(tmp_path: Path) -> Stack:
    return Stack(tmp_path, FORMER)


def test_busbar_refuses_it_before_the_engine_begins(stack: Stack) -> None:
    for words in (["up", "dev", "--yes"], ["preview", "dev"], ["destroy", "dev", "--yes"]):
        code, text = stack.busbar(*words)
        assert code == 1, text
        assert "was written by a busbar before 1.0" in text
        assert "run `busbar destroy` with the busbar that wrote it" in text
    assert stack.is_untouched


@pytest.mark.parametrize("options", [(), ("--continue-on-error",)])
def test_preflight_refuses_its_hosts_under_plain_pulumi(stack: Stack, options: tuple[str, ...]) -> None:
    shutil.copy(PROJECT / "__main__.py", stack.folder)
    cluster = site(servers=1, workers={"h100": 1}, ssh={"key_file": str(stack.folder / "key")})
    (stack.folder / "key").write_bytes(CLIENT.export_private_key())
    (stack.folder / "key").chmod(0o600)
    listed = {
        "load_balancers": "load-balancer-lb-1",
        "servers": "control-plane-server-1",
        "workers": "worker-gpu-1",
    }
    marks = {}
    for number, (group, owner) in enumerate(listed.items(), 1):
        host = cluster["hosts"][group][0]
        host |= {"address": f"127.0.0.{number}", "host_key": public(HOST), "user": "root"}
        marks[host["address"]] = f"busbar/dev/{owner}"
    with hosts(marks) as port:
        cluster["ssh"]["port"] = port
        stack.configure(cluster)
        code, text = stack.pulumi("up", "--yes", "--skip-preview", *options)
    assert code != 0
    for owner in listed.values():
        assert f"was installed by a busbar before 1.0 (busbar/dev/{owner})" in text
    assert stack.is_untouched


def test_a_capability_refuses_it_with_and_without_busbar(tmp_path: Path) -> None:
    stack = Stack(tmp_path, CAPABILITY)
    program = """
    import pulumi
    from busbar.components.engine.stack import refuse_other_cluster
    pulumi.run(lambda: refuse_other_cluster("big", "a1"))
    """
    (tmp_path / "__main__.py").write_text("\n".join(line.strip() for line in program.splitlines()))
    for code, text in (
        stack.pulumi("up", "--yes", "--skip-preview"),
        stack.pulumi("preview"),
        stack.busbar("up", "dev", "--yes"),
        stack.busbar("destroy", "dev", "--yes"),
    ):
        assert code != 0 and "was written by a busbar before 1.0" in text, text
    assert stack.is_untouched

"""A running cluster moves from its load balancer to an endpoint that busbar did not set up."""

import asyncio
import contextlib
import itertools
import json
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from lab.topology import GATEWAY, find
from tests.support.lab import KUBECONFIG, PROJECT, SERVERS, WORKERS, Lab
from tests.support.own_stack import OwnStack

pytestmark = pytest.mark.drill

ENDPOINT = f"https://{GATEWAY}:6443"


@contextlib.contextmanager
def tcp_proxy(address: str, port: int, servers: Sequence[str]) -> Iterator[None]:
    """A load balancer that busbar did not set up: passes connections on to servers, in turn."""
    turns = itertools.cycle(servers)

    async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(65536):
                writer.write(data)
                await writer.drain()
        writer.close()

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for _ in servers:
            with contextlib.suppress(OSError, TimeoutError):
                async with asyncio.timeout(3):
                    back, forth = await asyncio.open_connection(next(turns), port)
                await asyncio.gather(pump(reader, forth), pump(back, writer))
                return
        writer.close()

    loop = asyncio.new_event_loop()
    listening = loop.run_until_complete(asyncio.start_server(connected, address, port))
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    try:
        yield
    finally:
        loop.call_soon_threadsafe(listening.close)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(30)


@pytest.fixture(scope="module")
def stack(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[OwnStack]:
    found = OwnStack(PROJECT, tmp_path_factory.mktemp("endpoint") / "project", lab.environment)

    def change(cluster: dict[str, Any]) -> None:
        del cluster["hosts"]["load_balancers"]
        cluster["api_endpoint"] = {"address": GATEWAY}

    found.configure(change)
    with tcp_proxy(GATEWAY, 6443, [find(server).address for server in SERVERS]):
        found.up()
        yield found
        lab.as_usual()


def wait(server: str, kubeconfig: Path) -> subprocess.CompletedProcess[str]:
    """What the step that waits for the endpoint says of `server`, within seconds."""
    content = yaml.safe_load(KUBECONFIG.read_text(encoding="utf-8"))
    content["clusters"][0]["cluster"]["server"] = server
    kubeconfig.write_text(yaml.safe_dump(content), encoding="utf-8")
    return subprocess.run(
        [sys.executable, "-m", "busbar", "wait", "api"],
        input=json.dumps({"setting": "api_endpoint", "fix": "repair it", "deadline_seconds": 5}),
        env={"PATH": "/usr/bin:/bin", "KUBECONFIG": str(kubeconfig)},
        cwd=PROJECT, text=True, capture_output=True, timeout=60, check=False,
    )  # fmt: skip


def test_everything_reaches_the_api_through_the_endpoint_and_the_load_balancer_is_gone(
    lab: Lab, stack: OwnStack
) -> None:
    kubeconfig = yaml.safe_load(KUBECONFIG.read_text(encoding="utf-8"))
    assert kubeconfig["clusters"][0]["cluster"]["server"] == ENDPOINT
    assert lab.outputs(stack.folder)["api_endpoint"] == ENDPOINT
    for worker in WORKERS:
        assert ENDPOINT in lab.ssh(worker, "cat /etc/rancher/k3s/config.yaml")
        assert lab.conditions(worker)["Ready"] == "True"
    assert lab.ssh("lb-1", "systemctl is-active haproxy || true").strip() == "inactive"
    assert lab.ssh("lb-1", "ls -d /var/lib/busbar /etc/haproxy/busbar-ca.pem 2>/dev/null || true") == ""
    verified = stack.busbar("verify", "dev")
    assert verified.returncode == 0, verified.stdout
    assert stack.no_changes()


@pytest.mark.usefixtures("stack")
def test_an_endpoint_that_does_not_answer_is_named_with_what_it_has_to_do(tmp_path: Path) -> None:
    assert wait(ENDPOINT, tmp_path / "kubeconfig").returncode == 0
    refused = wait(f"https://{find('lb-1').address}:6443", tmp_path / "kubeconfig")
    assert refused.returncode == 1
    assert "cannot be reached" in refused.stderr and "Fix: repair it" in refused.stderr

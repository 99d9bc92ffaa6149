"""A site in one process, for bench/scale.py: every host is an SSH server on an address of 127.0.0.0/8.

No script runs here. A host answers each script of host/ as the real one would on success, after `delay`
seconds for an installation. The Kubernetes API lists one Ready Node per worker and knows nothing else.

    python bench/simulated_site.py FILE      # FILE: JSON as `Site` below; prints `ready`, then serves
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import http.server
import json
import re
import ssl
import sys
import threading
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import asyncssh

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from busbar.hosts.scripts import DELIVERED, not_delivered

PORT = 2299
API_PORT = 6443
SCRIPT = re.compile(r"BUSBAR_SCRIPT=(([a-z0-9-]+)-[0-9a-f]{12})")
INSTALLS = ("k3s-server", "k3s-agent", "haproxy")


@dataclass(frozen=True)
class Site:
    """`hosts`: name -> its address, its private key and its preflight report (without `epoch`).

    `delay`: seconds per installation. `dead`: hosts that close every connection once they were asked by
    preflight. `rebooted`: hosts that lose what preflight delivered, once. `counts`: file that the
    counters are written to after each session.
    """

    hosts: dict[str, dict[str, Any]]
    client_key: str
    delay: float
    dead: list[str]
    rebooted: list[str]
    ca_pem: str
    tls_file: str
    kubeconfig: str
    nodes: list[dict[str, Any]]
    counts: str


@dataclass
class Counts:
    """What the hosts and the API have seen."""

    connections: int = 0
    open_connections: int = 0
    most_connections: int = 0
    scripts: dict[str, int] = field(default_factory=dict)
    worker_commands: int = 0
    joined: list[str] = field(default_factory=list)
    installing: int = 0
    most_installing: int = 0
    api_requests: int = 0
    cpu_seconds: float = 0.0


def main() -> None:
    site = Site(**json.loads(Path(sys.argv[1]).read_text()))
    counts = Counts()
    _serve_api(site, counts)
    asyncio.run(_serve_hosts(site, counts))


async def _serve_hosts(site: Site, counts: Counts) -> None:
    clients = asyncssh.import_authorized_keys(site.client_key)
    async with contextlib.AsyncExitStack() as stack:
        for name, host in site.hosts.items():
            state = _Host(name, site, counts)
            server = await asyncssh.create_server(
                lambda: _Connection(counts),
                host["address"],
                PORT,
                server_host_keys=[asyncssh.import_private_key(host["key"])],
                authorized_client_keys=clients,
                process_factory=lambda process, name=name, state=state: _run(process, name, state),
                backlog=512,
            )
            stack.push_async_callback(server.wait_closed)
        print("ready", flush=True)
        await asyncio.Event().wait()


class _Host:
    """`delivered`: name and digest of the script that preflight left here."""

    def __init__(self, name: str, site: Site, counts: Counts) -> None:
        self.site, self.counts = site, counts
        self.delivered = ""
        self._reboots = name in site.rebooted

    def keep(self, payload: dict[str, str]) -> None:
        if sent := payload.get("deliver_as"):
            self.delivered = "" if self._reboots else base64.b64decode(sent).decode()
            self._reboots = False


class _Connection(asyncssh.SSHServer):
    def __init__(self, counts: Counts) -> None:
        self._counts = counts

    def connection_made(self, connection: asyncssh.SSHServerConnection) -> None:
        counts = self._counts
        counts.connections += 1
        counts.open_connections += 1
        counts.most_connections = max(counts.most_connections, counts.open_connections)

    def connection_lost(self, error: Exception | None) -> None:
        self._counts.open_connections -= 1


async def _run(process: asyncssh.SSHServerProcess[str], name: str, host: _Host) -> None:
    site, counts = host.site, host.counts
    found = SCRIPT.search(process.command or "")
    identity, script = (found[1], found[2]) if found else ("", "unknown")
    counts.scripts[script] = counts.scripts.get(script, 0) + 1
    counts.worker_commands += site.hosts[name]["role"] == "worker"
    # The payload, and the script unless it was delivered. A connection that breaks before has run nothing.
    payload = json.loads(await process.stdin.readline() or "{}")
    await process.stdin.readline()
    if name in site.dead and script != "preflight":
        process.get_extra_info("connection").abort()
        return
    if script in DELIVERED.values() and host.delivered != identity:
        process.stderr.write(f"{not_delivered(script)}\n")
        process.exit(1)
        return
    if script in INSTALLS:
        counts.installing += 1
        counts.most_installing = max(counts.most_installing, counts.installing)
        await asyncio.sleep(site.delay)
        counts.installing -= 1
    if script == "k3s-agent" and name not in counts.joined:
        counts.joined.append(name)
    host.keep(payload)
    process.stdout.write(json.dumps(_answer(script, name, site)) + "\n")
    process.exit(0)
    counts.cpu_seconds = time.process_time()
    Path(site.counts).write_text(json.dumps(asdict(counts)))


def _answer(script: str, name: str, site: Site) -> dict[str, Any]:
    if script == "preflight":
        return {**site.hosts[name]["report"], "epoch": time.time()}
    if script == "kubeconfig":
        return {"kubeconfig": site.kubeconfig}
    if script == "k3s-server":
        return {"node": name, "version": "v1.35.6+k3s1", "ca_sha256": "c" * 64, "ca_pem": site.ca_pem}
    return {"node": name}


def _serve_api(site: Site, counts: Counts) -> None:
    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            counts.api_requests += 1
            known = self.path.partition("?")[0] == "/api/v1/nodes"
            nodes = [node for node in site.nodes if node["metadata"]["name"] in counts.joined]
            body = json.dumps({"items": nodes, "metadata": {}} if known else {"message": "unknown"})
            self.send_response(200 if known else 404)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body.encode())

        def log_message(self, *_: object) -> None:
            """Silent: the counters say it."""

    balancer = next(host for host in site.hosts.values() if host["role"] == "lb")
    server = http.server.ThreadingHTTPServer((balancer["address"], API_PORT), Handler)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(site.tls_file)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()


if __name__ == "__main__":
    main()

"""The bring-up of the lab without an engine: the same scripts over SSH and the same charts with helm.

Every step begins the moment the steps that it needs have ended, as nobody's fingers could: the wall time of
all is the critical path. What only busbar needs is left out (its records on the cluster, removals, outputs).
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from busbar.config import Cluster
from busbar.hosts import haproxy, k3s
from busbar.hosts.host import Host
from busbar.hosts.inventory import API_PORT, Inventory
from busbar.hosts.login import Login
from busbar.hosts.remote import Hosts
from busbar.hosts.script_output import ServerFacts, kubeconfig_text, server_facts, with_server
from busbar.hosts.ssh import connect, load_keys
from busbar.manifests import nic_cluster_policy
from busbar.manifests.operators import GPU_OPERATOR, MPI_OPERATOR, NETWORK_OPERATOR, Operator
from busbar.manifests.scheduling import GPU_RESOURCE, taints_of
from busbar.preflight.facts import rail_addresses
from busbar.preflight.spec import Spec, spec_of
from busbar.preflight.survey import survey

SECONDS = 900
ADMIN = "/etc/rancher/k3s/k3s.yaml"
# The values need not be secret: the lab is taken down afterwards.
SERVER_TOKEN, AGENT_TOKEN = "s" * 48, "a" * 48


@dataclass(frozen=True)
class Took:
    """One step: the steps that it waited for, and when it began and ended, in seconds since the beginning."""

    name: str
    after: tuple[str, ...]
    began: float
    ended: float


def critical_path(steps: Mapping[str, Took]) -> list[Took]:
    """The step that ended last, before it the one that it waited for longest, and so on; in order."""
    path = [max(steps.values(), key=lambda step: step.ended)]
    while path[0].after:
        path.insert(0, max((steps[name] for name in path[0].after), key=lambda step: step.ended))
    return path


class ByHand:
    """Brings up `cluster`, whose relative paths start at `project`; `folder` gets values and kubeconfig."""

    def __init__(self, cluster: Cluster, project: Path, folder: Path) -> None:
        self._cluster, self._project, self._folder = cluster, project, folder
        self._inventory = Inventory.of(cluster)
        self._login = Login.of(cluster.ssh, project=project)
        self._tasks: dict[str, asyncio.Task[Any]] = {}
        self._kubeconfig = folder / "kubeconfig"
        self.steps: dict[str, Took] = {}

    async def run(self) -> None:
        """Do all steps. Raises what the first failed step raises."""
        self._started = time.monotonic()
        first, *others = self._inventory.servers
        balancers = [host.name for host in self._inventory.load_balancers]
        workers = [host.name for host in self._inventory.workers]
        async with AsyncExitStack() as stack:
            self._hosts = await stack.enter_async_context(Hosts.open(self._login))
            await stack.enter_async_context(asyncio.timeout(SECONDS))
            self._group = await stack.enter_async_context(asyncio.TaskGroup())
            self._step("preflight", [], self._preflight)
            self._step(first.name, ["preflight"], partial(self._server, first))
            self._step("kubeconfig", [first.name], partial(self._read_kubeconfig, first))
            before = first.name
            for server in others:
                self._step(server.name, [before], partial(self._server, server))
                before = server.name
            for host in self._inventory.load_balancers:
                self._step(host.name, [first.name], partial(self._balancer, host))
            for host in self._inventory.workers:
                self._step(host.name, balancers, partial(self._agent, host))
            ready = [*workers, "kubeconfig"]
            self._step("gpu-operator", ready, lambda: self._install(GPU_OPERATOR, self._cluster.gpu_operator))
            self._step("gpus", ["gpu-operator"], self._gpus)
            self._step(
                "network-operator",
                ["gpu-operator"],
                lambda: self._install(NETWORK_OPERATOR, self._cluster.network_operator),
            )
            self._step("policy", ["network-operator", "preflight"], self._policy)
            self._step("hcas", ["policy"], self._hcas)
            self._step("mpi-operator", ready, self._mpi)

    def _step(self, name: str, after: list[str], work: Callable[[], Awaitable[Any]]) -> None:
        async def run() -> Any:
            for other in after:
                await self._tasks[other]
            began = time.monotonic() - self._started
            result = await work()
            self.steps[name] = Took(name, tuple(after), began, time.monotonic() - self._started)
            return result

        self._tasks[name] = self._group.create_task(run())

    async def _preflight(self) -> Mapping[str, Mapping[str, Any]]:
        spec = spec_of(self._cluster, login=self._login.model_dump(), project=self._project)
        outcome = await survey(Spec.model_validate(spec), {}, deliver=True)
        if outcome.errors:
            raise RuntimeError("\n".join(f"{error.host}: {error.what}" for error in outcome.errors))
        return {name: record.facts for name, record in outcome.records.items()}

    async def _server(self, host: Host) -> ServerFacts:
        first = self._inventory.servers[0]
        token = SERVER_TOKEN
        if host is not first:
            known: ServerFacts = self._tasks[first.name].result()
            token = k3s.secure_token("server", SERVER_TOKEN, ca_sha256=known.ca_sha256)
        config = k3s.server_config(
            self._cluster.k3s,
            node_name=host.name,
            tls_sans=k3s.tls_sans(
                self._cluster.k3s, host, self._inventory.api_address, self._inventory.load_balancers
            ),
            token=token,
            agent_token=AGENT_TOKEN,
        )
        peers = " ".join(peer.address for peer in self._inventory.servers if peer is not host)
        values = {**k3s.download_values(self._cluster.k3s, "server", self._project), "PEERS": peers}
        values["FIRST"] = "true" if host is first else "false"
        found = await self._script(host, "k3s-server", values, {"config": config, "registries": ""})
        return server_facts(json.dumps(found))

    async def _agent(self, host: Host) -> None:
        known: ServerFacts = self._tasks[self._inventory.servers[0].name].result()
        config = k3s.agent_config(
            self._cluster.k3s,
            self._cluster.pools[host.pool or ""],
            node_name=host.name,
            server=self._inventory.api_endpoint,
            token=k3s.secure_token("node", AGENT_TOKEN, ca_sha256=known.ca_sha256),
            labels=host.labels,
        )
        values = k3s.download_values(self._cluster.k3s, "worker", self._project)
        await self._script(host, "k3s-agent", values, {"config": config, "registries": ""})

    async def _balancer(self, host: Host) -> None:
        known: ServerFacts = self._tasks[self._inventory.servers[0].name].result()
        balancers, shared = self._inventory.load_balancers, self._cluster.hosts.virtual_ip
        files = {
            "haproxy_cfg": haproxy.haproxy_config(balancers, self._inventory.servers, shared),
            "keepalived_conf": haproxy.keepalived_config(balancers, shared, host),
            "ca_pem": known.ca_pem,
        }
        values = {"API_PORT": str(API_PORT), "CA_FILE": haproxy.CA_FILE, "VIRTUAL_IP": ""}
        await self._script(host, "haproxy", values, files)

    async def _read_kubeconfig(self, host: Host) -> None:
        found = await self._script(host, "kubeconfig", {"RENEWAL": "0"}, {})
        text = kubeconfig_text(json.dumps(found))
        # Server 1 answers before the load balancer does.
        self._kubeconfig.write_text(with_server(text, server=f"https://{host.address}:6443", name="bench"))

    async def _script(
        self, host: Host, script: str, values: Mapping[str, str], payload: Mapping[str, str]
    ) -> dict[str, Any]:
        owner = {"OWNER": f"bench/by-hand/{host.name}", "INSTALL_ID": k3s.install_id(SERVER_TOKEN)}
        return await self._hosts.run(
            host,
            script,
            {"VERB": "install", "NODE_ADDRESS": host.address, **owner, **values},
            payload,
            seconds=SECONDS,
        )

    async def _install(self, operator: Operator, config: Any, chart: str = "", *options: str) -> None:
        values = self._folder / f"{operator.release}.json"
        merged = operator.values(
            self._project / "helm_values", config, taints_of(self._cluster.pools.values())
        )
        values.write_text(json.dumps(merged))
        await self._local(
            *("helm", "install", operator.release, str(self._project / (chart or config.chart))),
            *("--namespace", operator.namespace, "--create-namespace", "--values", str(values), *options),
        )

    async def _mpi(self) -> None:
        await self._install(MPI_OPERATOR, self._cluster.mpi_operator, "charts/mpi-operator", "--wait")

    async def _policy(self) -> None:
        rails = rail_addresses(self._tasks["preflight"].result())
        policy = nic_cluster_policy.render(
            self._cluster.network_operator, taints_of(self._cluster.pools.values()), rails
        )
        server = self._inventory.servers[0]
        async with await connect(server, load_keys(self._login), None) as connection:
            await connection.run(
                "/usr/local/bin/k3s kubectl apply -f -", input=json.dumps(policy), check=True
            )

    async def _gpus(self) -> None:
        counts = {host.name: self._cluster.pools[host.pool or ""].gpus for host in self._inventory.workers}
        request = GPU_OPERATOR.wait_request(self._cluster.gpu_operator, GPU_RESOURCE, counts)
        await self._local(sys.executable, "-m", "busbar", "wait", "allocatable", text=json.dumps(request))

    async def _hcas(self) -> None:
        config = self._cluster.network_operator
        counts = {host.name: self._cluster.pools[host.pool or ""].rails for host in self._inventory.workers}
        request = NETWORK_OPERATOR.wait_request(config, config.resource, counts)
        await self._local(sys.executable, "-m", "busbar", "wait", "allocatable", text=json.dumps(request))

    async def _local(self, *words: str, text: str = "") -> None:
        process = await asyncio.create_subprocess_exec(
            *words,
            cwd=self._project,
            env={**os.environ, "KUBECONFIG": str(self._kubeconfig)},
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        output, _ = await process.communicate(text.encode())
        if process.returncode:
            raise RuntimeError(f"{' '.join(words)} failed ({process.returncode}):\n{output.decode()[-2000:]}")

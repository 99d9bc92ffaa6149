"""How a measurement reaches Slurm on Kubernetes: over SSH on a server of the cluster, by kubectl exec.

The commands of Slurm run in the login pod, and the log is read in the pod of the batch host.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from busbar.fabric.slurm import SCRIPT, SCRIPT_SECONDS, opened
from busbar.hosts.inventory import Host, Login
from busbar.hosts.remote import Hosts, UnreachableError
from busbar.kube.client import Api, ApiError
from busbar.kube.objects import find
from busbar.kube.pods import readiness
from stacks.slurm_k8s.package.rest import pod_of
from stacks.slurm_k8s.package.values import LOGIN_SERVICE


class InPods:
    """Implements busbar.fabric.slurm.Reach. A server that is not responding is replaced by the next one."""

    # In the pods, whose files are lost with them: so is then the log, and there is no verdict.
    log_folder = "/tmp"

    def __init__(
        self, runner: asyncio.Runner, hosts: Hosts, servers: Sequence[Host], api: Api, namespace: str
    ) -> None:
        self._runner, self._hosts, self._servers = runner, hosts, [*servers]
        self._api, self._namespace = api, namespace

    def ask(
        self, verb: str, payload: Mapping[str, str] | None = None, *, node: str | None = None, **values: str
    ) -> dict[str, Any]:
        """Ask in the pod of a node, or in the login pod. Raises ScriptError, UnreachableError."""
        pod = f"{pod_of(node)} -c slurmd" if node else f"deploy/{LOGIN_SERVICE} -c login"
        within = f"k3s kubectl exec -i -n {self._namespace} {pod} --"
        given = {"VERB": verb, "WITHIN": within, **{key.upper(): text for key, text in values.items()}}
        while True:
            host = self._servers[0]
            try:
                return self._runner.run(
                    self._hosts.run(
                        host, SCRIPT, {"NODE_NAME": host.name, **given}, payload, seconds=SCRIPT_SECONDS
                    )
                )
            except UnreachableError:
                if len(self._servers) == 1:
                    raise
                del self._servers[0]

    def gone(self, nodes: Sequence[str]) -> dict[str, str]:
        """Node -> reason, for the nodes whose pod is not Ready."""
        found = {}
        for name in nodes:
            try:
                pod = find(self._api, f"/api/v1/namespaces/{self._namespace}/pods/{pod_of(name)}")
            except ApiError:
                continue  # asked again at the next check
            if pod is None or readiness([pod]) != (1, 1):
                found[name] = f"has no ready pod {pod_of(name)}"
        return found


@contextmanager
def in_pods(login: Login, servers: Sequence[Host], api: Api, namespace: str) -> Iterator[InPods]:
    """The pods of Slurm by way of `servers`. Raises ValueError (unusable key) and ScriptError (bastion)."""
    with opened(login) as (runner, hosts):
        yield InPods(runner, hosts, servers, api, namespace)

"""The functions of busbar.cli.operation.Operations for the hosts of a K3s cluster."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import busbar
from busbar.capability import drain_hooks, node_states, notify
from busbar.cli.ending import when_interrupted
from busbar.cli.output import progress
from busbar.cli.stackfile import SecretError, cluster_api, install_id, kubeconfig_of, login_of, owner_id
from busbar.config import Cluster, Ssh, stackfile
from busbar.config.findings import did_you_mean
from busbar.config.stackfile import StackFile
from busbar.exits import Failed, Misuse
from busbar.finding import Fix, with_fix
from busbar.hosts import host_keys as keys
from busbar.hosts.host_keys import Offer
from busbar.hosts.inventory import Host, Inventory, Login
from busbar.kube import drain as kube
from busbar.kube.allocatable import AllocatableSpec
from busbar.kube.client import RestApi
from busbar.kube.wait import SystemClock
from busbar.manifests import artifacts, operators
from busbar.manifests.artifacts import Needs
from busbar.manifests.scheduling import GPU_RESOURCE
from busbar.operations import verify as comparison
from busbar.operations.lock import requester
from busbar.operations.verify import ClusterState, UnknownState, Verified, Workers, inspect
from busbar.preflight.spec import Spec, spec_of
from busbar.preflight.survey import Outcome, survey
from busbar.text import listed

# The wait in seconds for GPUs and HCAs: after a reboot the GPU Operator first validates the driver again.
OFFER_SECONDS = 300


def verify(path: Path) -> Verified:
    file, cluster = _read(path)
    known = [each for each in vars(operators).values() if isinstance(each, operators.Operator)]
    enabled = [each for each in known if getattr(cluster, each.config_key).enabled]
    login, state = login_of(file, cluster.ssh), partial(_state_of, file, cluster, works=True)
    found = asyncio.run(comparison.verify(cluster, login, enabled, state, owner_id(file)))
    hosts = [(host.name, host.role) for host in Inventory.of(cluster).hosts]
    return Verified([*hosts, (comparison.CLUSTER, "")], found)


def host_keys(path: Path) -> tuple[StackFile, tuple[Ssh, list[Offer]]]:
    file = stackfile.read(path)
    return file, keys.listed(file.with_hosts())


def preflight(path: Path) -> tuple[Spec, Outcome]:
    spec = spec_of_stack(*_read(path))
    return spec, asyncio.run(survey(spec, {}))


def spec_of_stack(file: StackFile, cluster: Cluster) -> Spec:
    """The spec of preflight. Raises SecretError."""
    spec = spec_of(cluster, login=login_of(file, cluster.ssh))
    return spec.model_copy(update={"install_id": install_id(file)})


def needs(path: Path) -> Needs:
    file, cluster = _read(path)
    return artifacts.needs(cluster, file.project, Path(busbar.__file__).parent / "helm_values")


def nodes(path: Path) -> Workers:
    file, cluster = _read(path)
    state = partial(_state_of, file, cluster, node_states)
    return asyncio.run(inspect(spec_of_stack(file, cluster), Inventory.of(cluster), state))


def keepers(path: Path) -> tuple[Login, Sequence[Host]]:
    file, cluster = _read(path)
    return login_of(file, cluster.ssh), Inventory.of(cluster).servers


def drain(path: Path, host: str, reason: str, *, end_jobs: bool) -> str:
    inventory, worker, api = _worker(path, host)
    stack = stackfile.stack_of(path)
    again = "run it again" if end_jobs else "run it again, with --end-jobs to end jobs too"
    fix = Fix(f"{again}; or", ("uncordon", stack, host))
    stays = f"; {host} stays cordoned"
    with when_interrupted(with_fix(stays, fix)):
        try:
            kube.drain(
                api,
                worker.name,
                reason,
                requester(),
                end_jobs=end_jobs,
                seconds=inventory.cluster.pools[worker.pool or ""].drain_timeout_seconds,
                clock=SystemClock(),
                progress=progress,
                hooks=drain_hooks(api, worker.name, reason, end_jobs=end_jobs),
            )
        except kube.PodsRemain as error:
            raise Failed(f"{error}{stays}", fix) from None
        finally:
            notify(lambda: api, progress)
    return f"{host} is drained; {Fix('when its repair is done', ('uncordon', stack, host))}"


def uncordon(path: Path, host: str) -> str:
    inventory, worker, api = _worker(path, host)
    hooks, offers = partial(drain_hooks, api), _offers(inventory, worker)
    if not kube.uncordon(api, worker.name, offers, SystemClock(), progress, hooks):
        fix = Fix("see by whom", ("verify", stackfile.stack_of(path)))
        if host in inventory.cordoned:
            fix = Fix(f"end its quarantine in {path.name}, then", ("up", stackfile.stack_of(path)))
        raise Failed(f"{host} is not drained any more, and stays cordoned for another reason", fix)
    notify(lambda: api, progress)
    return f"{host} is back: pods can start there"


def _read(path: Path) -> tuple[StackFile, Cluster]:
    file = stackfile.read(path)
    return file, file.cluster()


def _state_of(file: StackFile, cluster: Cluster, *of_capabilities: Any, works: bool = False) -> ClusterState:
    """The state of the cluster, read with the kubeconfig of the state, else the one that `busbar up` kept.

    `of_capabilities`, `works`: as of read_state. Raises UnknownState.
    """
    try:
        text = kubeconfig_of(file)
    except SecretError as error:
        raise UnknownState(error.what, error.fix) from None
    return comparison.read_state(text, Inventory.of(cluster), *of_capabilities, works=works)


def _worker(path: Path, name: str) -> tuple[Inventory, Host, RestApi]:
    """A worker of a stack, and a client of its cluster. Raises Misuse for any other host."""
    file, cluster = _read(path)
    inventory = Inventory.of(cluster)
    workers = {worker.name: worker for worker in inventory.workers}
    if name not in workers:
        what = f"{name} is not a worker of {path.name}{did_you_mean(name, workers)}"
        raise Misuse(what, f"name one of {listed(sorted(workers))}")
    return inventory, workers[name], cluster_api(file, cluster)


def _offers(inventory: Inventory, worker: Host) -> list[AllocatableSpec]:
    """Resources that the worker must offer before jobs may start there; none in quarantine."""
    if worker.name in inventory.quarantine:
        return []
    cluster, name = inventory.cluster, worker.name
    pool, network = cluster.pools[worker.pool or ""], cluster.network_operator
    gpus = operators.GPU_OPERATOR.wait_request(cluster.gpu_operator, GPU_RESOURCE, {name: pool.gpus})
    requests = [gpus]
    if network.enabled:
        wanted = {name: pool.rails}
        requests.append(operators.NETWORK_OPERATOR.wait_request(network, network.resource, wanted))
    # An operator's policy counts all Nodes, and another Node may be broken; its own pod is on another one.
    for each in requests:
        each |= {"deadline_seconds": OFFER_SECONDS, "policy": None, "release": None}
        if each.get("rollout"):
            each["rollout"]["lease"] = None
    return [AllocatableSpec.model_validate(each) for each in requests]

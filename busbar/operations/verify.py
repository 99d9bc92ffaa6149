"""Compares hosts and cluster with the configuration and the last update; changes nothing."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from busbar.config import Cluster
from busbar.exits import NoVerdict
from busbar.finding import STACK, Finding, Fix, with_fix
from busbar.helm import releases
from busbar.hosts.inventory import API_PORT, Host, Inventory, Login, api_url
from busbar.hosts.k3s import worker_taints
from busbar.hosts.remote import Hosts, ScriptError, UnreachableError, on_each
from busbar.hosts.scripts import with_server
from busbar.judge import few_files
from busbar.judge.archive import VERDICT, Archive
from busbar.kube import health, nodes
from busbar.kube.client import ApiError, RestApi, UnknownAuthority, read_kubeconfig_again
from busbar.kube.gpus import count
from busbar.kube.nodes import CORDONED, Node, NodeTaint, without_node
from busbar.manifests.operators import Operator
from busbar.manifests.scheduling import GPU_RESOURCE
from busbar.preflight import unchangeable
from busbar.preflight.cross_checks import of_another_cluster
from busbar.preflight.host_checks import CLOCK_FIX, clock_error
from busbar.preflight.network_checks import NODE_ROLES
from busbar.preflight.spec import Spec
from busbar.preflight.survey import Outcome, survey
from busbar.text import counted, listed

Answer = TypeVar("Answer")

CONCURRENT = 64
SCRIPT_SECONDS = 90
CLUSTER = "cluster"
_ENDPOINT_FIX = (
    f"open TCP port {API_PORT} from this machine to the endpoint or to a server, and start what answers "
    "there: systemctl status haproxy k3s"
)
API_LOG = "see on the servers: journalctl -u k3s"
_DEPLOYED = "deployed"
_DNS_FIX = (
    "kubectl -n kube-system get pods -l k8s-app=kube-dns -o wide: one must be Ready, and this host must "
    "reach its Node (VXLAN: UDP port 8472)"
)
# Taints that keep pods away, and the prefix of those that Kubernetes sets by itself.
_BLOCKING = ("NoSchedule", "NoExecute")
_KUBERNETES = "node.kubernetes.io/"

_OPEN_FILES_FIX = "set LimitNOFILE=1048576 for k3s-agent or slurmd, restart it and measure again"
READY = "Ready"
UNKNOWN = "unknown"


def drift(host: str, what: str) -> Finding:
    """A difference that an update undoes. `host`: a host's name, or "cluster"."""
    return Finding((host,), what, Fix(command=("up", STACK, "--converge", host)), kind="drift")


def drained(host: str, what: str) -> Finding:
    """A worker that `busbar drain` has taken out."""
    fix = Fix("when its repair is done", ("uncordon", STACK, host))
    return Finding((host,), what, fix, kind="drained")


@dataclass(frozen=True)
class Verified:
    """The hosts that were compared, with name and role of each, and the differences."""

    hosts: Sequence[tuple[str, str]]
    drift: Sequence[Finding]

    def data(self) -> dict[str, Any]:
        """`{"verified", "drift": [{"host", "kind", "what", "fix"}]}`; `verified`: nothing differs."""
        return {"verified": not self.drift, "drift": [each.data() for each in self.drift]}

    def fixes(self) -> Iterator[str]:
        """The next steps, each with its hosts. One that could not be verified cannot be converged."""
        unknown = {each.host for each in self.drift if each.kind == "unknown"}
        if drifted := {each.host for each in self.drift if each.kind == "drift"} - unknown:
            yield str(Fix(command=("up", STACK, "--converge", ",".join(sorted(drifted)))))
        hosts: dict[str, list[str]] = {}
        for each in self.drift:
            # The text of a script that failed has its fix.
            if each.kind != "drift" and each.fix:
                hosts.setdefault(str(each.fix), []).append(each.host)
        for text, names in hosts.items():
            yield f"{listed(list(dict.fromkeys(names)))}: {text}"


@dataclass(frozen=True)
class ClusterState:
    """The Nodes by name, and the newest status per Helm release: (namespace, name) -> status.

    `of_capabilities`: as busbar.capability.node_states. `problems`: what the cluster cannot do.
    """

    nodes: Mapping[str, Node]
    releases: Mapping[tuple[str, str], str]
    of_capabilities: Mapping[str, str] = field(default_factory=dict)
    problems: Sequence[Finding] = ()


class UnknownState(NoVerdict):
    """Nodes and Helm releases could not be read; the text says why."""


def read_state(
    kubeconfig: str,
    inventory: Inventory,
    of_capabilities: Callable[[RestApi], Mapping[str, str]] = lambda api: {},
    *,
    works: bool = False,
) -> ClusterState:
    """The state of the cluster, by its API or a server; `works`: with its problems. Raises UnknownState."""

    def read(api: RestApi) -> ClusterState:
        known = {node.name: node for node in nodes.read(api)}
        problems = health.problems(api, inventory.cluster) if works else []
        return ClusterState(known, releases.statuses(api), of_capabilities(api), problems)

    return _of_any(kubeconfig, inventory, read)


def connect(kubeconfig: str, inventory: Inventory) -> RestApi:
    """A client of the load balancer or, if that is not responding, of any server. Raises UnknownState."""

    def answering(api: RestApi) -> RestApi:
        api.get("/version")
        return api

    return _of_any(kubeconfig, inventory, answering)


def _of_any(kubeconfig: str, inventory: Inventory, ask: Callable[[RestApi], Answer]) -> Answer:
    servers = [api_url(server.address) for server in inventory.servers]
    errors: list[ApiError] = []
    for url in (inventory.api_endpoint, *servers):
        try:
            return ask(RestApi(with_server(kubeconfig, server=url, name=inventory.cluster.name)))
        except ApiError as error:
            errors.append(error)
        except ValueError as error:
            raise UnknownState(f"the kubeconfig of the stack: {error}", Fix(command=("up", STACK))) from None
    again = read_kubeconfig_again(inventory.servers[0].name)
    if all(isinstance(error, UnknownAuthority) for error in errors):
        raise UnknownState(
            "the API and all servers have certificates of another authority than the stack's kubeconfig: the "
            f"cluster was made anew ({errors[0]})",
            again,
        )
    fix = again if errors[0].status == 401 else errors[0].fix
    raise UnknownState(errors[0], fix or (_ENDPOINT_FIX if errors[0].status is None else API_LOG))


async def verify(
    cluster: Cluster,
    login: Login,
    operators: Sequence[Operator],
    state: Callable[[], ClusterState],
    install_id: str = "",
) -> list[Finding]:
    """All differences, in the order of the hosts, then those of the cluster. Empty: nothing differs.

    `operators`: those whose releases are expected. `state` reads the cluster, or raises UnknownState.
    `install_id`: that of the hosts' owner marks; "" if it is unknown. Fails closed: a host that is not
    responding, or a cluster whose state is not known, is in the list. Raises ValueError if the SSH key
    cannot be used, ScriptError if the bastion cannot be reached.
    """
    inventory = Inventory.of(cluster)
    made_with, dns = unchangeable.values(cluster.k3s), dict[str, str]()
    if "coredns" not in cluster.k3s.disable:
        dns["DNS_SERVER"] = made_with[unchangeable.CLUSTER_DNS]
        dns["DNS_NAME"] = f"kubernetes.default.svc.{made_with[unchangeable.CLUSTER_DOMAIN]}"
    async with Hosts.open(login) as hosts:

        def values(host: Host) -> dict[str, str]:
            nfs = {"NFS": "true"} if host == inventory.nfs_server else {}
            of_role = {**nfs, **(dns if host.role in NODE_ROLES else {})}
            return {"ROLE": host.role, "INSTALL_ID": install_id, **of_role}

        reading = asyncio.create_task(asyncio.to_thread(state))
        found, facts = await verify_hosts(hosts, inventory.hosts, values)
    try:
        return [*found, *compare(inventory, await reading, operators)]
    except UnknownState as error:
        what, fix = f"Nodes and Helm releases cannot be read: {error.what}", error.fix
        if all(facts.get(server.name, {}).get("missing") for server in inventory.servers):
            what = "no server has K3s, so the cluster is gone with its Helm releases"
            when = "when its hosts are installed, which ends with the charts that are missing"
            fix = Fix(when, ("up", STACK, "--converge", CLUSTER))
        return [*found, Finding((CLUSTER,), what, fix, kind="unknown")]


async def verify_hosts(
    hosts: Hosts, listed: Sequence[Host], values: Callable[[Host], Mapping[str, str]]
) -> tuple[list[Finding], dict[str, Mapping[str, Any]]]:
    """The differences on each host, by host/verify.sh with these values, and hosts that do not respond.

    The second value is host -> the facts of that script, without hosts that do not respond.
    """
    facts: dict[str, Mapping[str, Any]] = {}

    async def ask(host: Host) -> list[Finding]:
        try:
            told = facts[host.name] = await hosts.run(host, "verify", values(host), seconds=SCRIPT_SECONDS)
        except (ScriptError, UnreachableError) as error:
            return [replace(error.finding, kind="unknown")]
        wrong = clock_error(float(told["epoch"]), (hosts.connected[host.name], time.time()))
        of_site = ((wrong, CLOCK_FIX), (str(told["dns"]), _DNS_FIX))
        site = [Finding((host.name,), what, fix, kind="site") for what, fix in of_site if what]
        others = [of_another_cluster(host.name, str(each), "foreign") for each in told["others"]]
        return [*others, *(drift(host.name, str(what)) for what in told["drift"]), *site]

    found: list[Finding] = []
    for answer in await on_each(listed, ask, at_once=CONCURRENT):
        assert not isinstance(answer, str), answer  # `ask` makes a finding of each error
        found += answer
    return found, facts


def running(login: Login, servers: Sequence[Host]) -> list[str]:
    """The names of the servers on which K3s runs; those that do not respond are left out."""

    async def ask() -> dict[str, Mapping[str, Any]]:
        async with Hosts.open(login) as hosts:
            return (await verify_hosts(hosts, servers, lambda _: {"ROLE": "units", "UNITS": "k3s"}))[1]

    told = asyncio.run(ask())
    stopped = {name for name, facts in told.items() if facts["missing"] or "k3s" in facts["stopped"]}
    return [server.name for server in servers if server.name in told.keys() - stopped]


def compare(inventory: Inventory, state: ClusterState, operators: Sequence[Operator]) -> list[Finding]:
    """Differences between the configuration and the state of the cluster."""
    found: list[Finding] = []
    hosts = (*inventory.servers, *inventory.workers)
    for host in hosts:
        if (node := state.nodes.get(host.name)) is None:
            found.append(without_node(host.name))
            continue
        found += _availability(host, node)
        if host.name in inventory.cordoned and not node.unschedulable:
            found.append(drift(host.name, "its Node is in quarantine and not cordoned"))
        found += _labels_and_taints(inventory, host, node)
        fix = f"repair what the condition names: kubectl describe node {host.name}"
        found += [Finding((host.name,), f"condition {each}", fix, kind="site") for each in node.reported]
    for name in sorted(set(state.nodes) - {host.name for host in hosts}):
        what = f"Node {name} is not in the configuration"
        # The step at the end of an update deletes no others (busbar.kube.drain.stale_nodes).
        if state.nodes[name].machine and not state.nodes[name].is_server:
            found.append(drift(CLUSTER, what))
            continue
        by_hand, then = ("docs", "hosts", "'By hand'"), f", then kubectl delete node {name}"
        stray = Fix("if nobody needs it, uninstall K3s there", by_hand, then)
        found.append(Finding((CLUSTER,), what, stray, kind="foreign"))
    expected = ((operator.namespace, operator.release) for operator in operators)
    return [*found, *installed(expected, state.releases), *state.problems]


def installed(
    expected: Iterable[tuple[str, str]], releases: Mapping[tuple[str, str], str]
) -> Iterator[Finding]:
    """The expected releases (namespace, name) that are not deployed. `releases`: as of ClusterState."""
    for namespace, name in expected:
        status = releases.get((namespace, name))
        if status != _DEPLOYED:
            what = "is not installed" if status is None else f"is {status}, expected {_DEPLOYED}"
            yield drift(CLUSTER, f"Helm release {namespace}/{name} {what}")


def _availability(host: Host, node: Node) -> list[Finding]:
    """Differences in whether new pods can start there; the machine of a drained Node may be off."""
    if node.drained:
        state = "" if node.ready else "; it is not Ready"
        state += "" if node.unschedulable else "; it was uncordoned later"
        return [drained(host.name, f"its Node is drained: {node.drained}{state}")]
    found = [] if node.ready else [drift(host.name, "its Node is not Ready")]
    if CORDONED in node.cordons:
        found.append(drift(host.name, "its Node is cordoned by an update that did not finish there"))
    elif node.cordoned_by_others:
        by = f" by {node.cordoned_by}" if node.cordoned_by else ""
        fix = f"when the cause is repaired: kubectl uncordon {host.name}"
        found.append(Finding((host.name,), f"its Node is cordoned{by}", fix, kind="foreign"))
    return found


def _labels_and_taints(inventory: Inventory, host: Host, node: Node) -> list[Finding]:
    if host.pool is None:
        return []
    found = []
    for key, value in sorted(inventory.cluster.pools[host.pool].labels.items()):
        actual = node.labels.get(key)
        if actual != value:
            got = "is missing" if actual is None else f"is {actual}, expected {value}"
            found.append(drift(host.name, f"label {key} {got}"))
    wanted = [NodeTaint.parse(text) for text in worker_taints(inventory)[host.name]]
    found += [drift(host.name, f"taint {taint} is missing") for taint in wanted if taint not in node.taints]
    ours = {taint.identity for taint in wanted}
    for other in node.taints:
        # Taints of Kubernetes itself disappear with their reason, which has its own row.
        if other.effect in _BLOCKING and other.identity not in ours and not other.key.startswith(_KUBERNETES):
            by = f" but of {node.owner}" if node.owner else ""
            fix = f"if nobody needs it: kubectl taint node {host.name} {other}-"
            text = f"taint {other} is not in the configuration{by}"
            found.append(Finding((host.name,), text, fix, kind="foreign"))
    return found


@dataclass(frozen=True)
class Workers:
    """Preflight's result for the workers. `nodes`: worker -> state of its Node; `ready`: the good ones."""

    spec: Spec
    outcome: Outcome
    nodes: Mapping[str, str]
    ready: Collection[str] = (READY,)

    @property
    def are_well(self) -> bool:
        """Whether no worker has an error, and every Node that is not in quarantine is ready."""
        usable = {state for name, state in self.nodes.items() if name not in self.spec.quarantined}
        return not self.outcome.errors and usable <= {*self.ready}

    def data(self) -> dict[str, Any]:
        """The result as plain data: `{"well", "nodes": [...], "findings": [...]}`.

        A node has name, pool, node (its state) and facts; a finding host, kind, what and fix.
        """
        rows = [
            {
                "name": host.name,
                "pool": host.pool,
                "node": self.nodes[host.name],
                "facts": self.outcome.facts(host.name),
            }
            for host in self.spec.hosts
        ]
        findings = [each.data() for each in self.outcome.findings]
        return {"well": self.are_well, "nodes": rows, "findings": findings}


async def inspect(spec: Spec, inventory: Inventory, state: Callable[[], ClusterState]) -> Workers:
    """Query all workers and the cluster. `state` reads the cluster, or raises UnknownState.

    Fails closed: a worker that is not responding has an error, a Node that cannot be read is unknown.
    Raises ValueError if the SSH key or the ssh-agent cannot be used.
    """
    workers = spec.model_copy(update={"hosts": tuple(each for each in spec.hosts if each.role == "worker")})
    reading = asyncio.create_task(asyncio.to_thread(state))
    outcome = await survey(workers, {})
    try:
        nodes = states(inventory, await reading, outcome)
    except UnknownState as error:
        nodes = {host.name: UNKNOWN for host in workers.hosts}
        problem = Finding((CLUSTER,), f"Nodes cannot be read: {error.what}", error.fix)
        outcome = replace(outcome, findings=[*outcome.findings, problem])
    return Workers(workers, outcome, nodes)


def few_open_files(folder: Path, pools: Iterable[str | None]) -> Iterator[Finding]:
    """Find workers that had few open files in the last measurement of their pool. `folder`: of the stack."""
    for pool in sorted({*filter(None, pools)}):
        verdicts = sorted((folder / pool).rglob(VERDICT), key=lambda path: path.stat().st_mtime)
        verdict = Archive(verdicts[-1].parent).verdict() if verdicts else None
        for limits, names in ((verdict or {}).get("open_files") or {}).items():
            if few_files(limits):
                what = f"a process of the last measurement could open few files: {limits}"
                for name in names:
                    yield Finding((name,), what, _OPEN_FILES_FIX, kind="warning")


def states(inventory: Inventory, state: ClusterState, outcome: Outcome) -> dict[str, str]:
    """Worker -> Ready, or the reason of its quarantine, conditions, differences to the configuration and to
    what OUTCOME counted on the host, and what capabilities say of it."""
    held = {name: f"in quarantine: {reason}" for name, reason in inventory.quarantine.items()}
    found = {host.name: [held[host.name]] if host.name in held else [] for host in inventory.workers}
    for each in compare(inventory, state, ()):
        if each.host in found:
            found[each.host].append(with_fix(each.what, each.fix) if each.kind == "foreign" else each.what)
    # A lost device is an error of its host.
    records = {**outcome.records, **outcome.failed}
    for name, texts in found.items():
        if name in state.nodes and name in records:
            texts += _miscounted(inventory, state.nodes[name], records[name].facts)
    for name, texts in found.items():
        if why := state.of_capabilities.get(name.lower()):
            texts.append(why)
    return {name: "; ".join(texts) or READY for name, texts in found.items()}


def _miscounted(inventory: Inventory, node: Node, facts: Mapping[str, Any]) -> Iterator[str]:
    """Numbers of devices that differ: a plugin may not see a device that is lost, or whose driver is late."""
    network, counts = inventory.cluster.network_operator, list[tuple[str, int, str]]()
    # A host whose nvidia-smi fails has an error of its own, and a number of GPUs that is not known.
    if gpus := facts.get("gpus"):
        counts.append((GPU_RESOURCE, gpus, str(gpus)))
    if network.enabled and "rails" in facts:
        rails = len(facts["rails"])
        counts.append((network.resource, rails, counted(rails, "rail")))
    for resource, on_host, text in counts:
        if (offered := count(dict(node.allocatable), resource)) != on_host:
            yield f"{resource}: {offered} allocatable, {text} on the host"

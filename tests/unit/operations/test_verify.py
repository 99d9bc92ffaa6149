"""What `busbar verify` finds on hosts (by its script) and in the cluster (through its API)."""

import asyncio
import json
import re
import socket
import subprocess
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from busbar import config
from busbar.finding import Finding
from busbar.hosts import scripts as hostscript
from busbar.hosts.inventory import Inventory
from busbar.hosts.remote import Hosts
from busbar.kube.client import ApiError, UnknownAuthority
from busbar.kube.health import problem
from busbar.kube.nodes import CORDONED, DRAINED, NODES, QUARANTINE, Node, NodeTaint, Note
from busbar.manifests import operators
from busbar.operations.verify import (
    CLUSTER,
    ClusterState,
    UnknownState,
    Verified,
    compare,
    drained,
    drift,
    read_state,
    running,
    verify,
)
from tests.support.bash import output
from tests.support.cli import busbar
from tests.support.clusters import H100_POOL, OPERATORS, OWN_NFD, refusing, site, stack_file
from tests.support.kube_cluster import Cluster, unreachable
from tests.support.ssh_hosts import HOST, at, login, machine, printing, public

pytestmark = pytest.mark.usefixtures("stack_dev")

GPU = operators.GPU_OPERATOR
POOL = {
    **H100_POOL,
    "labels": {"site/rack": "r1"},
    "taints": [{"key": "gpu", "value": "yes", "effect": "NoSchedule"}],
}
TAINT = NodeTaint("gpu", "yes", "NoSchedule")
FAN = {DRAINED: Note("fan", "anna", cordoned=True)}


def node(name: str, **found: Any) -> Node:
    """A Node of the configuration, but for what FOUND says."""
    usual = Node(name, "m", False, True, False, {}, ())
    if name == "gpu-1":
        usual = replace(usual, labels={"site/rack": "r1"}, taints=(TAINT,))
    return replace(usual, **found)


UNCORDON = "when the cause is repaired: kubectl uncordon gpu-1"
RELEASE = (GPU.namespace, GPU.release)


def found(
    *changed: Node,
    without: str = "",
    releases: dict[tuple[str, str], str] | None = None,
    problems: Sequence[Finding] = (),
) -> list[Finding]:
    cluster = config.load(site(servers=1, workers={"h100": 1}, pools={"h100": POOL}), root=Path())
    nodes = {each.name: each for each in (node("server-1"), node("gpu-1"), *changed) if each.name != without}
    state = ClusterState(nodes, {RELEASE: "deployed"} if releases is None else releases, problems=[*problems])
    return compare(Inventory.of(cluster), state, [GPU])


def tainted(key: str, effect: str, value: str = "", **found: Any) -> Node:
    return node("gpu-1", taints=(TAINT, NodeTaint(key, value, effect)), **found)


XID = "condition GpuXid of NVSentinel (79)"


@pytest.mark.parametrize(
    ("changed", "kind", "what", "fix"),
    [
        (node("gpu-1", labels={}), "drift", "label site/rack is missing", None),
        (node("gpu-1", labels={"site/rack": "r2"}), "drift", "label site/rack is r2, expected r1", None),
        (node("gpu-1", taints=()), "drift", "taint gpu=yes:NoSchedule is missing", None),
        (node("gpu-1", ready=False), "drift", "its Node is not Ready", None),
        (node("gpu-1", unschedulable=True, notes={CORDONED: Note("restart", cordoned=True)}), "drift",
         "its Node is cordoned by an update that did not finish there", None),
        (node("gpu-1", unschedulable=True), "foreign", "its Node is cordoned", UNCORDON),
        (node("gpu-1", unschedulable=True, owner="NVSentinel (GPU-fatal-error-ruleset)"), "foreign",
         "its Node is cordoned by NVSentinel (GPU-fatal-error-ruleset)", UNCORDON),
        (tainted("gpu-error", "NoSchedule", "1", owner="NVSentinel (xid)"), "foreign",
         "taint gpu-error=1:NoSchedule is not in the configuration but of NVSentinel (xid)",
         "if nobody needs it: kubectl taint node gpu-1 gpu-error=1:NoSchedule-"),
        *((tainted("repair", effect), "foreign", f"taint repair=:{effect} is not in the configuration",
           f"if nobody needs it: kubectl taint node gpu-1 repair=:{effect}-")
          for effect in ("NoSchedule", "NoExecute")),
        (node("gpu-1", reported=("GpuXid of NVSentinel (79)",)), "site", XID,
         "repair what the condition names: kubectl describe node gpu-1"),
        (node("gpu-1", unschedulable=True, notes=FAN), "drained", "its Node is drained: fan (by anna)", None),
        (node("gpu-1", ready=False, unschedulable=True, notes=FAN), "drained",
         "its Node is drained: fan (by anna); it is not Ready", None),
        (node("gpu-1", notes=FAN), "drained",
         "its Node is drained: fan (by anna); it was uncordoned later", None),
    ],
)  # fmt: skip
def test_a_difference_of_a_node_is_named(changed: Node, kind: Any, what: str, fix: Any) -> None:
    usual = {"drift": drift, "drained": drained}
    expected = usual[kind]("gpu-1", what) if kind in usual else Finding(("gpu-1",), what, fix, kind=kind)
    assert found(changed) == [expected]


LOST = node("gpu-9", ready=False)


@pytest.mark.parametrize(
    ("lost", "undone"),
    [
        (LOST, True),
        (node("gpu-9"), True),
        (replace(LOST, is_server=True), False),
        (replace(LOST, machine=""), False),
    ],
    ids=["a worker", "a worker that runs", "a server", "a Node of others"],
)
def test_a_node_that_is_not_configured_is_named_with_who_deletes_it(lost: Node, undone: bool) -> None:
    """An update deletes the Nodes of workers that one has made, and no others."""
    what = "Node gpu-9 is not in the configuration"
    [named] = found(lost)
    if undone:
        assert named == drift(CLUSTER, what)
    else:
        assert (named.host, named.kind, named.what) == (CLUSTER, "foreign", what)
        assert str(named.fix).endswith("busbar docs hosts 'By hand', then kubectl delete node gpu-9")


def test_what_the_cluster_cannot_do_is_named_with_what_to_do() -> None:
    scheduler = problem("kube-scheduler has no Lease", "start it")
    [said] = found(problems=[scheduler])
    assert (said.host, said.what, said.fix, said.kind) == (CLUSTER, scheduler.what, "start it", "site")


@pytest.mark.parametrize(
    "taint",
    [
        NodeTaint("node.kubernetes.io/disk-pressure", "", "NoSchedule"),
        NodeTaint("repair", "", "PreferNoSchedule"),
        NodeTaint("gpu", "no", "NoSchedule"),
    ],
)
def test_taints_of_kubernetes_and_such_that_keep_no_pod_away_are_not_foreign(taint: NodeTaint) -> None:
    assert not [each for each in found(node("gpu-1", taints=(TAINT, taint))) if each.kind == "foreign"]


HELD = Node("gpu-1", "m", False, True, False, {}, (NodeTaint("busbar/quarantine", "true", "NoSchedule"),))
NOT_TAINTED = drift("gpu-1", "taint busbar/quarantine=true:NoSchedule is missing")
NOT_CORDONED = drift("gpu-1", "its Node is in quarantine and not cordoned")
CORDONED_FOR_FAN = replace(HELD, unschedulable=True, notes={QUARANTINE: Note("fan", cordoned=True)})


@pytest.mark.parametrize(
    ("cordon", "node", "expected"),
    [
        (False, HELD, []),
        (False, replace(HELD, taints=()), [NOT_TAINTED]),
        (True, HELD, [NOT_CORDONED]),
        (True, CORDONED_FOR_FAN, []),
    ],
)
def test_a_quarantine_that_was_ended_by_hand_is_named_and_one_as_configured_is_not(
    cordon: bool, node: Node, expected: list[Finding]
) -> None:
    content = site(servers=1, workers={"h100": 2})
    content["hosts"]["workers"][0]["quarantine"] = "fan"
    content["pools"]["h100"]["quarantine_cordon"] = cordon
    others = [replace(HELD, name=name, taints=()) for name in ("server-1", "gpu-2")]
    state = ClusterState({each.name: each for each in (*others, node)}, {})
    assert compare(Inventory.of(config.load(content, root=Path())), state, []) == expected


@pytest.mark.parametrize(
    ("releases", "says"), [({}, "is not installed"), ({RELEASE: "failed"}, "is failed, expected deployed")]
)
def test_a_chart_that_is_not_deployed_is_named(releases: dict[tuple[str, str], str], says: str) -> None:
    assert found(releases=releases) == [drift(CLUSTER, f"Helm release {GPU.namespace}/{GPU.release} {says}")]


UP, CHECK = "busbar up dev --converge", "w-1: check its address"
UNANSWERED = Finding(("w-1",), "no answer", "check its address", kind="unknown")
CLOCK = Finding(("w-1",), "clock is 60 s behind", "set it", kind="site")
CORDON = Finding(("gpu-1",), "cordoned", UNCORDON, kind="foreign")
BY_HAND = drained("w-1", "its Node is drained: fan")
AFTER_REPAIR = "w-1: when its repair is done: busbar uncordon dev w-1"


@pytest.mark.parametrize(
    ("found", "fix"),
    [
        ([drift("w-2", "a"), drift("w-1", "b")], [f"{UP} w-1,w-2"]),
        ([UNANSWERED, drift("w-1", "its Node is not Ready"), drift("w-2", "a")], [f"{UP} w-2", CHECK]),
        ([UNANSWERED], [CHECK]),
        ([CORDON, drift("w-2", "a")], [f"{UP} w-2", f"gpu-1: {UNCORDON}"]),
        ([CLOCK, drift("w-1", "a")], [f"{UP} w-1", "w-1: set it"]),
        ([BY_HAND, drift("w-2", "a")], [f"{UP} w-2", AFTER_REPAIR]),
    ],
)
def test_only_hosts_that_were_verified_are_to_be_converged(
    found: list[Finding], fix: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def verified(*_: Any) -> list[Finding]:
        return found

    monkeypatch.chdir(tmp_path)
    (tmp_path / "Pulumi.yaml").write_text("name: busbar\n")
    monkeypatch.setattr("busbar.operations.verify.verify", verified)
    done = busbar("verify", str(stack_file(tmp_path, name="dev")))
    assert done.exit_code == 1, done.output
    assert done.output.splitlines()[-len(fix) :] == [f"Fix: {each}" for each in fix]


@pytest.mark.parametrize("other", OPERATORS, ids=lambda each: each.release)
def test_the_chart_of_an_operator_that_another_tool_installs_is_not_expected(
    other: operators.Operator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected: list[operators.Operator] = []

    async def verified(_cluster: Any, _login: Any, charts: Any, *_: Any) -> list[Finding]:
        expected.extend(charts)
        return []

    content = {**site(network_operator=OWN_NFD), other.config_key: {"enabled": False}}
    monkeypatch.setattr("busbar.operations.verify.verify", verified)
    done = busbar("verify", str(stack_file(tmp_path, content, "dev")))
    assert (done.exit_code, expected) == (0, [each for each in OPERATORS if each != other]), done.output


def test_the_result_says_whether_something_differs_and_what() -> None:
    assert Verified([], [drift("gpu-1", "x")]).data() == {
        "verified": False,
        "drift": [{"host": "gpu-1", "kind": "drift", "what": "x", "fix": "busbar up dev --converge gpu-1"}],
    }
    assert Verified([], []).data()["verified"] is True


def test_a_script_that_has_a_fix_of_its_own_adds_no_empty_line() -> None:
    failed = Finding(("gpu-1",), "verify failed: no space left. Fix: df -h /tmp", kind="unknown")
    assert [*Verified([], [failed]).fixes()] == []


def unknown() -> ClusterState:
    raise UnknownState("no answer", "start the servers")


def test_hosts_and_a_cluster_that_do_not_answer_are_not_verified() -> None:
    content = refusing(site(servers=1, workers={"h100": 1}))
    found = asyncio.run(verify(config.load(content, root=Path()), login(), [GPU], unknown))
    what = "Nodes and Helm releases cannot be read: no answer"
    assert found[-1] == Finding((CLUSTER,), what, "start the servers", kind="unknown")
    kinds = {each.host: each.kind for each in found[:-1]}
    assert kinds == dict.fromkeys(("lb-1", "server-1", "gpu-1"), "unknown")


KUBECONFIG = """
clusters: [{name: c, cluster: {server: "https://lb:6443", certificate-authority-data: ""}}]
users: [{name: u, user: {}}]
"""
THREE = Inventory.of(config.load(site(servers=3), root=Path()))
SERVERS = [f"https://192.0.2.{number}:6443" for number in (11, 12, 13)]


def failing(error: ApiError) -> Cluster:
    """A cluster whose API answers with this error."""
    made = Cluster()
    made.failures = [error]
    return made


@pytest.fixture
def clients(monkeypatch: pytest.MonkeyPatch) -> dict[str, Cluster]:
    """The cluster that is behind each server, by its URL; nobody answers at others."""
    known: dict[str, Cluster] = {}

    def client(kubeconfig: str) -> Cluster:
        server = yaml.safe_load(kubeconfig)["clusters"][0]["cluster"]["server"]
        return known.get(server, failing(unreachable(server)))

    monkeypatch.setattr("busbar.operations.verify.RestApi", client)
    return known


def test_the_cluster_is_read_from_a_server_if_the_balancer_is_silent(clients: dict[str, Cluster]) -> None:
    release = {"metadata": {"namespace": "n", "labels": {"name": "r", "version": "1", "status": "deployed"}}}
    clients[SERVERS[1]] = Cluster({NODES: [], "/api/v1/secrets": [release]})
    assert read_state(KUBECONFIG, THREE).releases == {("n", "r"): "deployed"}


ANEW = UnknownAuthority("GET /", None, "self-signed certificate")
AGAIN = "Fix: busbar up dev --converge server-1, which reads the kubeconfig"


@pytest.mark.parametrize(
    ("answers", "says"),
    [
        pytest.param([], f"^GET {THREE.api_endpoint}: connection refused", id="silent"),
        pytest.param([ANEW] * 4, f"the cluster was made anew.*{AGAIN}", id="made anew"),
        pytest.param([ANEW, unreachable()], "^GET /: self-signed certificate", id="a server is silent"),
        pytest.param(
            [ApiError("GET /", 500, "etcdserver: request timed out")],
            r"request timed out\. Fix: see on the servers: journalctl -u k3s",
            id="an error of the API",
        ),
        pytest.param([ApiError("GET /", 401, "Unauthorized", fix="x")], AGAIN, id="the login is refused"),
    ],
)
def test_a_cluster_that_cannot_be_read_has_the_reason_and_what_to_do(
    clients: dict[str, Cluster], answers: list[ApiError], says: str
) -> None:
    for url, error in zip((THREE.api_endpoint, *SERVERS), answers, strict=False):
        clients[url] = failing(error)
    with pytest.raises(UnknownState, match=says):
        read_state(KUBECONFIG, THREE)


def test_a_kubeconfig_that_cannot_be_used_is_an_unknown_state() -> None:
    with pytest.raises(UnknownState, match="the kubeconfig of the stack"):
        read_state("no kubeconfig", THREE)


def answered(
    role: str,
    commands: list[str],
    ahead: float = 0,
    dns: str = "",
    missing: bool = False,
    other: str = "",
    **sections: Any,
) -> list[Finding]:
    """The drift of a site of which only the host of this role answers."""
    content = refusing(site(servers=1, workers={"h100": 1}, **sections))

    async def verified() -> list[Finding]:
        drift, others = ["x"] if missing else [], [other] if other else []
        facts = {"epoch": time.time() + ahead, "drift": drift, "dns": dns, "others": others}
        facts |= {"missing": missing, "stopped": []}
        async with machine(printing(facts, commands)) as port:
            found = {"address": "127.0.0.1", "port": port, "host_key": public(HOST), "user": "root"}
            content["hosts"][role][0].update(found)
            return await verify(config.load(content, root=Path()), login(), [GPU], unknown, "a1")

    return asyncio.run(verified())


def test_the_host_of_the_export_is_asked_for_its_nfs_server_too() -> None:
    commands: list[str] = []
    answered("load_balancers", commands, nfs_server={"host": "lb-1", "folder": "/srv/busbar"})
    answered("workers", commands, nfs_server={"host": "lb-1", "folder": "/srv/busbar"})
    assert ["NFS=true" in command for command in commands] == [True, False]


@pytest.mark.parametrize(("role", "name"), [("servers", "server-1"), ("workers", "gpu-1")])
def test_a_host_with_pods_asks_coredns_and_is_named_if_it_gets_no_answer(role: str, name: str) -> None:
    commands: list[str] = []
    found = answered(role, commands, dns="CoreDNS (10.43.0.10) does not answer this host")
    assert "DNS_SERVER=10.43.0.10 DNS_NAME=kubernetes.default.svc.cluster.local" in commands[0]
    (named,) = [each for each in found if each.kind == "site"]
    assert (named.host, named.what) == (name, "CoreDNS (10.43.0.10) does not answer this host")
    answered(role, commands, k3s={"sha256": {"amd64": "ab" * 32}, "disable": ["coredns"]})
    answered("load_balancers", commands)
    assert "DNS_SERVER" not in "".join(commands[1:])


def test_a_cluster_whose_servers_were_installed_anew_is_gone_and_comes_back_by_two_commands() -> None:
    found = answered("servers", [], missing=True)
    [gone] = [each for each in found if each.host == CLUSTER]
    assert gone.what == "no server has K3s, so the cluster is gone with its Helm releases"
    first, *_, last = Verified([], found).fixes()
    assert first == "busbar up dev --converge server-1"
    assert last.endswith("busbar up dev --converge cluster") and last.startswith("cluster: ")


def answering_dns(answer: bytes) -> tuple[int, list[bytes]]:
    """The port of a name server with this answer, and the questions that it got."""
    asked: list[bytes] = []
    listening = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        connection, _ = listening.accept()
        with connection:
            # bash sends a line at a time, and the length of "kubernetes" is a line feed.
            asked.append(connection.recv(2))
            asked[0] += connection.recv(int.from_bytes(asked[0]), socket.MSG_WAITALL)
            connection.sendall(len(answer).to_bytes(2) + answer)

    threading.Thread(target=serve, daemon=True).start()
    return listening.getsockname()[1], asked


NAME = "kubernetes.default.svc.cluster.local"


@pytest.mark.parametrize(
    ("code", "records", "says"),
    [
        (0, 1, ""),
        (3, 0, f"CoreDNS (127.0.0.1) has no address for {NAME} (response code 3)"),
        (0, 0, f"CoreDNS (127.0.0.1) has no address for {NAME} (response code 0)"),
    ],
)
def test_a_server_asks_for_a_name_without_any_program_for_it(code: int, records: int, says: str) -> None:
    header = bytes([0x12, 0x34, 0x81, 0x80 | code, 0, 1, 0, records, 0, 0, 0, 0])
    port, asked = answering_dns(header + b"the rest")
    # Only root has port 53.
    script = hostscript.text("verify").replace("$0/53", f"$0/{port}")
    call = script.rstrip().removesuffix("\nmain") + "\nset -euo pipefail; dns_error"
    environment = {"PATH": "/usr/bin:/bin", "DNS_SERVER": "127.0.0.1", "DNS_NAME": NAME}
    done = subprocess.run(
        ["bash", "-c", call], capture_output=True, text=True, check=True, env=environment, timeout=30
    )
    assert (done.stdout, done.stderr) == (says, "")
    labels = b"".join(bytes([len(each)]) + each.encode() for each in NAME.split("."))
    question = bytes([0x12, 0x34, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0]) + labels + bytes([0, 0, 1, 0, 1])
    assert asked == [len(question).to_bytes(2) + question]


def test_a_name_server_that_does_not_answer_is_named() -> None:
    says = output("verify", "dns_error", DNS_SERVER="127.0.0.1", DNS_NAME=NAME)
    assert says == "CoreDNS (127.0.0.1) does not answer this host"


@pytest.mark.parametrize(("ahead", "says"), [(600, "ahead of"), (-600, "behind"), (0, None)])
def test_a_host_whose_clock_is_wrong_is_named(ahead: float, says: str | None) -> None:
    found = answered("workers", [], ahead)
    wrong = [each.what for each in found if each.kind == "site"]
    # A busy machine answers a second later.
    said = [re.sub(r"\d{3}", "600", each) for each in wrong]
    assert said == ([f"clock is 600 s {says} this machine's, expected at most 5 s"] if says else [])


def write(path: Path, text: str = "x\n") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def places(root: Path) -> str:
    dirs = f"K3S_CONFIG_DIR={root}/k3s K3S_DATA_DIR={root}/data STATE_DIR={root}/busbar"
    return f"{dirs} NFS_STATE_DIR={root}/nfs UNIT_DIRS=({root}/units {root}/run); "


@pytest.fixture
def worker(tmp_path: Path) -> Path:
    """A worker with a drop-in and a file of the site, as the last update has recorded it."""
    for name in ("k3s/config.yaml", "k3s/config.yaml.d/site.yaml", "k3s/k3s.yaml", "units/k3s-agent.service"):
        write(tmp_path / name)
    for name in ("units/k3s-agent.service.d/10-busbar-memlock.conf", "data/agent/kubelet.kubeconfig"):
        write(tmp_path / name)
    write(tmp_path / "busbar/owner", "role=worker\nowner=busbar/dev/gpu-1\ninstall_id=a1\n")
    find = f'find() {{ command find "${{@//\\/etc\\/systemd\\/system/{tmp_path}/units}}"; }}'
    output("k3s-agent", f"{places(tmp_path)} {find}; K3S_DESIRED_HASH=x; record_applied_hash k3s-agent")
    return tmp_path


def reported(
    root: Path, role: str = "worker", stopped: str = "none", memlock: str = "infinity", **values: str
) -> dict[str, Any]:
    """The facts of a host; `stopped`: a unit that does not run."""
    stubs = f"""
    begin() {{ :; }}
    systemctl() {{
      [[ $1 != show ]] || {{ echo {memlock}; return; }}
      local now=active; [[ $* != *{stopped}* ]] || now=inactive
      [[ $* == *--quiet* ]] || echo $now; [[ $now == active ]]
    }}
    {places(root)}
    """
    facts: dict[str, Any] = json.loads(output("verify", f"{stubs} main", ROLE=role, **values))
    return facts


def drift_of(root: Path, *args: str, **values: str) -> list[str]:
    return [str(each).replace(f"{root}/", "") for each in reported(root, *args, **values)["drift"]]


def test_a_host_as_applied_has_no_drift(worker: Path) -> None:
    facts = reported(worker)
    assert abs(facts.pop("epoch") - time.time()) < 60, "the clock of the host"
    none: dict[str, Any] = {"drift": [], "missing": False, "stopped": [], "others": [], "dns": ""}
    assert facts == {"node": "worker-1", **none}


ADDED = ("k3s/config.yaml.d/labels.yaml", "k3s/registries.yaml")
DROP_INS = ("units/k3s-agent.service.d/limits.conf", "run/k3s-agent.service.d/limits.conf")
SECRETS = ("k3s/config.yaml", "data/agent/kubelet.kubeconfig")
CHANGES = [
    ("echo y >k3s/config.yaml", ["k3s/config.yaml was changed"]),
    ("rm units/k3s-agent.service", ["units/k3s-agent.service is missing"]),
    # Settings of the site that the last update found are none until they change.
    ("echo y >k3s/config.yaml.d/site.yaml", ["k3s/config.yaml.d/site.yaml was changed"]),
    *((f"echo x >{name}; chmod 600 {name}", [f"{name} was added"]) for name in (*ADDED, *DROP_INS)),
    ("ln -s ../config.yaml k3s/config.yaml.d/l.yaml", ["k3s/config.yaml.d/l.yaml was added"]),
    # A step of busbar that is on its way.
    *((f"echo x >run/k3s-agent.service.d/90-busbar-{step}.conf", []) for step in ("leaving", "rotate")),
    *(
        (f"chmod {mode} {name}", [f"{name} can be read by others (mode {mode}, expected 600)"])
        for name in SECRETS
        for mode in (640, 604, 620)
    ),
    # On a worker it is of an admin.
    ("chmod 644 k3s/k3s.yaml", []),
    ("rm busbar/owner", ["nothing of busbar is installed (busbar/owner is missing)"]),
]


@pytest.mark.parametrize(("change", "drift"), CHANGES, ids=[change for change, _ in CHANGES])
def test_what_was_changed_since_the_last_update_is_named(worker: Path, change: str, drift: list[str]) -> None:
    (worker / "run/k3s-agent.service.d").mkdir(parents=True)
    subprocess.run(["bash", "-c", change], cwd=worker, check=True)
    assert drift_of(worker) == drift


def test_a_server_without_k3s_asks_no_name_server(worker: Path) -> None:
    (worker / "busbar/owner").unlink()
    assert reported(worker, "server", DNS_SERVER="127.0.0.1", DNS_NAME=NAME)["dns"] == ""


def test_a_limit_that_a_drop_in_for_all_services_lowers_is_named(worker: Path) -> None:
    says = "LimitMEMLOCK of k3s-agent is 65536, expected infinity (see: systemctl cat k3s-agent)"
    assert drift_of(worker, memlock="65536") == [says]


def test_a_server_whose_member_was_removed_is_named_before_its_node_is_not_ready(worker: Path) -> None:
    write(worker / "data/server/db/etcd/tombstone", "")
    assert "etcd has removed this server" in drift_of(worker, "server")


@pytest.mark.parametrize(("role", "unit"), [("lb", "haproxy"), ("server", "k3s"), ("worker", "k3s-agent")])
def test_a_stopped_unit_is_named(worker: Path, role: str, unit: str) -> None:
    found = reported(worker, role, unit)
    assert f"{unit} is not running (inactive)" in found["drift"]
    assert found["stopped"] == [unit]


def test_a_stopped_keepalived_is_named_where_the_last_update_has_configured_it(worker: Path) -> None:
    named = "keepalived is not running (inactive)"
    assert named not in drift_of(worker, "lb", "keepalived")
    with (worker / "busbar/applied.sha256").open("a") as record:
        record.write(f"{'0' * 64}  /etc/keepalived/keepalived.conf\n")
    assert named in drift_of(worker, "lb", "keepalived")


@pytest.fixture
def nfs_host(worker: Path) -> Path:
    """A host as applied that is the NFS server too."""
    write(worker / "nfs/owner", "role=NFS server\n")
    write(worker / "exports", "/srv/busbar 10.0.0.21(rw)\n")
    output("nfs-server", f"STATE_DIR={worker}/nfs; record_applied {worker}/exports")
    return worker


def test_an_nfs_server_as_applied_has_no_drift_on_a_load_balancer_or_alone(nfs_host: Path) -> None:
    assert drift_of(nfs_host, "lb", NFS="true") == []
    (nfs_host / "busbar/owner").unlink()
    assert drift_of(nfs_host, "nfs", NFS="true") == []


def test_changed_exports_and_a_stopped_nfs_server_are_named(nfs_host: Path) -> None:
    (nfs_host / "exports").write_text("/srv/busbar *(rw)\n")
    assert drift_of(nfs_host, "lb", "nfs-server", NFS="true") == [
        "nfs-server is not running (inactive)",
        "nfs-server does not start at boot",
        "exports was changed",
    ]
    assert drift_of(nfs_host, "lb", "nfs-server", NFS="false") == [], "of another host"


def test_an_nfs_server_that_is_gone_is_named_beside_a_load_balancer_as_applied(nfs_host: Path) -> None:
    (nfs_host / "nfs/owner").unlink()
    found = reported(nfs_host, "lb", NFS="true")
    assert "nfs/owner is missing" in " ".join(found["drift"])
    assert not found["missing"], "the load balancer is installed"
    (nfs_host / "busbar/owner").unlink()
    assert reported(nfs_host, "lb", NFS="true")["missing"]


def test_facts_of_any_size_are_read() -> None:
    facts = {"nodes": "x" * 4_000_000}

    async def read() -> dict[str, Any]:
        server = machine(printing(facts, [], stderr="busbar: a note\n"))
        async with server as port, Hosts.open(login()) as hosts:
            return await hosts.run(at(port, "server-1", "server"), "verify", {}, seconds=20)

    assert asyncio.run(read()) == facts


def test_a_host_of_another_cluster_is_named_instead_of_what_that_one_has_applied(nfs_host: Path) -> None:
    write(nfs_host / "nfs/owner", "role=NFS server\nowner=busbar/new/nfs-1\ninstall_id=b2\n")
    write(nfs_host / "exports", "of the other one\n")
    for expected, others in (("a1", ["busbar/new/nfs-1"]), ("b2", ["busbar/dev/gpu-1"]), ("", [])):
        found = reported(nfs_host, NFS="true", INSTALL_ID=expected)
        assert (found["others"], len(found["drift"])) == (others, expected != "a1")
    commands: list[str] = []
    named, *_ = answered("load_balancers", commands, other="busbar/new/lb-1")
    assert "INSTALL_ID=a1" in commands[0]
    assert str(named).startswith(
        "lb-1: belongs to another cluster: busbar/new/lb-1 installed it. Fix: correct"
    )


@pytest.mark.parametrize(
    ("missing", "stopped", "names"),
    [(False, ["keepalived"], ["server-1"]), (False, ["k3s"], []), (True, [], [])],
)
def test_servers_on_which_k3s_runs_are_known_without_the_api(
    missing: bool, stopped: list[str], names: list[str]
) -> None:
    facts = {"epoch": 0, "drift": ["x"], "missing": missing, "stopped": stopped, "dns": "", "others": []}

    async def asked() -> list[str]:
        async with machine(printing(facts, [])) as port:
            servers = [at(port, "server-1", "server"), at(1, "server-2", "server")]
            return await asyncio.to_thread(running, login(), servers)

    assert asyncio.run(asked()) == names

"""Renamed, moved, replaced and removed hosts, with the real engine and the real components and scripts.

Only the hosts are not real: each is a folder. What a script would install is a line in `log`; the owner mark,
the list of workers and the guards around removal are those of host/. The tests are one story, in this order.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.support.clusters import site
from tests.support.engine import throwaway_project

SECONDS = 900

PROGRAM = """
    import json, os, shlex, sys
    from pathlib import Path
    import pulumi
    from pulumi_command import local

    import busbar.config
    from busbar.hosts import scripts
    from busbar.hosts.inventory import Inventory
    from busbar.kube import batches
    from busbar.components import control_plane, load_balancer, worker_pool
    from busbar.components.engine import hosts, join_tokens, node_steps
    from busbar.components.engine.stack import StackConfig

    ROOT = Path(__file__).parent
    FOLDERS = '''
        begin() { set -euo pipefail; }
        acquire_lock() { :; }
        systemctl() { [[ $* == "is-active --quiet k3s" ]]; }
        TEARDOWN=$ROOT/teardown
        api() {
          shift
          case "$*" in
            "get configmap "*data.servers*) cat "$ROOT/servers" ;;
          esac
        }
        note_hosts() { payload servers >"$ROOT/servers"; }
        cluster_nodes() { cat "$ROOT/nodes" 2>/dev/null || true; }
        STATE_DIR=$HOST/busbar K3S_DATA_DIR=$HOST/data K3S_CONFIG_DIR=$HOST/etc
        log() { echo "$NODE_NAME $1" >>"$ROOT/log"; }
        install_server() {
          refuse_new_identity
          claim_host server
          mkdir -p "$K3S_DATA_DIR/server/db/etcd/member"
          payload config | write_file "$K3S_CONFIG_DIR/config.yaml" 0600
          log installed
          printf '{"version":"v1","ca_sha256":"%064d","ca_pem":"x"}' 0
        }
        leave_cluster() { :; }
        install_agent() {
          claim_host worker
          log installed
          grep -qsF "$NODE_NAME|$HOST|" "$ROOT/nodes" || echo "$NODE_NAME|$HOST|" >>"$ROOT/nodes"
          removed false
        }
        k3s_uninstall() { log uninstalled; rm -rf "$K3S_DATA_DIR"; remove_state; removed true; }
        install_package() { :; }
        install_balancer() { claim_host "load balancer"; log installed; removed false; }
        remove_part() { log uninstalled; }
        node_field() { echo "$1"; }
        node_is_ready() { true; }
        delete_node() { sed -i "/^$1|/d" "$ROOT/nodes"; NODE_NAME=$1 log "Node deleted"; }
    '''

    def on_folder(script, values, address):
        path = ROOT / f"{script}.sh"
        if not path.exists():  # once: bash reads a script while it runs, and those of other hosts run already
            functions = scripts.text(script).rstrip().removesuffix("main")
            path.write_text(functions + FOLDERS + "\\nIFS= read -r PAYLOAD; main")
        folder = [f"HOST={ROOT}/{address}", f"ROOT={ROOT}"]
        return shlex.join(["env", *values, *folder, "bash", f"{ROOT}/{script}.sh"])

    def command(name, connection, create, stdin, add_previous_output_in_env, logging, opts):
        def text(words):
            if words is None:
                return None
            values = [word for word in shlex.split(words) if word.split("=", 1)[0].isupper()]
            script = next(v for v in values if v.startswith("BUSBAR_SCRIPT=")).split("=")[1].rsplit("-", 1)[0]
            if script == "kubeconfig":
                return f"cat {ROOT}/kubeconfig"
            return on_folder(script, values, connection.host)

        text = pulumi.Output.from_input(create).apply(text)
        return local.Command(name, create=text, stdin=stdin, opts=opts, add_previous_output_in_env=False)

    def removal_command(name, step, stdin, opts, at_removal, create=None):
        # What `busbar remove` does, without SSH.
        def kept(request):
            address = json.loads(request)["servers"][0]["address"]
            return on_folder("k3s-nodes", ["VERB=keep", "NODE_NAME=all"], address)

        def text(request):
            spec = json.loads(request)
            if step == "remove host":
                values = {**spec["values"], "NODE_NAME": spec["host"]["name"], "VERB": "remove"}
                script, address = spec["script"], spec["host"]["address"]
            else:
                script, values = "k3s-nodes", {"VERB": "teardown", "NODE_NAME": "all"}
                address = spec["servers"][0]["address"]
            return on_folder(script, [f"{key}={value}" for key, value in values.items()], address)

        return local.Command(name, create=stdin.apply(kept) if create else None, delete=stdin.apply(text),
                             stdin="{}", opts=opts, add_previous_output_in_env=False)

    hosts.remote.Command = command
    hosts.create_hosts_command = removal_command

    class Login:
        def connection(self, host):
            return type("Connection", (), {"host": host.address})

        spec = pulumi.Output.from_input({})
        bastion = None

    content = json.loads((ROOT / "cluster.json").read_text())
    inventory = Inventory.of(busbar.config.load(content, root=ROOT))
    # No agent counts as running, so none waits for another one.
    batches.ask = lambda kubeconfig, jobs: batches.Nodes(names=frozenset(), ready=frozenset())
    # Nor is there a scheduler with jobs on it.
    worker_pool.restart_hooks = lambda *_, **__: pulumi.ResourceHookBinding()
    config = StackConfig(
        cluster=inventory.cluster, inventory=inventory, login=Login(), secrets={}, project=ROOT
    )
    tokens = join_tokens.JoinTokens("busbar")
    plane = control_plane.K3sControlPlane(
        "busbar-control-plane",
        config=config,
        tokens=tokens,
        machines={},
    )
    balancer = load_balancer.HAProxyLoadBalancer(
        "busbar-load-balancer",
        config=config,
        ca_pem=plane.ca_pem,
        install_id=plane.install_id,
    )
    pools = [
        worker_pool.InfiniBandWorkerPool(
            f"busbar-pool-{pool}",
            pulumi.ResourceOptions(depends_on=[balancer]),
            config=config, pool=pool, prefix="busbar-worker", install_id=plane.install_id,
            kubeconfig=plane.kubeconfig, servers=plane.servers, unreachable=[],
            agent_token=plane.agent_token, registries_yaml="",
        )
        for pool in inventory.cluster.pools
    ]
    remove_nodes = shlex.join([sys.executable, "-m", "tests.engine.folder_nodes", str(ROOT)])
    node_steps.create_cluster_command = lambda name, command, spec, kubeconfig, opts: local.Command(
        name, create=remove_nodes, stdin=json.dumps(spec), opts=opts, add_previous_output_in_env=False
    )
    after = pulumi.ResourceOptions(depends_on=pools)
    workers = [worker.name for worker in inventory.workers]
    node_steps.remove_stale_nodes("busbar-control-plane-stale-nodes", workers, plane.kubeconfig, after)
"""

KUBECONFIG = """\
clusters: [{name: default, cluster: {server: "https://127.0.0.1:6443", certificate-authority-data: TU9DSw==}}]
users: [{name: default, user: {}}]
"""


@dataclass
class Stack:
    """A stack whose hosts are folders. `cluster` is the configuration of the next update."""

    folder: Path
    environment: Mapping[str, str]
    cluster: dict[str, Any] = field(default_factory=dict)

    def pulumi(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        (self.folder / "cluster.json").write_text(json.dumps(self.cluster))
        return subprocess.run(
            ["pulumi", *arguments, "--stack", "dev", "--non-interactive"],
            cwd=self.folder, env=self.environment, text=True, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=SECONDS, check=False,
        )  # fmt: skip

    def up(self, *arguments: str) -> list[str]:
        """What a good update did on the hosts."""
        before = len(self.log())
        done = self.pulumi("up", "--yes", "--skip-preview", *arguments)
        assert done.returncode == 0, done.stdout
        return self.log()[before:]

    def log(self) -> list[str]:
        path = self.folder / "log"
        return path.read_text().splitlines() if path.exists() else []

    def urn(self, name: str) -> str:
        done = self.pulumi("stack", "export")
        resources = json.loads(done.stdout)["deployment"]["resources"]
        [urn] = [each["urn"] for each in resources if each["urn"].endswith(f"::{name}")]
        return str(urn)

    def owner(self, address: str) -> str:
        text = (self.folder / address / "busbar/owner").read_text()
        return dict(line.split("=", 1) for line in text.splitlines())["owner"]


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    folder = tmp_path_factory.mktemp("owner")
    environment = throwaway_project(folder, PROGRAM, NO_COLOR="1")
    (folder / "kubeconfig").write_text(json.dumps({"kubeconfig": KUBECONFIG}))
    made = Stack(folder, environment, site(servers=3, workers={"a": 3, "b": 1}))
    assert made.pulumi("stack", "init").returncode == 0
    assert sorted(made.up()) == sorted(
        f"{name} installed"
        for name in ("lb-1", "server-1", "server-2", "server-3", "gpu-1", "gpu-2", "gpu-3", "gpu-4")
    )
    yield made
    done = made.pulumi("destroy", "--yes", "--skip-preview")
    assert done.returncode == 0, done.stdout


def test_an_up_without_changes_does_nothing_on_the_hosts(stack: Stack) -> None:
    assert stack.up("--expect-no-changes") == []


def test_a_worker_that_moves_to_another_pool_is_neither_drained_nor_uninstalled(stack: Stack) -> None:
    stack.cluster["hosts"]["workers"][0]["pool"] = "b"
    assert stack.up() == []


def test_reordered_workers_and_a_renamed_cluster_uninstall_nothing(stack: Stack) -> None:
    stack.cluster["hosts"]["workers"].reverse()
    stack.cluster["name"] = "renamed"
    assert not [line for line in stack.up() if "installed" not in line or "uninstalled" in line]


def test_a_renamed_load_balancer_goes_on(stack: Stack) -> None:
    stack.cluster["hosts"]["load_balancers"][0]["name"] = "front"
    done = stack.up()
    assert "front installed" in done
    assert not [line for line in done if "uninstalled" in line]
    assert stack.owner("192.0.2.1") == "tiny/dev/busbar-load-balancer@front"


def test_a_renamed_worker_loses_only_its_old_node(stack: Stack) -> None:
    worker = next(host for host in stack.cluster["hosts"]["workers"] if host["name"] == "gpu-1")
    worker["name"] = "gpu-9"
    done = stack.up()
    assert done == ["gpu-9 installed", "gpu-1 Node deleted"]
    assert stack.owner(worker["address"]) == "tiny/dev/busbar-worker@gpu-9"


def test_a_replacement_installs_a_worker_again_and_removes_nothing(stack: Stack) -> None:
    assert stack.up("--replace", stack.urn("busbar-worker@gpu-2")) == ["gpu-2 installed"]
    assert stack.up("--expect-no-changes") == []


def test_another_look_for_stale_nodes_does_not_touch_those_of_workers_that_stay(stack: Stack) -> None:
    assert stack.up("--replace", stack.urn("busbar-control-plane-stale-nodes")) == []


@pytest.mark.parametrize("servers", [1, 3])
def test_renamed_servers_stop_the_update_and_nothing_is_uninstalled(stack: Stack, servers: int) -> None:
    before = deepcopy(stack.cluster)
    for host in stack.cluster["hosts"]["servers"][:servers]:
        host["name"] = f"renamed-{host['name']}"
    seen = len(stack.log())
    done = stack.pulumi("up", "--yes", "--skip-preview")
    stack.cluster = before
    assert done.returncode != 0
    assert "this server is server-1 in etcd and cannot become renamed-server-1" in done.stdout
    assert stack.log()[seen:] == []
    assert stack.owner("192.0.2.11") == "tiny/dev/busbar-control-plane@server-1"


def test_a_removed_worker_is_drained_and_then_uninstalled(stack: Stack) -> None:
    workers = stack.cluster["hosts"]["workers"]
    stack.cluster["hosts"]["workers"] = [host for host in workers if host["name"] != "gpu-2"]
    assert stack.up() == ["gpu-2 drained", "gpu-2 Node deleted", "gpu-2 uninstalled"]


def test_a_destroy_uninstalls_every_host(stack: Stack) -> None:
    seen = len(stack.log())
    done = stack.pulumi("destroy", "--yes", "--skip-preview")
    assert done.returncode == 0, done.stdout
    assert {line for line in stack.log()[seen:] if "uninstalled" in line} == {
        f"{name} uninstalled"
        for name in ("front", "server-1", "server-2", "server-3", "gpu-3", "gpu-4", "gpu-9")
    }

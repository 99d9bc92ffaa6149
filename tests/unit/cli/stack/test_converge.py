"""What is applied again on request."""

import json
import os
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from busbar.cli.engine import KNOWN_HOSTS
from busbar.cli.stack import Options, Target, commands
from busbar.cli.stack.commands import broken_off, to_apply_again
from busbar.cli.stack.engine import Snapshot
from busbar.cli.stack.report import next_run
from busbar.config import stackfile
from busbar.exits import USAGE, Misuse
from busbar.names import removal_of
from busbar.outputs import CLUSTER_GATE
from busbar.preflight.facts import HostRecord, pack, read
from tests.support.clusters import site, stack_file

NODES = ("busbar-control-plane-rejoin", "busbar-control-plane-nodes", "busbar-control-plane-taints")
PREFLIGHT = "busbar-preflight-hosts"
INSTALLED = ("control-plane@s-1", "load-balancer@lb-1", "nfs-server@lb-1", "worker@w-1")
HOSTS = tuple(f"busbar-{each}" for each in INSTALLED)
STALE = "busbar-control-plane-stale-nodes"
NAMES = (PREFLIGHT, *NODES, *HOSTS, *map(removal_of, HOSTS), STALE)
WAITS = ("busbar-gpu-operator-gpus", "busbar-network-operator-hcas")


def state_of(*names: str) -> Snapshot:
    return Snapshot(tuple(f"urn:pulumi:dev::busbar::x::{name}" for name in names), ())


STATE = state_of(*NAMES)


def again(*hosts: str, more: tuple[str, ...] = (), state: Snapshot | None = None) -> list[str]:
    found = to_apply_again(state or state_of(*NAMES, *more), hosts)
    return [urn.rpartition("::")[2] for urn in found]


@pytest.mark.parametrize(
    ("host", "resource"), [("w-1", "busbar-worker@w-1"), ("s-1", "busbar-control-plane@s-1")]
)
def test_what_the_cluster_keeps_of_a_node_is_set_again_with_its_host(host: str, resource: str) -> None:
    """A worker may not set its own taints."""
    assert again(host) == [PREFLIGHT, *NODES, resource]


def test_the_hosts_of_slurm_are_found_too() -> None:
    hosts = ("slurm-controller@c-1", "slurm-login@l-1", "slurm-compute@g-1", "slurm-nfs@c-1")
    state = state_of("slurm-preflight", *hosts, *map(removal_of, hosts))
    assert again("c-1", state=state) == ["slurm-preflight", "slurm-controller@c-1", "slurm-nfs@c-1"]
    assert again("g-1", state=state) == ["slurm-preflight", "slurm-compute@g-1"]
    assert again("all", state=state) == ["slurm-preflight", *hosts]
    with pytest.raises(Misuse, match="name some of c-1, l-1, g-1; cluster"):
        again("1", state=state)


def test_of_the_cluster_charts_are_compared_and_nodes_that_are_not_configured_are_deleted() -> None:
    """They may come back with a snapshot of etcd."""
    assert again("cluster") == [STALE]
    assert [Options(converge=(name,)).refreshes for name in ("cluster", "all", "w-1")] == [True, True, False]


def test_the_kubeconfig_is_read_again_with_a_server_which_may_have_another_ca() -> None:
    kubeconfig = "busbar-control-plane-kubeconfig"
    assert again("s-1", more=(kubeconfig,))[-1] == kubeconfig
    assert kubeconfig not in again("w-1", more=(kubeconfig,))


def test_gpus_and_hcas_are_waited_for_again_with_the_charts_and_with_workers() -> None:
    assert again("cluster", more=WAITS) == [STALE, *WAITS]
    assert again("all", more=WAITS) == [PREFLIGHT, *NODES, *HOSTS, STALE, *WAITS]
    assert again("w-1", more=WAITS)[-2:] == [*WAITS], "a Node that is made anew has none at first"
    assert not {*again("s-1", more=WAITS)} & {*WAITS}


def test_the_waits_of_a_capability_run_again_with_its_charts() -> None:
    state = state_of("x-change", "x-ready")
    assert to_apply_again(state, ["cluster"], ["x-ready"]) == [state.resources[1]]
    assert to_apply_again(state, [], ["x-ready"]) == []


def test_an_unknown_host_is_bad_usage_and_the_known_ones_are_named() -> None:
    with pytest.raises(Misuse, match=r"no such host.*name some of s-1, lb-1, w-1; cluster") as error:
        again("w-7")
    assert error.value.exit_code == USAGE
    with pytest.raises(Misuse, match=r"no such host\. Fix: name cluster or all"):
        to_apply_again(Snapshot((), ()), ["w-1"])


def test_a_host_that_no_update_has_reached_yet_is_no_bad_usage(tmp_path: Path) -> None:
    """`busbar verify` names it beside others after a first update that failed; this one installs it."""
    kept: Any = SimpleNamespace(say=[].append, target=Target(tmp_path, "dev"))
    stack_file(tmp_path, site(servers=1, workers={"h100": 2}), "dev")
    (tmp_path / "Pulumi.yaml").write_text("name: busbar")
    again = commands._apply_again(kept, STATE, Options(converge=("w-1", "gpu-2")))
    assert [urn.rpartition("::")[2] for urn in again or ()] == [PREFLIGHT, *NODES, "busbar-worker@w-1"]
    with pytest.raises(Misuse, match="gpu-3: the stack has no such host"):
        commands._apply_again(kept, STATE, Options(converge=("w-1", "gpu-3")))


def test_what_is_known_of_the_other_hosts_stays_known(tmp_path: Path, monkeypatch: Any) -> None:
    """Preflight asks all hosts again, without its former result: a worker that is down would be an error."""
    monkeypatch.delenv(KNOWN_HOSTS, raising=False)
    kept: Any = SimpleNamespace(say=[].append, target=Target(tmp_path, "dev"))
    stack_file(tmp_path, site(servers=1, workers={"h100": 2}), "dev")
    (tmp_path / "Pulumi.yaml").write_text("name: busbar")
    before = {name: HostRecord("x", name, {"gpus": 8}) for name in ("w-1", "w-2")}
    outputs = {PREFLIGHT: {"stdout": pack(before)}, "busbar-preflight": {}}
    made = [{"urn": f"urn:pulumi:dev::busbar::x::{name}", "outputs": each} for name, each in outputs.items()]
    state = replace(state_of(*NAMES), text=json.dumps({"deployment": {"resources": made}}))
    commands._apply_again(kept, state, Options(converge=("w-1",)))
    assert read(os.environ[KNOWN_HOSTS]) == {"w-2": HostRecord("", "w-2", {"gpus": 8})}


def test_hosts_in_quarantine_are_known_in_the_file_of_any_project(tmp_path: Path) -> None:
    path = tmp_path / "Pulumi.dev.yaml"
    path.write_text(
        "config:\n  busbar-slurm:slurm:\n    hosts:\n      controller: {name: ctl}\n"
        "      compute: [{name: gpu-1, quarantine: no power}, {name: gpu-2}]\n  tiny:word: two\n"
    )
    assert stackfile.quarantined(path) == {"gpu-1"}
    path.write_text("config: {busbar:cluster: {hosts_from: {file: x, quarantine: {gpu-3: no power}}}}\n")
    assert stackfile.quarantined(path) == {"gpu-3"}
    path.write_text("encryptionsalt: v1:abc\n")  # the engine's, of a program without configuration
    assert stackfile.quarantined(path) == set()
    path.unlink()
    assert stackfile.quarantined(path) == set()


@pytest.mark.parametrize(
    ("config", "run"),
    [
        ("config:\n  busbar:cluster:\n    validation: {run: 7}\n", 8),
        ("config:\n  busbar:cluster:\n    name: dev\n", 2),
        ("encryptionsalt: v1:abc\n", 2),
    ],
)
def test_to_measure_again_the_number_of_the_file_is_raised(tmp_path: Path, config: str, run: int) -> None:
    (tmp_path / "Pulumi.dev.yaml").write_text(config)
    assert next_run(CLUSTER_GATE, Target(tmp_path, "dev")) == f"set validation.run: {run} in Pulumi.dev.yaml"


def test_only_steps_that_install_a_host_of_the_stack_are_applied_again_after_a_failure() -> None:
    names = ("worker@w-1", "worker-removal@w-1", "control-plane-nodes", "worker@gone")
    failed = state_of(*(f"busbar-{name}" for name in names)).resources
    assert [urn.rpartition("::")[2] for urn in broken_off(STATE, failed)] == ["busbar-worker@w-1"]

"""What `busbar nodes` finds: on workers over SSH (servers of this test) and in the cluster by its API."""

import asyncio
import os
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import asyncssh
import pytest

from busbar import config
from busbar.hosts.inventory import Inventory
from busbar.judge.archive import Archive
from busbar.kube.nodes import Node, NodeTaint
from busbar.operations.verify import (
    CLUSTER,
    ClusterState,
    UnknownState,
    Workers,
    few_open_files,
    inspect,
    states,
)
from busbar.preflight.spec import Spec, spec_of
from busbar.preflight.survey import Outcome
from tests.support.cli import busbar
from tests.support.clusters import refusing, site, stack_file
from tests.support.reports import HEALTHY, hca, report
from tests.support.ssh_hosts import HOST, login, machine, public

OFFERED = {"nvidia.com/gpu": "8", "nvidia.com/hostdev": "8"}
NODE = Node("gpu-1", "m", False, True, False, {}, (), allocatable=OFFERED)


def workers(state: ClusterState | None, **changes: Any) -> Workers:
    """A site of one worker whose script reports CHANGES; its other hosts refuse connections."""
    asked = 0

    def answer(process: asyncssh.SSHServerProcess[str]) -> None:
        nonlocal asked
        asked += 1
        process.stdout.write(report(epoch=time.time(), **changes).model_dump_json() + "\n")
        process.exit(0)

    def cluster() -> ClusterState:
        if state is None:
            raise UnknownState("no answer")
        return state

    async def scenario() -> Workers:
        content = refusing(site(servers=1, workers={"h100": 1}))
        async with machine(answer) as port:
            content["hosts"]["workers"][0].update(
                address="127.0.0.1", port=port, host_key=public(HOST), user="root"
            )
            made = config.load(content, root=Path())
            spec = spec_of(made, login=login())
            return await inspect(spec, Inventory.of(made), cluster)

    found = asyncio.run(scenario())
    assert asked == 1, "only workers are asked, each once"
    return found


def having(node: Node) -> ClusterState:
    server = replace(NODE, name="server-1", is_server=True)
    return ClusterState({each.name: each for each in (server, node)}, {})


def test_a_healthy_worker_whose_node_is_ready_is_well() -> None:
    found = workers(having(NODE))
    assert (found.are_well, found.nodes) == (True, {"gpu-1": "Ready"})
    printed = found.data()
    assert (printed["well"], printed["findings"]) == (True, [])
    [row] = printed["nodes"]
    assert (row["name"], row["pool"], row["node"], row["facts"]["gpus"]) == ("gpu-1", "h100", "Ready", 8)


def test_an_error_that_a_gpu_has_counted_since_the_bring_up_is_found() -> None:
    rows = HEALTHY["ecc"].replace("00000000:03:00.0, 0", "00000000:03:00.0, 5")
    found = workers(having(NODE), health=HEALTHY | {"ecc": rows})
    assert not found.are_well
    [error] = found.data()["findings"]
    assert (error["host"], error["kind"]) == ("gpu-1", "error")
    assert "GPU 00000000:03:00.0 has 5 uncorrected ECC errors" in error["what"]


def test_a_lost_device_that_is_still_allocatable_is_named_beside_the_error() -> None:
    found = workers(having(NODE), hcas=[hca(f"mlx5_{number}") for number in range(7)])
    assert [error.host for error in found.outcome.errors] == ["gpu-1"]
    assert found.nodes == {"gpu-1": "nvidia.com/hostdev: 8 allocatable, 7 rails on the host"}


def test_gpus_that_nvidia_smi_cannot_list_are_not_said_to_be_none() -> None:
    found = workers(having(NODE), gpus={"status": "failed", "error": "no driver", "list": [], "pci": 8})
    assert found.outcome.errors and found.nodes == {"gpu-1": "Ready"}


HCAS = "nvidia.com/hostdev"
TAINTED = (
    "taint repair=fan:NoSchedule is not in the configuration. Fix: if nobody needs it: "
    "kubectl taint node gpu-1 repair=fan:NoSchedule-"
)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"ready": False}, "its Node is not Ready"),
        ({"taints": (NodeTaint("repair", "fan", "NoSchedule"),)}, TAINTED),
        ({"reported": ("GpuXid (79)", "KernelDeadlock")}, "condition GpuXid (79); condition KernelDeadlock"),
        ({"name": "other"}, "no Node in the cluster"),
        ({"allocatable": OFFERED | {HCAS: "7"}}, f"{HCAS}: 7 allocatable, 8 rails on the host"),
        ({"allocatable": {HCAS: "8"}}, "nvidia.com/gpu: 0 allocatable, 8 on the host"),
    ],
)
def test_a_node_that_takes_no_jobs_is_named_with_the_reason(changes: dict[str, Any], says: str) -> None:
    found = workers(having(replace(NODE, **changes)))
    assert (found.are_well, found.nodes) == (False, {"gpu-1": says})


def test_what_a_capability_says_of_a_node_is_shown() -> None:
    found = workers(replace(having(NODE), of_capabilities={"gpu-1": "in Slurm: IDLE+DRAIN: fan"}))
    assert (found.are_well, found.nodes) == (False, {"gpu-1": "in Slurm: IDLE+DRAIN: fan"})


def test_a_worker_in_quarantine_is_shown_with_its_reason_and_the_others_decide() -> None:
    content = site(servers=1, workers={"h100": 2})
    content["hosts"]["workers"][0]["quarantine"] = "fan"
    inventory = Inventory.of(config.load(content, root=Path()))
    held = replace(NODE, ready=False, taints=(NodeTaint("busbar/quarantine", "true", "NoSchedule"),))
    state = ClusterState({each.name: each for each in (held, replace(NODE, name="gpu-2"))}, {})
    found = states(inventory, state, Outcome([], {}, 2))
    assert found == {"gpu-1": "in quarantine: fan; its Node is not Ready", "gpu-2": "Ready"}
    spec = spec_of(inventory.cluster)
    assert Workers(spec, Outcome([], {}, 2), found).are_well
    assert not Workers(spec, Outcome([], {}, 2), found | {"gpu-2": "DiskPressure"}).are_well


@pytest.mark.parametrize(("state", "code"), [("Ready", 0), ("its Node is not Ready", 1)])
def test_the_command_shows_the_nodes_and_fails_where_one_takes_no_jobs(
    state: str, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def found(spec: Spec, *_: object) -> Workers:
        return Workers(spec, Outcome([], {}, 1), {host.name: state for host in spec.hosts})

    monkeypatch.setattr("busbar.cli.k3s.inspect", found)
    for name, value in {"PATH": "/nowhere", "SSH_AUTH_SOCK": "/nowhere", "COLUMNS": "300"}.items():
        monkeypatch.setenv(name, value)
    done = busbar("nodes", str(stack_file(tmp_path)))
    assert (done.exit_code, state in done.stdout) == (code, True), done.output


def test_workers_whose_last_measurement_had_few_open_files_are_named(tmp_path: Path) -> None:
    pool = tmp_path / "h100"
    limits = {"soft 1024, hard 524288": ["gpu-2"], "soft 1048576, hard 1048576": ["gpu-1"]}
    for number, (folder, found) in enumerate(((pool, {}), (pool / "runs/20261129", limits))):
        Archive(folder).save_verdict({"open_files": found})
        os.utime(folder / "verdict.json", (number, number))
    [finding] = few_open_files(tmp_path, ["h100", "h100", "a100", None])
    assert (finding.kind, str(finding)) == (
        "warning",
        "gpu-2: a process of the last measurement could open few files: soft 1024, hard 524288. Fix: set "
        "LimitNOFILE=1048576 for k3s-agent or slurmd, restart it and measure again",
    )
    os.utime(pool / "verdict.json", (9, 9))
    assert [*few_open_files(tmp_path, ["h100"])] == []


def test_nodes_that_cannot_be_read_are_unknown_and_not_well() -> None:
    found = workers(None)
    assert (found.are_well, found.nodes) == (False, {"gpu-1": "unknown"})
    [error] = found.outcome.errors
    assert (error.host, error.what) == (CLUSTER, "Nodes cannot be read: no answer")

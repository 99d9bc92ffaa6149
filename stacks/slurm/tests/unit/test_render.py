"""Slurm's files. Slurm 24.11.5 has read those of the lab's stack (docs.md)."""

from collections.abc import Mapping
from typing import Any

import pytest

from stacks.slurm.package import config, preflight, render
from stacks.slurm.package.config import Slurm
from stacks.slurm.tests.support import compute, facts, slurm
from tests.support.clusters import H100_POOL


def text(name: str, made: Slurm | None = None, **of_host: Mapping[str, Any]) -> str:
    made = made or slurm()
    return render.files(made, facts(made, **of_host))[name]


def test_the_nodes_have_what_preflight_counted() -> None:
    lines = text("slurm.conf").splitlines()
    assert (
        "NodeName=gpu-1 NodeHostname=gpu-1 NodeAddr=10.0.0.11 Sockets=2 CoresPerSocket=56 ThreadsPerCore=2 "
        "RealMemory=1992192 Gres=gpu:h100:8"
    ) in lines
    assert (
        "PartitionName=h100 Nodes=gpu-1,gpu-2 Default=YES MaxTime=UNLIMITED State=UP DefMemPerGPU=249024"
        in lines
    )
    assert "SlurmctldHost=ctl(10.0.0.1)" in lines
    assert text("gres.conf").splitlines()[1] == "NodeName=gpu-1 Name=gpu Type=h100 File=/dev/nvidia[0-7]"


@pytest.mark.parametrize(
    ("given", "shown"),
    [("infinite", "UNLIMITED"), ("24:00:00", "1-00:00:00"), ("7-04:00:01", "7-04:01:00"), ("00:30:00",) * 2],
)
def test_a_time_limit_is_written_as_slurm_shows_it(given: str, shown: str) -> None:
    made = slurm(partitions={"gpu": {"pools": ["h100"], "max_time": given, "default": True}})
    assert f"MaxTime={shown} State=UP" in text("slurm.conf", made)


def test_a_host_is_known_by_what_it_calls_itself_and_numbers_that_do_not_fit_are_left_out() -> None:
    lines = text("slurm.conf", ctl={"hostname": "head"}, gpu_1={"hostname": "node001", "cpus": 2})
    assert "SlurmctldHost=head(10.0.0.1)\n" in lines
    assert "NodeName=gpu-1 NodeHostname=node001 NodeAddr=10.0.0.11 CPUs=2 RealMemory" in lines


def test_a_gpu_without_a_model_has_no_type_and_device_files_are_spans() -> None:
    made = slurm(pools={"a": {"gpus": 2, "rails": 8, "rate_gbps": 400}})
    assert "Gres=gpu:2\n" in text("slurm.conf", made)
    assert "NodeName=gpu-1 Name=gpu File=/dev/nvidia[0-1]\n" in text("gres.conf", made)
    mixed = text("gres.conf", gpu_1={"gpu_minors": [3, 0, 1, 6, 7]})
    assert "NodeName=gpu-1 Name=gpu Type=h100 File=/dev/nvidia[0-1,3,6-7]\n" in mixed


def test_memory_is_below_the_kernels_and_the_same_for_hosts_that_differ_a_little() -> None:
    assert render.real_memory(2 << 40) == render.real_memory((2 << 40) - 100_000_000) == 1992192
    assert render.real_memory(1 << 20) == 256


def test_jobs_are_constrained_where_all_compute_hosts_have_cgroup_v2() -> None:
    assert "ConstrainDevices=yes" in text("cgroup.conf")
    assert {"ProctrackType=proctrack/cgroup", "PrologFlags=Contain"} <= {*text("slurm.conf").splitlines()}
    v1 = {"cgroup": "v1"}
    assert "CgroupPlugin=disabled" in text("cgroup.conf", gpu_2=v1)
    assert "ProctrackType=proctrack/linuxproc" in text("slurm.conf", gpu_2=v1)


def test_a_cluster_is_configured_as_daemons_clients_and_jobs_with_rdma_need_it() -> None:
    head, _, cluster = text("slurm.conf").partition("NodeName=")[0].partition("ClusterName=")
    lines = f"ClusterName={cluster}".splitlines()
    # A login host's memlock does not reach jobs; a node that comes back is usable; clients are configless.
    assert head == render.HEAD and {
        *("SlurmctldParameters=enable_configless", "ReturnToService=2", "HealthCheckNodeState=IDLE"),
        "PropagateResourceLimitsExcept=MEMLOCK,NOFILE",
    } <= {*lines}
    names = {line.partition("=")[0].lower() for line in lines if line}
    # Preflight and the messages of a compute host count on the port of slurmd.
    relied_on = {"nodename", "partitionname", "topologyplugin", "include", "slurmdport"}
    sites = {"accountingstoragetres", "mpidefault"}
    assert names - sites | relied_on == config.WRITTEN


def test_accounting_and_health_checks_are_left_out_where_they_are_off() -> None:
    both = ("AccountingStorageTRES=gres/gpu", "AccountingStorageHost=10.0.0.1", "HealthCheckInterval=300")
    assert all(each in text("slurm.conf") for each in both)
    off = slurm(accounting={}, health_check={"enabled": False})
    assert not any(each.partition("=")[0] in text("slurm.conf", off) for each in both)


def test_jobs_get_the_memory_of_their_gpus_and_the_smallest_share_of_their_partition() -> None:
    half = {"memory_bytes": 1 << 40}
    assert " State=UP DefMemPerGPU=124512\n" in text("slurm.conf", gpu_2=half)
    pools = {"a": dict(H100_POOL), "b": {**H100_POOL, "gpus": 4}}
    hosts = compute({"pool": "a"}, {"pool": "b"})
    partitions = {"all": {"pools": ["a", "b"], "default": True}, "b": {"pools": ["b"]}}
    made = text("slurm.conf", slurm(pools=pools, hosts=hosts, partitions=partitions)).splitlines()
    assert [line.rpartition("=")[2] for line in made[-2:]] == ["249024", "498048"]


@pytest.mark.parametrize(
    "parameter",
    ["DefMemPerCPU", "DefMemPerGPU", "defmempernode", "MpiDefault", "AccountingStorageTRES", "MaxJobCount"],
)
def test_what_a_site_sets_stands_in_slurm_conf_and_is_not_set_again(parameter: str) -> None:
    lines = text("slurm.conf", slurm(parameters={parameter: "4096"})).splitlines()
    assert f"{parameter}=4096" in lines
    assert [line for line in lines if parameter.lower() in line.lower()] == [f"{parameter}=4096"]
    assert parameter[:6].lower() != "defmem" or not any("DefMemPerGPU=249024" in line for line in lines)


def test_pmix_is_the_default_of_schedmd_s_packages_where_every_host_has_its_library() -> None:
    debs = slurm(packages="/srv/debs")
    with_pmix = {each.name: {"pmix": True} for each in preflight.hosts_of(debs)}
    of_host = {name.replace("-", "_"): found for name, found in with_pmix.items()}
    assert "\nMpiDefault=pmix #" in text("slurm.conf", debs, **of_host)
    assert "\nMpiDefault=pmi2\n" in text("slurm.conf", debs, **{**of_host, "login": {"pmix": False}})


def test_what_is_not_configured_has_no_file() -> None:
    assert text("topology.conf") == "" and "TopologyPlugin" not in text("slurm.conf")
    assert text("plugstack.conf") == ""
    made = text("plugstack.conf", slurm(container_packages="/srv/debs"))
    assert made.splitlines()[1:] == ["include /usr/share/pyxis/*"]


def lines_of_topology(plugin: str, *places: dict[str, str]) -> list[str]:
    made = slurm(hosts=compute(*({"topology": place} for place in places)))
    assert f"TopologyPlugin=topology/{plugin}" in text("slurm.conf", made)
    return text("topology.conf", made).splitlines()[1:]


def test_rail_groups_are_leaves_below_their_blocks_and_one_switch_is_above_all() -> None:
    places = [
        {"rail_group": leaf, "block": block} for leaf, block in (("l1", "b1"), ("l2", "b1"), ("l3", "b2"))
    ]
    assert lines_of_topology("tree", *places) == [
        "SwitchName=l1 Nodes=gpu-1",
        "SwitchName=l2 Nodes=gpu-2",
        "SwitchName=l3 Nodes=gpu-3",
        "SwitchName=b1 Switches=l1,l2",
        "SwitchName=b2 Switches=l3",
        "SwitchName=fabric Switches=b1,b2",
    ]
    # Blocks alone are leaves, and a single leaf needs no switch above it.
    b1, b2 = {"block": "b1"}, {"block": "b2"}
    assert lines_of_topology("tree", b1, b1) == ["SwitchName=b1 Nodes=gpu-1,gpu-2"]
    assert lines_of_topology("tree", b1, b2)[-1] == "SwitchName=fabric Switches=b1,b2"


def test_nvlink_domains_are_blocks_of_the_smallest_one_s_size() -> None:
    d1, d2 = {"nvlink_domain": "d1"}, {"nvlink_domain": "d2"}
    assert lines_of_topology("block", d1, d1, d2) == [
        "BlockName=d1 Nodes=gpu-1,gpu-2", "BlockName=d2 Nodes=gpu-3", "BlockSizes=1",
    ]  # fmt: skip


def test_the_accounting_daemon_gets_the_password_and_a_node_in_quarantine_a_line() -> None:
    made = slurm()
    lines = render.slurmdbd_conf(made, facts(made, ctl={"hostname": "head"}), "secret").splitlines()
    assert {"DbdHost=head", "DbdAddr=10.0.0.1", "StoragePass=secret", "AuthType=auth/slurm"} <= {*lines}
    assert render.quarantine(slurm(hosts=compute({"quarantine": "ECC errors"}, {}))) == "gpu-1 ECC errors\n"

"""The configurations of the states: together they use every option of revision 84223d6.

`@FOLDER@` stands for the folder of stack.Checkout; below `site` are files that a site has beside its stack.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.support.clusters import H100_POOL, host, host_key, site

STACK = "site"
FILES = "@FOLDER@/site"
_WHEREABOUTS = {"type": "whereabouts"}
_NV_IPAM = {"type": "nv-ipam", "addresses_per_node": 8}
_STORAGE_IPAM = {**_NV_IPAM, "subnet": "10.9.0.0/16"}
SHA256 = "ab" * 32
POOLS: Mapping[str, Mapping[str, Any]] = {
    "h100": {
        **H100_POOL,
        "labels": {"example.com/rack": "r1", "example.com/generation": 5, "example.com/reserved": True},
        "taints": [
            {"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"},
            {"key": "example.com/team", "effect": "PreferNoSchedule"},
        ],
        "min_disk_gb": 80,
        "ignore_hcas": ["mlx5_4", "mlx5_bond_*"],
        "max_unavailable": "50%",
        "pause_seconds": 60,
        "drain": "always",
        "drain_timeout_seconds": 900,
        "running_jobs": "wait",
    },
    "l40s": {
        "gpus": 4,
        "rails": 2,
        "rate_gbps": 200,
        "max_unavailable": 1,
        "drain": "never",
        "running_jobs": "refuse",
    },
    "roce": {
        "gpus": 8,
        "rails": 4,
        "rate_gbps": 200,
        "link_layer": "ethernet",
        "flow_control": "require",
        "taints": [{"key": "example.com/roce", "value": True, "effect": "NoExecute"}],
    },
}
K3S: Mapping[str, Any] = {
    "version": "v1.35.6+k3s1",
    "base_url": "https://mirror.example.com/k3s",
    "sha256": {"amd64": SHA256, "arm64": "cd" * 32},
    "cluster_cidr": "10.60.0.0/16",
    "service_cidr": "10.61.0.0/16",
    "flannel_backend": "host-gw",
    "tls_san": ["api.example.com", "203.0.113.9"],
    "disable": ["traefik", "servicelb", "local-storage"],
    "images": [
        {"url": "https://mirror.example.com/images/system.tar.zst", "sha256": "01" * 32},
        {"url": "https://mirror.example.com/images/nccl.tar.gz", "roles": ["worker"], "sha256": "02" * 32},
    ],
    "server_args": {
        "kube-apiserver-arg": ["audit-log-maxage=30"],
        "etcd-arg": ["quota-backend-bytes=8589934592"],
        "protect-kernel-defaults": True,
    },
    "agent_args": {"kubelet-arg": ["max-pods=200"], "resolv-conf": "/etc/resolv.k3s.conf"},
    "registries": {
        "mirrors": {"docker.io": {"endpoint": ["https://registry.example.com"]}},
        "configs": {"registry.example.com": {"tls": {"insecure_skip_verify": True}}},
    },
    "snapshots": {
        "schedule": "0 */6 * * *",
        "retention": 9,
        "s3": {
            "endpoint": "s3.example.com:9000",
            "bucket": "snapshots",
            "region": "eu-west-1",
            "folder": "site/etcd",
        },
    },
    "rotate": {"certificates": 2, "encryption_key": 1, "server_token": 1, "agent_token": 2},
    "roll_pools": "in_order",
}
VALIDATION: Mapping[str, Any] = {
    "run": 3,
    "measure_pools": "in_order",
    "profile": "h100-ib-8x400",
    "collectives": ["all_reduce", "all_gather", "alltoall"],
    "min_bytes": "1M",
    "max_bytes": "8G",
    "step_factor": 4,
    "iterations": 30,
    "warmup": 7,
    "algorithm": "ring",
    "expected_busbw_gbps": 400.5,
    "expected_by_collective": {"all_gather": 380, "alltoall": 60.25},
    "tolerance": 0.08,
    "image": "registry.example.com/nccl-tests:1",
    "env": {"NCCL_IB_TC": 106, "NCCL_IB_QPS_PER_CONNECTION": "4", "NCCL_CROSS_NIC": "0"},
    "topology_file": f"{FILES}/topology.xml",
    "hcas": ["mlx5_0", "mlx5_1:1"],
    "slots_per_worker": 4,
    "deadline_seconds": 2400,
    "namespace": "fabric",
    "shm_size": "32Gi",
    "memory": "256Gi",
    "runtime_class": "nvidia-cdi",
}


@dataclass(frozen=True)
class Configuration:
    """The object of a stack's file, and its secrets. `running`: whether preflight has found K3s."""

    content: Mapping[str, Any]
    secrets: Mapping[str, str] = field(default_factory=dict)
    running: bool = True


def _large() -> Configuration:
    content = site(
        load_balancers=2,
        servers=5,
        workers={"h100": 4, "l40s": 2, "roce": 3},
        name="large",
        ssh={
            "user": "ubuntu",
            "port": 2222,
            "bastion": {
                "address": "198.51.100.7",
                "user": "jump",
                "port": 2200,
                "api_proxy_url": "http://127.0.0.1:3128",
                "host_key": host_key("bastion"),
            },
        },
        pools=POOLS,
        k3s=K3S,
        gpu_operator={
            "version": "v26.7.0",
            "repository": "https://charts.example.com/nvidia",
            "values": {"driver": {"enabled": False}, "toolkit": {"env": [{"name": "A", "value": "b"}]}},
            "timeout_seconds": 1500,
        },
        network_operator={
            "version": "26.7.0",
            "repository": "https://charts.example.com/nvidia",
            "values": {"operator": {"tolerations": []}},
            "timeout_seconds": 800,
            "resource": "nvidia.com/rail",
            "selectors": {"drivers": ["mlx5_core"]},
            "image_repository": "registry.example.com/mellanox",
            "image_tag": "network-operator-v26.7.1",
            "secondary_networks": True,
        },
        mpi_operator={
            "image": "registry.example.com/mpi-operator:0.8.0",
            "values": {"resources": {"limits": {"memory": "512Mi"}}},
            "timeout_seconds": 240,
        },
        nfs_server={
            "folder": "/srv/shared",
            "min_free_gb": 500,
            "squash": "root",
            "allow_system_disk": True,
        },
        validation=VALIDATION,
    )
    hosts = content["hosts"]
    hosts["virtual_ip"]["router_id"] = 77
    hosts["nfs_server"] = host("nfs-1", "192.0.2.200")
    hosts["servers"][4] |= {"user": "admin", "port": 2022}
    for number, worker in enumerate(hosts["workers"]):
        worker["topology"] = {"rail_group": f"leaf-{number // 2}", "block": worker["pool"]}
        if worker["pool"] == "h100":
            worker["topology"]["nvlink_domain"] = number
    secrets = {
        "sshPrivateKey": "the text of a key",
        "sshPrivateKeyPassword": "its passphrase",
        "registryCredentials": '{"registry.example.com": {"username": "site", "password": "its"}}',
        "s3AccessKey": "access",
        "s3SecretKey": "of the bucket",
    }
    return Configuration(content, secrets)


def _partial() -> Configuration:
    """Other tools have installed some operators; the measurement does not stop an update."""
    content = site(
        workers={"a": 2, "b": 2},
        name="partial",
        ssh={"key_file": f"{FILES}/key"},
        k3s={"checksums_file": f"{FILES}/sha256sum.txt", "rotate": {"certificates": 1}},
        gpu_operator={"chart": f"{FILES}/chart"},
        network_operator={"enabled": False},
        mpi_operator={"enabled": False},
        nfs_server={"host": "lb-1", "folder": "/srv/nfs", "squash": "none"},
        validation={"enforce": False, "measure_pools": "together", "transport": "rdma", "runtime_class": ""},
    )
    return Configuration(content)


def _single() -> Configuration:
    """One server, whose key of Secrets was rotated twice; nothing is measured."""
    content = site(
        servers=1,
        name="single",
        k3s={"sha256": {"amd64": SHA256}, "rotate": {"encryption_key": 2}},
        gpu_operator={"enabled": False},
        nfs_server={"host": "server-1", "folder": "/srv/nfs"},
        validation={"enabled": False},
    )
    return Configuration(content)


CORE: Mapping[str, Configuration] = {
    "large": _large(),
    "new": Configuration(site(), running=False),
    "partial": _partial(),
    "single": _single(),
}


@dataclass(frozen=True)
class OnCluster:
    """The object of a stack of stacks/training, on one of CORE."""

    core: str
    content: Mapping[str, Any]


def _rails(number: int, first: int, **network: Any) -> list[dict[str, Any]]:
    ipam = network.pop("ipam")
    return [
        {"name": f"rail{i}", **network, "ipam": {**ipam, "subnet": f"192.168.{first + i}.0/24"}}
        for i in range(number)
    ]


def _training(**sections: Any) -> dict[str, Any]:
    return {"cluster": f"organization/busbar/{STACK}", **sections}


_JOBS = _training(
    namespace="jobs",
    pools=["h100", "l40s"],
    storage={"mode": "path", "path": "/mnt/lustre", "probe_bytes": "64M"},
    trainer={
        "enabled": True,
        "version": "2.3.0",
        "image": "registry.example.com/torch:1",
        "values": {"manager": {"replicas": 2}},
        "timeout_seconds": 500,
        "deepspeed": {"enabled": True, "image": "registry.example.com/deepspeed:1"},
    },
    training_operator={
        "enabled": True,
        "kinds": ["PyTorchJob", "TFJob", "XGBoostJob", "PaddleJob", "JAXJob"],
        "image": "registry.example.com/training-operator:1",
        "init_image": "registry.example.com/alpine:3",
        "values": {"replicas": 2},
        "timeout_seconds": 200,
    },
    kueue={
        "enabled": True,
        "chart": "kueue",
        "repository": "https://charts.example.com",
        "values": {"enablePrometheus": True},
        "strategy": "StrictFIFO",
        "pods_ready_seconds": 900,
        "timeout_seconds": 400,
    },
    proof={"enabled": False},
)
_NETWORKS = _training(
    pools=["h100", "roce"],
    networks={
        "h100": _rails(2, 100, type="host-device", resource="example.com/rail", count=1, ipam=_WHEREABOUTS),
        "roce": _rails(4, 110, type="macvlan", master="rail0", mode="private", mtu=4200, ipam=_WHEREABOUTS),
    },
    multus={
        "version": "v4.2.401",
        "repository": "https://charts.example.com/rke2",
        "values": {"rke2-whereabouts": {"enabled": True}},
        "timeout_seconds": 250,
    },
    storage={
        "mode": "class",
        "class_name": "shared-files",
        "size": "10Ti",
        "claim": "data",
        "bind_timeout_seconds": 200,
        "min_write_mib_s": 100,
        "min_read_mib_s": 200.5,
    },
    proof={
        "run": 2,
        "image": "registry.example.com/torch:2",
        "backend": "nccl",
        "ranks_per_node": 4,
        "gradient_bytes": "512M",
        "steps": 40,
        "iterations": 12,
        "min_loss_drop": 0.4,
        "min_busbw_fraction": 0.6,
        "interfaces": ["net1"],
        "env": {"NCCL_BUFFSIZE": 8388608},
        "cpu": "16",
        "memory": "128Gi",
        "deadline_seconds": 1500,
        "collective_timeout_seconds": 90,
    },
)
_OPERATOR_NETWORKS = _training(
    pools=["h100", "roce"],
    networks={
        "h100": [
            *_rails(1, 120, type="host-device", resource="nvidia.com/rail", ipam=_NV_IPAM),
            {
                "name": "storage",
                "type": "ipoib",
                "master": "ibs0",
                "ipam": {**_NV_IPAM, "subnet": "10.9.0.0/16"},
            },
            {
                "name": "vf",
                "type": "ib-sriov",
                "resource": "nvidia.com/vf",
                "ipam": {**_NV_IPAM, "subnet": "10.10.0.0/16"},
            },
        ],
        "roce": _rails(2, 130, type="macvlan", master="rail0", ipam=_NV_IPAM),
    },
    storage={"mode": "nfs", "nfs": {"from_cluster": True}, "claim": "export"},
)
_PLAIN = _training(
    multus={"enabled": False},
    proof={"backend": "gloo", "enforce": False},
)
_NFS = _training(
    storage={
        "mode": "nfs",
        "nfs": {"server": "nfs.example.com", "export": "/export/a", "options": ["nfsvers=4.1", "hard"]},
    },
)

TRAINING: Mapping[str, OnCluster] = {
    "training-jobs": OnCluster("large", _JOBS),
    "training-networks": OnCluster("large", _NETWORKS),
    "training-operator-networks": OnCluster("large", _OPERATOR_NETWORKS),
    "training-plain": OnCluster("partial", _PLAIN),
    "training-nfs": OnCluster("partial", _NFS),
}

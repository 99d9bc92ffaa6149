"""Configurations of whole sites, as the object `busbar:cluster` holds them."""

import base64
import hashlib
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from busbar.manifests import operators

OPERATORS = tuple(value for value in vars(operators).values() if isinstance(value, operators.Operator))
"""Every operator that the program can install."""
H100_POOL = {"gpus": 8, "rails": 8, "rate_gbps": 400, "gpu_model": "H100"}


def host_key(name: str) -> str:
    """A well-formed ed25519 host key, the same for the same name (its private half is known to nobody)."""
    blob = b"\0\0\0\x0bssh-ed25519\0\0\0\x20" + hashlib.sha256(name.encode()).digest()
    return f"ssh-ed25519 {base64.b64encode(blob).decode()}"


def host(name: str, address: str, **more: Any) -> dict[str, Any]:
    """One host with its key."""
    return {"name": name, "address": address, "host_key": host_key(name), **more}


def site(
    *, load_balancers: int = 1, servers: int = 3, workers: Mapping[str, int] | None = None, **sections: Any
) -> dict[str, Any]:
    """A valid site; `workers` is {pool: how many}, `sections` replaces or adds top-level keys."""
    counts = workers if workers is not None else {"h100": 2}
    numbered = [pool for pool, count in counts.items() for _ in range(count)]
    hosts: dict[str, Any] = {
        "load_balancers": [host(f"lb-{i}", f"192.0.2.{i}") for i in range(1, load_balancers + 1)],
        "servers": [host(f"server-{i}", f"192.0.2.{10 + i}") for i in range(1, servers + 1)],
        "workers": [
            host(f"gpu-{i}", f"198.18.{i // 250}.{i % 250 + 1}", pool=pool)
            for i, pool in enumerate(numbered, 1)
        ],
    }
    if load_balancers == 2:
        hosts["virtual_ip"] = {"address": "192.0.2.100", "interface": "eth0"}
    return {
        "name": "site",
        "ssh": {"agent": True},
        "hosts": hosts,
        "pools": {pool: dict(H100_POOL) for pool in counts},
        "k3s": {"sha256": {"amd64": "ab" * 32}},
        **sections,
    }


def varied_site() -> dict[str, Any]:
    """A site of two workers that uses most keys by which files on hosts and objects in the cluster differ.

    Its secrets are VARIED_SECRETS.
    """
    key, digest = "example.com/rack", "01" * 32
    made = site(
        load_balancers=2,
        name="varied",
        http_proxy={"url": "http://proxy.example.com:3128", "no_proxy": [".example.com", "192.0.2.0/24"]},
        ssh={
            "user": "ubuntu",
            "port": 2222,
            "bastion": {
                "address": "198.51.100.7",
                "user": "jump",
                "api_proxy_url": "http://127.0.0.1:3128",
                "host_key": host_key("bastion"),
            },
        },
        pools={
            "h100": {
                **H100_POOL,
                "labels": {key: "r1", "example.com/reserved": True},
                "taints": [{"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"}],
                "max_unavailable": "50%",
                "pause_seconds": 60,
                "drain": "always",
                "running_jobs": "wait",
            }
        },
        k3s={
            "base_url": "https://mirror.example.com/k3s",
            "sha256": {"amd64": "ab" * 32, "arm64": "cd" * 32},
            "cluster_cidr": "10.60.0.0/16",
            "service_cidr": "10.61.0.0/16",
            "tls_san": ["api.example.com"],
            "images": [{"url": "https://mirror.example.com/images/system.tar.zst", "sha256": digest}],
            "server_args": {"kube-apiserver-arg": ["audit-log-maxage=30"], "protect-kernel-defaults": True},
            "agent_args": {"kubelet-arg": ["max-pods=200"]},
            "registries": {"mirrors": {"docker.io": {"endpoint": ["https://registry.example.com"]}}},
            "snapshots": {"retention": 9, "s3": {"endpoint": "s3.example.com:9000", "bucket": "snapshots"}},
            "rotate": {"certificates": 2, "server_token": 1, "agent_token": 2},
        },
        gpu_operator={"values": {"driver": {"enabled": False}}, "timeout_seconds": 1500},
        network_operator={"resource": "nvidia.com/rail"},
        nfs_server={"folder": "/srv/shared", "allow_system_disk": True},
        validation={
            "run": 3,
            "collectives": ["all_reduce", "alltoall"],
            "max_bytes": "8G",
            "expected_busbw_gbps": 400.5,
            "image": "registry.example.com/nccl-tests:1",
            "env": {"NCCL_IB_TC": 106},
        },
    )
    hosts = made["hosts"]
    hosts["virtual_ip"]["router_id"] = 77
    hosts["nfs_server"] = host("nfs-1", "192.0.2.200")
    hosts["servers"][2] |= {"user": "admin", "port": 2022}
    for worker in hosts["workers"]:
        worker["topology"] = {"rail_group": "leaf-1"}
    return made


def stack_file(
    folder: Path, cluster: Mapping[str, Any] | None = None, name: str = "prod", **keys: Any
) -> Path:
    """The file of a stack in the folder, with a configuration and more keys of busbar."""
    path = folder / f"Pulumi.{name}.yaml"
    config = {"busbar:cluster": site() if cluster is None else cluster}
    config |= {f"busbar:{key}": value for key, value in keys.items()}
    path.write_text(yaml.safe_dump({"config": config}, sort_keys=False))
    return path


VARIED_SECRETS = {
    "sshPrivateKey": "the text of a key",
    "registryCredentials": '{"registry.example.com": {"username": "site", "password": "its"}}',
    "s3AccessKey": "access",
    "s3SecretKey": "of the bucket",
}
OWN_NFD = {"values": {"nfd": {"enabled": False}}}
"""The section network_operator of a site that has its own Node Feature Discovery."""


def all_operators(*, enabled: bool) -> dict[str, Any]:
    """The sections of `site` that install every operator, or none."""
    return {operator.config_key: {"enabled": enabled} for operator in OPERATORS}


def refusing(cluster: dict[str, Any]) -> dict[str, Any]:
    """The same with all hosts on this machine, at a port where nothing listens."""
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    hosts = [host for role in ("load_balancers", "servers", "workers") for host in cluster["hosts"][role]]
    for number, host in enumerate(hosts, start=1):
        host.update(address=f"127.0.1.{number}", port=port)
    return cluster

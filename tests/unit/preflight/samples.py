"""Hosts of a site as preflight is given them, and what is required of them."""

from typing import Any

from busbar.hosts.inventory import Host
from busbar.preflight.spec import HostRequirements, NfsRequirements, Spec

HOST_KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIHCZiZsoI4rLdzIgOAyl4xhV9+49bbTnNxAQJ+2pSurZ"

REQUIRED = HostRequirements(
    min_disk_gb=50,
    k3s_version="v1.35.6+k3s1",
    networks={"k3s.cluster_cidr": "10.44.0.0/14", "k3s.service_cidr": "10.43.0.0/16"},
    flannel=True,
    cgroup_v2=True,
    gpus=8,
    gpu_model="H100",
    rails=8,
    rate_gbps=400,
)


def a_host(name: str = "worker-1", role: str = "worker", **changes: Any) -> Host:
    """A host of the site; workers belong to the pool h100."""
    content: dict[str, Any] = {
        "name": name,
        "address": "10.0.0.21",
        "port": 22,
        "user": "root",
        "host_key": HOST_KEY,
        "role": role,
        "pool": "h100" if role == "worker" else None,
    }
    return Host(**(content | changes))


NFS = NfsRequirements(
    host="nfs-1",
    address="10.0.0.9",
    folder="/srv/busbar",
    min_free_gb=100,
    squash="all",
    allow_system_disk=False,
)


def spec(*hosts: Host, required: HostRequirements = REQUIRED, **login: Any) -> Spec:
    """A spec over hosts with equal requirements."""
    requirements = {"lb": required, "server": required, "worker/h100": required}
    return Spec.model_validate({"login": login, "hosts": hosts, "requirements": requirements})

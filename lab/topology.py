"""What the lab looks like: addresses, names and roles, as constants that `Pulumi.dev.yaml` may rely on."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from ipaddress import ip_network
from pathlib import Path
from typing import Literal

PROJECT = Path(__file__).resolve().parent.parent
STACK = "dev"

BRIDGE = "busbar0"
INTERFACE = "host0"  # what systemd-nspawn calls the host's side of the veth pair
SUBNET = "10.77.0.0/24"
PREFIX = 24
GATEWAY = "10.77.0.1"
VIRTUAL_IP = "10.77.0.8"
# A second network with the hosts' default route. It leads to the internet, but not from host to host: pod
# traffic over the interface of the default route does not work, as on a site with a management network.
MANAGEMENT_LINK = "busbar1"
MANAGEMENT_PARENT = "busbar1p"
MANAGEMENT_INTERFACE = f"mv-{MANAGEMENT_PARENT}"  # what systemd-nspawn calls the host's macvlan
MANAGEMENT_SUBNET = "10.78.0.0/24"
MANAGEMENT_GATEWAY = "10.78.1.1"
MIRROR_PORT = 8077
MIRROR_URL = f"http://{GATEWAY}:{MIRROR_PORT}"

LOAD_BALANCER_ADDRESSES = ("10.77.0.10", "10.77.0.9")
MAX_SERVERS = 5
FIRST_SERVER = 11
FIRST_WORKER = 21
MAX_WORKERS = 100

WORKER_GPUS = 2
# Name, rate in Gb/s, state. Two are rails. As on a DGX there are more, one for storage and one without a
# cable, so that neither name nor order tells which are rails.
WORKER_HCAS = (
    ("mlx5_0", 200, "ACTIVE"),
    ("mlx5_1", 400, "ACTIVE"),
    ("mlx5_2", 400, "DOWN"),
    ("mlx5_3", 400, "ACTIVE"),
)

# Capabilities add hosts of the last two: "gpu" has simulated GPUs and HCAs, and neither is for K3s.
Role = Literal["lb", "server", "worker", "plain", "gpu"]


@dataclass(frozen=True)
class Host:
    """One simulated machine."""

    name: str
    role: Role
    address: str

    @property
    def for_k3s(self) -> bool:
        """Whether `make up` makes it part of its cluster."""
        return self.role in ("lb", "server", "worker")

    @property
    def management_address(self) -> str:
        """Its address on the management network: the same last number."""
        return str(ip_network(MANAGEMENT_SUBNET)[int(self.address.rpartition(".")[2])])


def hosts(workers: int = 2, load_balancers: int = 1, servers: int = 3) -> tuple[Host, ...]:
    """The lab's hosts in the order in which they boot."""
    return (
        *(
            Host(f"lb-{number}", "lb", address)
            for number, address in enumerate(LOAD_BALANCER_ADDRESSES[:load_balancers], 1)
        ),
        *(Host(f"server-{n + 1}", "server", f"10.77.0.{FIRST_SERVER + n}") for n in range(servers)),
        *(Host(f"worker-{n + 1}", "worker", f"10.77.0.{FIRST_WORKER + n}") for n in range(workers)),
    )


def every_host() -> tuple[Host, ...]:
    """All hosts that the address plan has room for."""
    return hosts(MAX_WORKERS, len(LOAD_BALANCER_ADDRESSES), MAX_SERVERS)


def find(name: str, more: Iterable[Host] = ()) -> Host:
    """The host of that name, here or among `more`; raises ValueError with the valid names."""
    for host in every_host():
        if host.name == name:
            return host
    others = {host.name: host for host in more}
    if name in others:
        return others[name]
    names = ", ".join(["lb-1", f"server-1 … server-{MAX_SERVERS}", "worker-1 …", *others])
    raise ValueError(f"the lab has no host {name!r}: names are {names}")

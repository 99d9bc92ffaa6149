"""Which parts of the lab are stand-ins now, for the final table, the report and the README."""

from __future__ import annotations

from lab import engine
from lab.artifacts import STAND_IN, k3s_binary
from lab.paths import tools


def in_force() -> dict[str, str]:
    """Name of each stand-in in force → what stands there instead of the official part."""
    found = {
        "hosts": "systemd-nspawn containers on a bridge of this machine",
        "GPUs and HCAs": "nvidia-smi and /sys/class/infiniband answer for hardware that is not there",
        "GPU Operator, Network Operator": "charts of the lab that advertise devices to the kubelet",
        "nccl-tests": "CPU programs over Open MPI and TCP, which measure this machine's loopback",
        "container images": "archives built here from Debian packages and Go modules, loaded from the mirror",
    }
    if k3s_binary() == tools() / STAND_IN:
        found["K3s"] = "lab/k3s: K3s' files and commands around Kubernetes built from its Go modules"
    cli = engine.pulumi()
    if cli is not None and cli.parent == tools():
        found["Pulumi CLI"] = "the official source, built here from its Go modules"
    if plugins := engine.stand_in_plugins():
        found["Pulumi plugins " + ", ".join(plugins)] = "lab/plugins: small providers on the SDK's own server"
    return found

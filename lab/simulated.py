"""Which parts of the lab are simulators or replacements now."""

from __future__ import annotations

from lab.engine import environment
from lab.mirror.artifacts import k3s_is_replaced
from lab.paths import tools


def parts() -> dict[str, str]:
    """What each simulated or replaced part is: name of the part → what the lab runs for it."""
    found = {
        "hosts": "systemd-nspawn containers on a bridge of this machine",
        "GPUs and HCAs": "nvidia-smi and /sys/class/infiniband answer for hardware that does not exist",
        "GPU Operator, Network Operator": "charts of the lab that advertise devices to the kubelet",
        "nccl-tests": "CPU programs over Open MPI and TCP, which measure this machine's loopback",
        "container images": "archives built here from Debian packages and Go modules, loaded from the mirror",
    }
    if k3s_is_replaced():
        found["K3s"] = "lab/offline/k3s: K3s' files and commands around Kubernetes built from its Go modules"
    cli = environment.pulumi()
    if cli is not None and cli.parent == tools():
        found["Pulumi CLI"] = "the official source, built here from its Go modules"
    plugins = environment.replaced_plugins()
    if "kubernetes" in plugins:
        plugins.remove("kubernetes")
        found["Pulumi plugin kubernetes"] = "the official source, built here from its Go module"
    if plugins:
        found["Pulumi plugins " + ", ".join(plugins)] = (
            "lab/offline/plugins: small providers written with the Pulumi SDK"
        )
    return found

"""Files of a host before its first boot: identity, network, logins, simulated hardware, kubelet settings."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from pathlib import Path

import yaml

from lab.hosts import cgroups
from lab.hosts.keys import host_key, write_private
from lab.mirror.artifacts import imports_drop_ins, k3s_version
from lab.paths import LAB
from lab.topology import (
    INTERFACE,
    MANAGEMENT_GATEWAY,
    MANAGEMENT_INTERFACE,
    PREFIX,
    WORKER_GPUS,
    WORKER_HCAS,
    Host,
)

LOGINS = ("root", "deploy", "guest")
K3S_DATA = "/var/lib/rancher/k3s"
_K3S_ETC = Path("k3s/agent/etc")


def install_base(host: Host, disk: Path, rancher: Path, client_key: str, named: Iterable[Host] = ()) -> None:
    """Write into `disk` (the host's layer over the base) and `rancher` (its /var/lib/rancher).

    `named`: the hosts whose names it resolves, as with a site's DNS.
    """
    _write(disk / "etc/hostname", f"{host.name}\n")
    others = "".join(f"{each.address} {each.name}\n" for each in named)
    _write(disk / "etc/hosts", f"127.0.0.1 localhost\n127.0.1.1 {host.name}\n::1 localhost\n{others}")
    _write(disk / "etc/resolv.conf", resolvers(Path("/etc/resolv.conf").read_text()))
    _write(
        disk / f"etc/systemd/network/10-{INTERFACE}.network",
        f"[Match]\nName={INTERFACE}\n[Network]\nAddress={host.address}/{PREFIX}\nLinkLocalAddressing=no\n",
    )
    _write(
        disk / f"etc/systemd/network/10-{MANAGEMENT_INTERFACE}.network",
        f"[Match]\nName={MANAGEMENT_INTERFACE}\n[Network]\nAddress={host.management_address}/32\n"
        f"LinkLocalAddressing=no\n[Route]\nGateway={MANAGEMENT_GATEWAY}\nGatewayOnLink=yes\n",
    )
    write_private(disk / "etc/ssh/ssh_host_ed25519_key", host_key(host.name))
    (disk / "etc/ssh").chmod(0o755)
    # One file for all logins: AuthorizedKeysFile in the base's sshd configuration. sshd requires owner root.
    _write(disk / "etc/ssh/authorized_keys", f"{client_key} busbar-lab\n")

    own = disk / "usr/local/lib/busbar-lab"
    for program in ("boot.sh", "apt-locks.pl"):
        _copy(LAB / "hosts" / "base" / program, own / program)
    if host.role in ("worker", "gpu"):
        _copy(LAB / "hosts" / "hardware" / "infiniband.sh", own / "infiniband.sh")
        for program in ("nvidia-smi", "nvidia-container-runtime", "ibv_devinfo", "ib_write_bw", "lspci"):
            _copy(LAB / "hosts" / "hardware" / program, disk / "usr/bin" / program)
        # Before the real one in the PATH of a script.
        name = "systemd-detect-virt"
        _copy(LAB / "hosts" / "hardware" / name, disk / "usr/local/bin" / name)
        _write(own / "gpus", f"{WORKER_GPUS}\n")
        _write(own / "hcas", "".join(f"{name} {rate} {state}\n" for name, rate, state in WORKER_HCAS))
        for name, _, _ in WORKER_HCAS:
            (own / "rails" / name).mkdir(parents=True, exist_ok=True)
    if host.role == "gpu":
        # In a pod the device plugin makes them.
        devices = "".join(f"c /dev/nvidia{n} 0666 root root - 1:3\n" for n in range(WORKER_GPUS))
        _write(disk / "etc/tmpfiles.d/busbar-lab.conf", devices)
    if host.role in ("server", "worker"):
        kubernetes_prerequisites(rancher)


def kubernetes_prerequisites(rancher: Path) -> None:
    """Write the settings that kubelet and containerd need inside a container, where K3s reads them.

    Kubelet: `kubelet.conf.d` is its --config-dir, merged in the order of the names over K3s' own
    00-k3s-defaults.conf. containerd: K3s' template language cannot change a table that its base template
    opens, so the setting goes into the folder that the base template imports; containerd merges by key.
    """
    _write(
        rancher / _K3S_ETC / "kubelet.conf.d/99-lab.conf", yaml.safe_dump(kubelet_settings(), sort_keys=False)
    )
    containerd = LAB / "hosts" / "base" / "containerd"
    template, own = containerd / "config-v3.toml.tmpl", rancher / _K3S_ETC / "containerd"
    line = f'imports = ["{K3S_DATA}/agent/etc/containerd/config-v3.toml.d/*.toml"]\n'
    imports = "" if imports_drop_ins(k3s_version()) else line
    _write(own / template.name, imports + template.read_text())
    if not may_lower_oom_score():
        _copy(containerd / "99-lab.toml", own / "config-v3.toml.d/99-lab.toml")


def kubelet_settings(v1: bool | None = None) -> dict[str, object]:
    """The KubeletConfiguration of the hosts; `v1`: cgroup v1, default as on this machine."""
    settings: dict[str, object] = {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "enforceNodeAllocatable": [],
        "failSwapOn": False,
        "localStorageCapacityIsolation": False,
    }
    if cgroups.is_v1() if v1 is None else v1:
        settings |= {"failCgroupV1": False, "cgroupDriver": "cgroupfs", "cgroupRoot": "/"}
    return settings


def may_lower_oom_score() -> bool:
    """True where root here has CAP_SYS_RESOURCE (bit 24); without it runc cannot protect a sandbox."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("CapBnd:"):
            return bool(int(line.split()[1], 16) >> 24 & 1)
    return True


def resolvers(text: str) -> str:
    """This machine's resolv.conf without servers that only it can reach; public ones if none is left."""
    servers = [line.split()[1] for line in text.splitlines() if line.startswith("nameserver ")]
    reachable = [server for server in servers if not server.startswith("127.") and server != "::1"]
    return "".join(f"nameserver {server}\n" for server in reachable or ["1.1.1.1", "8.8.8.8"])


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def _copy(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy2(source, target)

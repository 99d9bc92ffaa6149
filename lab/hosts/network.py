"""The lab's networks on this machine: the hosts' bridge, the management network, NAT, and kernel settings.

The management network is a veth pair. One end is the gateway; on the other one each host gets a macvlan,
which systemd-nspawn makes at every boot.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import time
from pathlib import Path

from lab.paths import RUN
from lab.steps import LabError, run
from lab.topology import (
    BRIDGE,
    GATEWAY,
    MANAGEMENT_GATEWAY,
    MANAGEMENT_LINK,
    MANAGEMENT_PARENT,
    MANAGEMENT_SUBNET,
    PREFIX,
    PROJECT,
    SUBNET,
)

TAG = "busbar-lab"
_SAVED = RUN / "sysctl.json"
_UDEV = Path("/run/udev")
_UDEV_SECONDS = 10

# What the lab raises (five machines share one kernel's limits).
_REQUIRED = {
    "net.ipv4.ip_forward": 1,
    "fs.inotify.max_user_instances": 8192,
    "fs.inotify.max_user_watches": 524288,
}
# What kubelets in the hosts set: the kernel has one value for all, so `down` restores them.
_SET_BY_KUBELET = (
    "vm.overcommit_memory",
    "vm.panic_on_oom",
    "kernel.panic",
    "kernel.panic_on_oops",
    "kernel.keys.root_maxkeys",
    "kernel.keys.root_maxbytes",
)
# Containers cannot load modules: those that K3s needs are loaded here. Built-in ones are not an error.
_MODULES = (
    *("overlay", "br_netfilter", "vxlan", "nf_conntrack", "iptable_nat", "iptable_filter"),
    *("iptable_raw", "macvlan"),
    *("ip_set", "ip_set_hash_ip", "ip_set_hash_net", "xt_set", "xt_comment"),
)

# (table, chain, rule). Bridged frames pass these chains too where br_netfilter is on, so the masquerade
# excludes what stays on the bridge: traffic between pods of two hosts would lose its source address.
_RULES = (
    ("nat", "POSTROUTING", ("-s", SUBNET, "!", "-d", SUBNET, "!", "-o", BRIDGE, "-j", "MASQUERADE")),
    ("filter", "FORWARD", ("-i", BRIDGE, "-j", "ACCEPT")),
    ("filter", "FORWARD", ("-o", BRIDGE, "-j", "ACCEPT")),
    ("nat", "POSTROUTING", ("-s", MANAGEMENT_SUBNET, "!", "-o", MANAGEMENT_LINK, "-j", "MASQUERADE")),
    ("filter", "FORWARD", ("-i", MANAGEMENT_LINK, "-j", "ACCEPT")),
    ("filter", "FORWARD", ("-o", MANAGEMENT_LINK, "-j", "ACCEPT")),
    # Not from host to host, nor into the cluster's network. Before routing, so that no host is redirected.
    ("raw", "PREROUTING", ("-i", MANAGEMENT_LINK, "-d", MANAGEMENT_SUBNET, "-j", "DROP")),
    ("raw", "PREROUTING", ("-i", MANAGEMENT_LINK, "-d", SUBNET, "-j", "DROP")),
)


def is_up() -> bool:
    """True when the bridge, the management network and all rules are there."""
    return bridge_exists() and _exists(MANAGEMENT_LINK) and all(_present(*rule) for rule in _RULES)


def bridge_exists() -> bool:
    """True when this machine has the lab's bridge."""
    return _exists(BRIDGE)


def made_here() -> bool:
    """True when this checkout's `up` made the network, at least in part."""
    return _SAVED.exists()


def owner() -> Path | None:
    """The checkout whose `up` made the bridge; None without a bridge, or if it does not say."""
    alias = Path(f"/sys/class/net/{BRIDGE}/ifalias")
    text = alias.read_text().strip() if alias.exists() else ""
    return Path(text) if text else None


def up() -> None:
    """Make what is missing; remembers the kernel settings as they were before the lab."""
    if not _SAVED.exists():
        _SAVED.parent.mkdir(parents=True, exist_ok=True)
        before = {name: _read(name) for name in (*_REQUIRED, *_SET_BY_KUBELET)}
        _SAVED.write_text(json.dumps({name: value for name, value in before.items() if value is not None}))
    if shutil.which("modprobe"):
        run(["modprobe", "--all", "--quiet", *_MODULES], check=False)
    for name, value in _REQUIRED.items():
        present = _read(name)
        if present is not None and int(present) < value:
            _write(name, str(value))
    if not bridge_exists():
        run(["ip", "link", "add", BRIDGE, "type", "bridge"])
    run(["ip", "link", "set", "dev", BRIDGE, "alias", str(PROJECT)])
    run(["ip", "address", "replace", f"{GATEWAY}/{PREFIX}", "dev", BRIDGE])
    run(["ip", "link", "set", BRIDGE, "up"])
    _management_up()
    for table, chain, rule in _RULES:
        if not _present(table, chain, rule):
            run(["iptables", "-w", "-t", table, "-I", chain, "1", *_with_comment(rule)])


def _management_up() -> None:
    if not _exists(MANAGEMENT_LINK):
        run(["ip", "link", "add", MANAGEMENT_LINK, "type", "veth", "peer", "name", MANAGEMENT_PARENT])
    run(["ip", "address", "replace", f"{MANAGEMENT_GATEWAY}/32", "dev", MANAGEMENT_LINK])
    for link in (MANAGEMENT_LINK, MANAGEMENT_PARENT):
        run(["ip", "link", "set", link, "up"])
    run(["ip", "route", "replace", MANAGEMENT_SUBNET, "dev", MANAGEMENT_LINK, "src", MANAGEMENT_GATEWAY])
    _initialize(MANAGEMENT_PARENT)


def _initialize(link: str) -> None:
    """Wait until udev has its record of the interface: before, systemd-nspawn refuses it.

    Where no udev runs (this machine is a container), the record is written here.
    """
    record = _udev_record(link)
    if not (_UDEV / "control").exists():
        record.parent.mkdir(parents=True, exist_ok=True)
        record.write_text("I:1\n")
    until = time.monotonic() + _UDEV_SECONDS
    while not record.exists():
        if time.monotonic() > until:
            raise LabError(f"udev has not seen {link} after {_UDEV_SECONDS} s: see `udevadm monitor`")
        time.sleep(0.05)


def _forget(link: str) -> None:
    """Remove what `_initialize` wrote."""
    if not (_UDEV / "control").exists():
        _udev_record(link).unlink(missing_ok=True)
        for folder in (_UDEV / "data", _UDEV):
            with contextlib.suppress(OSError):  # has other files, or does not exist
                folder.rmdir()


def _udev_record(link: str) -> Path:
    return _UDEV / "data" / f"n{Path(f'/sys/class/net/{link}/ifindex').read_text().strip()}"


def down() -> list[str]:
    """Remove both networks and their rules, restore the kernel settings; returns what was removed."""
    removed = []
    for link in _ports():
        run(["ip", "link", "delete", link], check=False)
        removed.append(f"network interface {link}")
    if bridge_exists():
        run(["ip", "link", "delete", BRIDGE])
        removed.append(f"bridge {BRIDGE}")
    if _exists(MANAGEMENT_LINK):
        _forget(MANAGEMENT_PARENT)
        run(["ip", "link", "delete", MANAGEMENT_LINK])
        removed.append(f"network interface {MANAGEMENT_LINK}")
    for table, chain, rule in _RULES:
        while _present(table, chain, rule):
            run(["iptables", "-w", "-t", table, "-D", chain, *_with_comment(rule)])
            removed.append(f"iptables rule in {table}/{chain}")
    removed += _restore()
    return removed


def _exists(link: str) -> bool:
    return Path(f"/sys/class/net/{link}").exists()


def _restore() -> list[str]:
    try:
        before: dict[str, str] = json.loads(_SAVED.read_text())
    except (FileNotFoundError, json.JSONDecodeError):
        return []
    changed = [name for name, value in before.items() if _read(name) != value]
    for name in changed:
        _write(name, before[name])
    _SAVED.unlink()
    return [f"kernel setting {name} (back to {before[name]})" for name in changed]


def _ports() -> list[str]:
    """Interfaces that are still attached to the bridge."""
    ports = Path(f"/sys/class/net/{BRIDGE}/brif")
    return sorted(port.name for port in ports.iterdir()) if ports.is_dir() else []


def _with_comment(rule: tuple[str, ...]) -> list[str]:
    return ["-m", "comment", "--comment", TAG, *rule]


def _present(table: str, chain: str, rule: tuple[str, ...]) -> bool:
    return (
        run(["iptables", "-w", "-t", table, "-C", chain, *_with_comment(rule)], check=False).returncode == 0
    )


def _setting(name: str) -> Path:
    return Path("/proc/sys") / name.replace(".", "/")


def _read(name: str) -> str | None:
    path = _setting(name)
    return path.read_text().strip() if path.exists() else None


def _write(name: str, value: str) -> None:
    _setting(name).write_text(value)

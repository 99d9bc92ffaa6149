"""Files that K3s reads: config.yaml of servers and workers, registries.yaml; and values of its scripts.

Keys: k3s-io/docs docs/cli/server.md, docs/cli/agent.md. The host's script adds what depends on the host:
`cluster-init` or `server`, `node-ip` and `flannel-iface`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from copy import deepcopy
from datetime import date
from pathlib import Path
from typing import Any
from urllib.parse import quote

import yaml

from busbar.config import ConfigError, K3s, Pool, files
from busbar.config.cluster import arguments_of, parsed
from busbar.hosts.inventory import Host, Inventory

RENEWAL_DAYS = 90
# Time limit in seconds for a script that hangs, enough for some 100 GB of archives. The scripts also have
# their own deadlines, by the size of each archive, which is not known here.
ARCHIVES_SECONDS = 4 * 3600
# Time in seconds that an agent waits for jobs to end (pools.NAME.running_jobs: wait).
JOBS_SECONDS = 3600
_LOG_SIZE = "container-log-max-size"
# The size of a launcher's log. The kubelet's default of 10Mi is rotated away faster than it can be read:
# thousands of ranks with NCCL_DEBUG=INFO write 70 MB within seconds.
LOG_SIZE = "500Mi"
# The taint of workers in quarantine: no new pod starts there, those that run stay.
QUARANTINE = "busbar/quarantine=true:NoSchedule"
AUTH_CONFIG = "/etc/rancher/k3s/auth-config.yaml"


def server_config(
    k3s: K3s,
    *,
    node_name: str,
    tls_sans: Sequence[str],
    token: str,
    agent_token: str,
    s3_keys: tuple[str, str] | None = None,
) -> str:
    """config.yaml of a server; `s3_keys` are the access key and the secret key for snapshots."""
    snapshots = k3s.snapshots
    config: dict[str, Any] = {
        "node-name": node_name,
        "token": token,
        "agent-token": agent_token,
        "tls-san": list(tls_sans),
        "write-kubeconfig-mode": "0600",
        "secrets-encryption": True,
        "cluster-cidr": k3s.cluster_cidr,
        "service-cidr": k3s.service_cidr,
        "flannel-backend": k3s.flannel_backend,
        "kube-apiserver-arg": [f"authentication-config={AUTH_CONFIG}"],
        "etcd-snapshot-schedule-cron": snapshots.schedule,
        "etcd-snapshot-retention": snapshots.retention,
    }
    if k3s.disable:
        config["disable"] = list(k3s.disable)
    if snapshots.s3 is not None:
        config["etcd-s3"] = True
        config |= {f"etcd-s3-{key}": value for key, value in snapshots.s3.model_dump().items() if value}
        if s3_keys is not None:
            config["etcd-s3-access-key"], config["etcd-s3-secret-key"] = s3_keys
    return _dump(merged(config, k3s.server_args))


def authenticators(k3s: K3s) -> str:
    """The part `jwt` of the AuthenticationConfiguration; empty if nothing is set."""
    return _dump({"jwt": k3s.authentication.jwt}) if k3s.authentication.jwt else ""


def tls_sans(k3s: K3s, server: Host, api_address: str, load_balancers: Iterable[Host]) -> list[str]:
    """Names and addresses in a server's certificate, each once: API, load balancers, itself, `k3s.tls_san`.

    The other servers are left out: with them, every server would restart when one is added. K3s adds them.
    """
    fronts = (host.address for host in load_balancers)
    return [*dict.fromkeys([api_address, *fronts, server.address, server.name, *k3s.tls_san])]


def agent_config(
    k3s: K3s, pool: Pool, *, node_name: str, server: str, token: str, labels: Sequence[Sequence[str]] = ()
) -> str:
    """config.yaml of a worker: `server` is the URL to join by, `token` the secure agent token.

    `labels`: the worker's own, beside those of the pool.

    K3s applies labels and taints at the first registration only; busbar.kube.taints applies later changes.
    """
    config: dict[str, Any] = {
        "node-name": node_name,
        "server": server,
        "token": token,
        "node-label": _labels(pool, labels),
        "node-taint": [*map(str, pool.taints)],
    }
    filled = {key: value for key, value in config.items() if value != []}
    given = {parsed(each)[0] for each in arguments_of(k3s.agent_args, "kubelet-arg")}
    if not given & {_LOG_SIZE, "config"}:
        filled["kubelet-arg"] = [f"{_LOG_SIZE}={LOG_SIZE}"]
    return _dump(merged(filled, k3s.agent_args))


def download_values(k3s: K3s, role: str, project: Path) -> dict[str, str]:
    """Values of host/k3s-server.sh and host/k3s-agent.sh for what they install.

    VERSION; URL_<ARCH> and SHA256_<ARCH> for every architecture with a known checksum; IMAGES, one line
    `<sha256> <url>` per image archive of the role. Raises ConfigError as `files.without_checksum`.
    """
    if missing := [*files.without_checksum(k3s, project)]:
        raise ConfigError(missing)
    listed, values = files.read_checksums(k3s, project), {"VERSION": k3s.version}
    # The host's script refuses an architecture that is missing here.
    for arch, sha256 in files.binary_checksums(k3s, listed).items():
        url = f"{k3s.base_url}/{quote(k3s.version, safe='')}/{files.BINARIES[arch]}"
        values |= {f"URL_{arch.upper()}": url, f"SHA256_{arch.upper()}": sha256}
    images = (image for image in k3s.images if role in image.roles)
    return values | {
        "IMAGES": "\n".join(f"{files.archive_checksum(image, listed)} {image.url}" for image in images)
    }


def install_seconds(k3s: K3s, role: str, seconds: int) -> int:
    """The time limit of an installation that takes `seconds` without image archives."""
    return seconds + (ARCHIVES_SECONDS if any(role in image.roles for image in k3s.images) else 0)


def worker_labels(inventory: Inventory) -> dict[str, list[str]]:
    """Worker name -> labels, KEY=VALUE: those of the pool, and its own."""
    pools = inventory.cluster.pools
    return {host.name: _labels(pools[host.pool or ""], host.labels) for host in inventory.workers}


def _labels(pool: Pool, own: Sequence[Sequence[str]]) -> list[str]:
    labels = {**pool.labels, **{each[0]: each[1] for each in own}}
    return [f"{key}={value}" for key, value in sorted(labels.items())]


def worker_taints(inventory: Inventory) -> dict[str, list[str]]:
    """Worker name -> taints, KEY=VALUE:EFFECT, also for workers without any."""
    of_pools = {name: [*map(str, pool.taints)] for name, pool in inventory.cluster.pools.items()}
    quarantine = {name: [QUARANTINE] for name in inventory.quarantine}
    return {
        host.name: of_pools[host.pool or ""] + quarantine.get(host.name, []) for host in inventory.workers
    }


def restart_values(pool: Pool, workers: int) -> dict[str, str]:
    """Values of host/k3s-agent.sh: how running agents restart in a pool with this number of workers."""
    return {
        "RUNNING_JOBS": pool.running_jobs,
        "JOBS_SECONDS": str(JOBS_SECONDS),
        "DRAIN": pool.drain,
        "PAUSE_SECONDS": str(pool.pause_after_restart(workers)),
    }


def restart_seconds(pool: Pool, workers: int) -> int:
    """The longest time in seconds that an agent of the pool takes before and after its restart."""
    jobs = JOBS_SECONDS if pool.running_jobs == "wait" else 0
    return jobs + pool.pause_after_restart(workers)


def secure_token(user: str, password: str, *, ca_sha256: str) -> str:
    """The join token that pins the cluster's CA: user `server` or `node` (agents)."""
    return f"K10{ca_sha256}::{user}:{password}"


def install_id(server_token: str) -> str:
    """Identifies a cluster on its hosts: 16 hex digits derived from its first token, not secret."""
    return hashlib.sha256(f"busbar install {server_token}".encode()).hexdigest()[:16]


def rotation_values(k3s: K3s, *kinds: str) -> dict[str, str]:
    """The numbers of `k3s.rotate` as host/k3s-rotation.sh reads them; those that are 0 are left out.

    `kinds`: the rotations that the script needs, by default all.
    """
    numbers = k3s.rotate.model_dump()
    return {f"ROTATE_{kind.upper()}": str(numbers[kind]) for kind in kinds or numbers if numbers[kind]}


def kubeconfig_renewal(today: date) -> int:
    """A number that changes every 90 days: with it the kubeconfig is read again before its 365 days end."""
    return today.toordinal() // RENEWAL_DAYS


def registries(k3s: K3s, credentials: Mapping[str, Any] | None = None) -> str:
    """registries.yaml; `credentials`: registry -> {"username", "password"}. Empty if nothing is set."""
    content = deepcopy(k3s.registries)
    for registry, auth in (credentials or {}).items():
        content.setdefault("configs", {}).setdefault(registry, {})["auth"] = dict(auth)
    return _dump(content) if content else ""


def merged(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> dict[str, Any]:
    """`theirs` over `ours`: lists are appended (arguments add up), anything else is replaced.

    `key` and K3s's `key+` mean the same, because a list is never replaced.
    """
    result = dict(ours)
    for name, value in theirs.items():
        key = name.removesuffix("+")
        if isinstance(present := result.get(key), list):
            value = [*present, *(value if isinstance(value, list) else [value])]
        result[key] = value
    return result


def _dump(content: Mapping[str, Any]) -> str:
    return yaml.safe_dump(dict(content), sort_keys=True, default_flow_style=False, allow_unicode=True)

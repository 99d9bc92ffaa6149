"""Loads and validates `busbar:cluster`."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError

from busbar.config import (
    checksums,
    files,
    host_checks,
    k3s_argument_checks,
    k3s_checks,
    secrets,
    software_checks,
    validation_checks,
)
from busbar.config.cluster import Cluster
from busbar.config.errors import ConfigError, Finding, KeyPath, finding, path_of
from busbar.config.kubernetes_values import floating, is_floating
from busbar.config.partial import GROUPS, PartialConfig
from busbar.models import ConfigModel

M = TypeVar("M", bound=ConfigModel)
# One server gives 2.5 to 10 GB/s (docs/hosts.md); more workers stall when all write a checkpoint.
NFS_WORKERS = 16

# The checks that no section can make on its own.
CHECKS: tuple[Callable[[PartialConfig], Iterator[Finding]], ...] = (
    host_checks.duplicates,
    host_checks.quorum,
    host_checks.api_endpoint,
    host_checks.virtual_ip,
    host_checks.pools,
    host_checks.topology,
    host_checks.nfs_server,
    k3s_checks.networks,
    k3s_checks.pod_network_size,
    k3s_checks.taints,
    k3s_checks.labels,
    k3s_checks.images,
    k3s_checks.disabled,
    k3s_checks.base_url,
    k3s_checks.registries,
    k3s_argument_checks.written_keys,
    k3s_argument_checks.breaking_keys,
    k3s_argument_checks.token_lifetime,
    software_checks.versions,
    software_checks.resource,
    software_checks.node_features,
    validation_checks.values,
)


def load(data: Mapping[str, Any], *, secret_keys: Collection[str] = (), root: Path | None = None) -> Cluster:
    """Validate the object `busbar:cluster` as a whole and return it typed.

    `secret_keys`: which keys of `schema.SECRETS` the stack has set; their values are not needed. `root`: the
    project folder; if given, the files that the configuration names are checked too.

    Raises ConfigError with all findings: each names the path, the value, and what is expected.
    """
    if not isinstance(data, Mapping):
        raise ConfigError([Finding(("busbar:cluster",), "is not an object", "see Pulumi.h100.example.yaml")])
    problems = [*secrets.findings(data)]
    known = {each.path for each in problems}
    cluster: Cluster | None = None
    try:
        cluster = Cluster.model_validate(data)
    except ValidationError as error:
        found = (finding(detail, Cluster) for detail in error.errors())
        problems += (each for each in found if each.path not in known)
    partial = PartialConfig.read(data)
    for check in CHECKS:
        problems += check(partial)
    problems += host_checks.login(partial, secret_keys, "busbar")
    problems += k3s_checks.bucket(partial, secret_keys)
    if cluster is not None and not any(each.path[-1] == "profile" for each in problems):
        problems += validation_checks.hardware(cluster)
    if cluster is not None:
        problems += software_checks.server_taints(cluster)
    if cluster is not None and root is not None:
        problems += files.findings(cluster, root)
    problems += checksums.findings(partial.k3s, root)
    if problems or cluster is None:
        raise ConfigError(problems)
    return cluster


def section(kind: type[M], name: str, data: Mapping[str, Any]) -> M:
    """One part of `busbar:cluster`, such as `k3s`. Raises ConfigError with all findings below `name`."""
    try:
        return kind.model_validate(data)
    except ValidationError as error:
        raise ConfigError(finding(each, kind).below(name) for each in error.errors()) from None


def warnings(cluster: Cluster) -> list[Finding]:
    """Findings about settings that are allowed but probably not intended."""
    partial = PartialConfig.read(cluster.model_dump())
    return [
        *software_checks.version_warnings(cluster),
        *k3s_checks.disabled_warnings(partial),
        *k3s_checks.authentication_warnings(partial),
        *host_checks.loopback_warnings(partial),
        *validation_checks.launch_warnings(cluster),
        *validation_checks.warnings(cluster),
        *host_key_warnings(cluster),
        *proxy_warnings(cluster),
        *_of_sizes(cluster),
    ]


def _of_sizes(cluster: Cluster) -> Iterator[Finding]:
    """Warnings that depend on the number of hosts, or on what is switched off."""
    hosts, operator = cluster.hosts, cluster.mpi_operator
    if operator.enabled and is_floating(operator.image):
        yield floating(("mpi_operator", "image"), operator.image)
    if len(hosts.workers) == 1 and cluster.validation.enabled:
        text = "with one worker the validation stays on the host and tests no fabric"
        yield Finding(("hosts", "workers"), text)
    if not cluster.validation.enabled:
        text = "false: the NCCL validation does not run; nccl_passed will be false"
        yield Finding(("validation", "enabled"), text)
    if cluster.nfs_server and len(hosts.workers) > NFS_WORKERS:
        text = f"{len(hosts.workers)} workers share one NFS server, which is enough for about {NFS_WORKERS}"
        yield Finding(("nfs_server",), text, "use a parallel file system for checkpoints (busbar docs hosts)")
    if len(hosts.servers) == 1:
        text = "with one server, its failure stops the whole control plane until it is restored"
        yield Finding(("hosts", "servers"), text)


def proxy_warnings(cluster: Cluster) -> Iterator[Finding]:
    """Warn of patterns, and of workers that servers list in NO_PROXY one by one (busbar/hosts/proxy.py)."""
    proxy, workers = cluster.http_proxy, [worker.address for worker in cluster.hosts.workers]
    for index, (given, read) in enumerate(zip(proxy.no_proxy, proxy.direct, strict=True) if proxy else ()):
        if given != read:
            text = f"is a pattern, which curl and Go do not read; hosts get '{read}'"
            yield Finding(("http_proxy", "no_proxy", index), text, f"write '{read}'", f"'{given}'")
    if proxy and (alone := [*proxy.outside_no_proxy(workers)]):
        yield Finding(
            ("http_proxy", "no_proxy"),
            "workers are in none of its networks and domains "
            f"({', '.join(alone[:3])}{', ...' if len(alone) > 3 else ''}): K3s on the servers "
            "restarts whenever a worker is added or removed",
            "add the network of the hosts, such as 10.0.0.0/24",
        )


def host_key_warnings(cluster: Cluster) -> Iterator[Finding]:
    """Warn of an SSH host key that several hosts share: their images were cloned with the keys."""
    hosts = cluster.hosts
    listed: list[tuple[KeyPath, str]] = [
        (("hosts", group, index), host.host_key)
        for group in GROUPS
        for index, host in enumerate(getattr(hosts, group))
    ]
    if hosts.nfs_server:
        listed.append((("hosts", "nfs_server"), hosts.nfs_server.host_key))
    if cluster.ssh.bastion:
        listed.append((("ssh", "bastion"), cluster.ssh.bastion.host_key))
    paths: dict[str, list[KeyPath]] = {}
    for path, key in listed:
        paths.setdefault(key, []).append(path)
    for first, *others in paths.values():
        if others:
            names = ", ".join(map(path_of, others))
            yield Finding(
                (*first, "host_key"),
                f"the same key as {names}: each of these hosts can impersonate the others",
                "on cloned machines `rm /etc/ssh/ssh_host_* && ssh-keygen -A`, restart sshd, and "
                "enter the new keys",
            )

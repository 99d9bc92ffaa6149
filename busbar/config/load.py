"""Loads and validates `busbar:cluster`."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError

from busbar.config import (
    authentication_checks,
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
from busbar.config.errors import ConfigError, path_of, sentence
from busbar.config.kubernetes_values import FLOATING, is_floating
from busbar.config.partial import GROUPS, PartialConfig
from busbar.models import ConfigModel

M = TypeVar("M", bound=ConfigModel)
# One server gives 2.5 to 10 GB/s (docs/hosts.md); more workers stall when all write a checkpoint.
NFS_WORKERS = 16

# The checks that no section can make on its own.
CHECKS: tuple[Callable[[PartialConfig], Iterator[str]], ...] = (
    host_checks.duplicates,
    host_checks.resource_names,
    host_checks.quorum,
    host_checks.api_endpoint,
    host_checks.virtual_ip,
    host_checks.pools,
    host_checks.topology,
    host_checks.measured_together,
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
    k3s_argument_checks.unknown_keys,
    k3s_argument_checks.arguments,
    k3s_argument_checks.token_lifetime,
    software_checks.versions,
    software_checks.resource,
    validation_checks.values,
)


def load(data: Mapping[str, Any], *, secret_keys: Collection[str] = (), root: Path | None = None) -> Cluster:
    """Validate the object `busbar:cluster` as a whole and return it typed.

    `secret_keys`: which keys of `schema.SECRETS` the stack has set; their values are not needed. `root`: the
    project folder; if given, the files that the configuration names are checked too.

    Raises ConfigError with all findings: each names the path, the value, and what is expected.
    """
    if not isinstance(data, Mapping):
        raise ConfigError(["busbar:cluster: is not an object. Fix: see Pulumi.h100.example.yaml"])
    found = dict(secrets.findings(data))
    problems = [f"{path}: {text}" for path, text in found.items()]
    cluster: Cluster | None = None
    try:
        cluster = Cluster.model_validate(data)
    except ValidationError as error:
        for detail in error.errors():
            if path_of(detail["loc"]) not in found:
                problems.append(sentence(detail, Cluster))
    partial = PartialConfig.of(data)
    for check in CHECKS:
        problems += check(partial)
    problems += host_checks.login(partial, secret_keys)
    problems += k3s_checks.bucket(partial, secret_keys)
    if cluster is not None and not any(validation_checks.NO_PROFILE in p for p in problems):
        problems += validation_checks.hardware(cluster)
    if cluster is not None and root is not None:
        problems += files.findings(cluster, root)
    problems += checksums.findings(partial.k3s, root)
    if problems or cluster is None:
        raise ConfigError(problems)
    return cluster


def section(kind: type[M], path: str, data: Mapping[str, Any]) -> M:
    """One part of `busbar:cluster`, such as `k3s`. Raises ConfigError with all findings below `path`."""
    try:
        return kind.model_validate(data)
    except ValidationError as error:
        raise ConfigError(f"{path}.{sentence(each, kind)}" for each in error.errors()) from None


def warnings(cluster: Cluster) -> list[str]:
    """What is allowed but probably not intended, one sentence each."""
    partial = PartialConfig.of(cluster.model_dump())
    found = [f"{each.where}: {each.text}" for each in software_checks.version_findings(partial)]
    found += k3s_argument_checks.unknown_key_warnings(partial)
    found += k3s_checks.disabled_warnings(partial)
    found += authentication_checks.warnings(partial)
    found += host_checks.loopback_warnings(partial)
    found += host_checks.virtual_ip_warnings(partial)
    found += validation_checks.launch_warnings(cluster)
    found += validation_checks.warnings(cluster)
    found += host_key_warnings(cluster)
    found += proxy_warnings(cluster)
    if cluster.mpi_operator.enabled and is_floating(cluster.mpi_operator.image):
        found.append(f"mpi_operator.image: {cluster.mpi_operator.image!r} {FLOATING}")
    if len(cluster.hosts.workers) == 1 and cluster.validation.enabled:
        found.append("hosts.workers: with one worker the validation stays on the host and tests no fabric")
    if not cluster.validation.enabled:
        found.append("validation.enabled: false: the NCCL validation does not run; nccl_passed will be false")
    if cluster.nfs_server and len(cluster.hosts.workers) > NFS_WORKERS:
        found.append(
            f"nfs_server: {len(cluster.hosts.workers)} workers share one NFS server, which is enough for "
            f"about {NFS_WORKERS}. Fix: use a parallel file system for checkpoints (docs/hosts.md)"
        )
    if cluster.k3s.rotate.encryption_key:
        found.append(
            "k3s.rotate.encryption_key: not used any more. Fix: remove it; "
            "`busbar rotate STACK encryption-key` rotates the key of Secrets"
        )
    if len(cluster.hosts.servers) == 1:
        found.append(
            "hosts.servers: with one server, its failure stops the whole control plane until it is restored"
        )
    return found


def proxy_warnings(cluster: Cluster) -> Iterator[str]:
    """Workers that servers have in their NO_PROXY one by one (busbar/hosts/proxy.py)."""
    workers = [worker.address for worker in cluster.hosts.workers]
    if cluster.http_proxy and (alone := [*cluster.http_proxy.outside_no_proxy(workers)]):
        yield (
            f"http_proxy.no_proxy: workers are in none of its networks and domains ({', '.join(alone[:3])}"
            f"{', ...' if len(alone) > 3 else ''}): K3s on the servers restarts whenever a worker is added "
            "or removed. Fix: add the network of the hosts, such as 10.0.0.0/24"
        )


def host_key_warnings(cluster: Cluster) -> Iterator[str]:
    """The same SSH host key on two hosts: images cloned with their keys."""
    hosts = cluster.hosts
    listed = [
        (f"hosts.{group}[{index}]", host.host_key)
        for group in GROUPS
        for index, host in enumerate(getattr(hosts, group))
    ]
    if hosts.nfs_server:
        listed.append(("hosts.nfs_server", hosts.nfs_server.host_key))
    if cluster.ssh.bastion:
        listed.append(("ssh.bastion", cluster.ssh.bastion.host_key))
    paths: dict[str, list[str]] = {}
    for path, key in listed:
        paths.setdefault(key, []).append(path)
    for first, *others in paths.values():
        if others:
            yield (
                f"{first}.host_key: the same key as {', '.join(others)}: each of these hosts can "
                "impersonate the others. Fix: on cloned machines `rm /etc/ssh/ssh_host_* && ssh-keygen -A`, "
                "restart sshd, and enter the new keys"
            )

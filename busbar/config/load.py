"""The door to the configuration."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from busbar.config import check_software, checks, files, secrets
from busbar.config.cluster import Cluster
from busbar.config.draft import Draft
from busbar.config.errors import ConfigError, path_of, sentence
from busbar.config.schema import SECRETS

SECRET_KEYS = tuple(SECRETS)
"""The secrets of a stack: top-level keys `busbar:<key>`, declared in Pulumi.yaml."""


def load(data: Mapping[str, Any], *, secret_keys: Collection[str] = (), root: Path | None = None) -> Cluster:
    """Check the object `busbar:cluster` as a whole and return it typed.

    `secret_keys`: which of SECRET_KEYS the stack has set; their values are not needed. `root`: the project
    folder; where it is given, the files that the configuration names are looked at too.

    Raises ConfigError with every finding at once: each names the path, the value, and what is expected.
    """
    if not isinstance(data, Mapping):
        raise ConfigError(["busbar:cluster: is not an object; Pulumi.h100.example.yaml shows one"])
    found = dict(secrets.findings(data))
    problems = [f"{path}: {text}" for path, text in found.items()]
    cluster: Cluster | None = None
    try:
        cluster = Cluster.model_validate(data)
    except ValidationError as error:
        for detail in error.errors():
            if path_of(detail["loc"]) not in found:
                problems.append(sentence(detail, Cluster))
    problems += checks.findings(Draft.of(data), secret_keys)
    if cluster is not None and root is not None:
        problems += files.findings(cluster, root)
    if problems or cluster is None:
        raise ConfigError(problems)
    return cluster


def advice(cluster: Cluster) -> list[str]:
    """What is allowed but worth a second look, one sentence each."""
    found = check_software.judged(Draft.of(cluster.model_dump()))
    notes = [f"{finding.where}: {finding.text}" for finding in found]
    if len(cluster.hosts.workers) == 1 and cluster.validation.enabled:
        notes.append("hosts.workers: one worker: the measurement never leaves the host and proves no fabric")
    if cluster.validation.transport == "socket" and cluster.validation.expected_busbw_gbps is None:
        notes.append("validation.transport: over sockets nothing can be computed: give expected_busbw_gbps")
    if not cluster.validation.enabled:
        notes.append("validation.enabled: false: nothing is measured, and nccl_passed will be false")
    if len(cluster.hosts.servers) == 1:
        notes.append(
            "hosts.servers: one server: with it the whole control plane is lost until it is restored"
        )
    return notes

"""Shared parts of the commands that query or change the hosts of a stack over SSH, in any project."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Protocol

import typer

from busbar.cli.output import NO_TERMINAL, fail, progress
from busbar.cli.stackfile import capability_of, load_stack, login_of
from busbar.exits import USAGE

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from busbar.config import Cluster, Ssh
    from busbar.config.stackfile import StackFile
    from busbar.hosts.host import Host
    from busbar.hosts.host_keys import Offer
    from busbar.hosts.login import Login
    from busbar.manifests.artifacts import Needs
    from busbar.operations.node_check import Workers
    from busbar.preflight.spec import Spec
    from busbar.preflight.survey import Outcome


class Operations(Protocol):
    """The functions of the module `operations` of a capability; each takes a stack file.

    They raise ConfigError, SecretError and the errors of busbar/exits.py.
    """

    def verify(self, path: Path, as_json: bool) -> None:
        """Print the differences on the hosts (busbar.cli.verify.end)."""

    def host_keys(self, path: Path) -> tuple[StackFile, tuple[Ssh, list[Offer]]]:
        """The file, whose other sections may be invalid, and its hosts (busbar.hosts.host_keys.listed)."""
        ...

    def preflight(self, path: Path) -> tuple[Spec, Outcome]:
        """Query all hosts; nothing is changed."""
        ...

    def needs(self, path: Path) -> Needs:
        """The packages and images that the hosts fetch; no host is queried."""
        ...

    def nodes(self, path: Path) -> Workers:
        """Query the workers, and the scheduler for the states of their nodes; nothing is changed."""
        ...

    def drain(self, path: Path, host: str, reason: str, *, end_jobs: bool) -> str:
        """Keep jobs away from a worker, and wait for those on it. Returns what to print."""
        ...

    def measure(
        self,
        path: Path,
        pool: str | None,
        nodes: str | None,
        *,
        idle: bool,
        minutes: int | None,
        as_json: bool,
    ) -> int:
        """Measure as `busbar measure`, print and record the results. Returns the exit code."""
        ...

    def diagnose(
        self,
        path: Path,
        pool: str | None,
        nodes: str | None,
        *,
        as_json: bool,
        quarantine: bool,
        release: bool,
    ) -> int:
        """Find what is slow in a pool as `busbar diagnose`, and print it. Returns the exit code."""
        ...

    def keepers(self, path: Path) -> tuple[Login, Sequence[Host]]:
        """The login, and the hosts that keep copies of the state (busbar.operations.state_copies)."""
        ...

    def uncordon(self, path: Path, host: str) -> str:
        """End such a drain once the worker is fit for jobs. Returns what to print."""
        ...


def operations_of(path: Path) -> Operations | None:
    """The operations of the capability to which a stack file belongs; None for that of a K3s cluster.

    Raises Misuse for a capability without hosts of its own, and ConfigError.
    """
    capability = capability_of(path)
    found: Operations | None = capability.on_hosts(path) if capability else None
    return found


def cluster_of(stack: str, project: Path | None) -> tuple[Cluster, Login]:
    """The cluster of a stack file and the login of its hosts. Raises SecretError."""
    file, cluster = load_stack(stack, project)
    return cluster, login_of(file, cluster)


def confirm(yes: bool) -> None:
    """Ask whether to go on, unless `yes`; ends the command with 1 on a no, with 64 without a terminal."""
    if yes:
        return
    if not sys.stdin.isatty():
        fail(f"no changes made: {NO_TERMINAL}", USAGE)
    if not typer.confirm("\nContinue?"):
        progress("no changes made")
        raise typer.Exit(1)

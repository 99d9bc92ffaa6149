"""The functions behind the commands on the hosts of a stack: of a K3s cluster, or of a capability."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Protocol, cast

import typer

from busbar.cli.output import NO_TERMINAL, fail, progress
from busbar.cli.stackfile import capability_of
from busbar.exits import USAGE

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from busbar.config import Ssh
    from busbar.config.stackfile import StackFile
    from busbar.hosts.host_keys import Offer
    from busbar.hosts.inventory import Host, Login
    from busbar.manifests.artifacts import Needs
    from busbar.operations.verify import Verified, Workers
    from busbar.preflight.spec import Spec
    from busbar.preflight.survey import Outcome


class Operations(Protocol):
    """The functions of busbar.cli.k3s, and of a capability's module `operations`; each takes a stack file.

    They raise ConfigError, SecretError and the errors of busbar/exits.py.
    """

    def verify(self, path: Path) -> Verified:
        """Compare hosts and cluster with the configuration and the last update."""

    def host_keys(self, path: Path) -> tuple[StackFile, tuple[Ssh, list[Offer]]]:
        """The file, whose other sections may be invalid, and its hosts (busbar.hosts.host_keys.listed)."""

    def preflight(self, path: Path) -> tuple[Spec, Outcome]:
        """Query all hosts; nothing is changed."""

    def needs(self, path: Path) -> Needs:
        """The packages and images that the hosts fetch; no host is queried."""

    def nodes(self, path: Path) -> Workers:
        """Query the workers, and the scheduler for the states of their nodes; nothing is changed."""

    def drain(self, path: Path, host: str, reason: str, *, end_jobs: bool) -> str:
        """Keep jobs away from a worker, and wait for those on it. Returns what to print."""

    def uncordon(self, path: Path, host: str) -> str:
        """End such a drain once the worker is fit for jobs. Returns what to print."""

    def keepers(self, path: Path) -> tuple[Login, Sequence[Host]]:
        """The login, and the hosts that keep copies of the state (busbar/cli/stack/copies.py)."""


def operations_of(path: Path) -> Operations:
    """The operations on the hosts of a stack file.

    Raises Misuse for a capability without hosts of its own, and ConfigError.
    """
    if capability := capability_of(path):
        return cast(Operations, capability.on_hosts(path))
    from busbar.cli import k3s

    return k3s


def verify(path: Path) -> Verified:
    """The differences of any stack. Raises as the Operations, and SecretError."""
    capability = capability_of(path)
    if capability and not capability.operations:
        from busbar.cli import charts

        return charts.verify(path, capability)
    return operations_of(path).verify(path)


def confirm(yes: bool) -> None:
    """Ask whether to go on, unless `yes`; ends the command with 1 on a no, with 64 without a terminal."""
    if yes:
        return
    if not sys.stdin.isatty():
        fail(f"no changes made: {NO_TERMINAL}", USAGE)
    if not typer.confirm("\nContinue?"):
        progress("no changes made")
        raise typer.Exit(1)

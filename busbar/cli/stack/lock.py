"""The lock that keeps `busbar up` and `busbar destroy` from running at the same time as a restore."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from busbar.cli.stack.target import Target
from busbar.cli.stackfile import login_of
from busbar.config import ConfigError, stackfile
from busbar.hosts.inventory import Inventory
from busbar.operations.lock import held


@contextmanager
def operation_lock(target: Target, command: str) -> Iterator[None]:
    """Hold the lock of busbar.operations.lock on all servers that answer. Raises LockedError if it is taken.

    A stack without a valid cluster, such as one of another project, has no servers to lock.
    """
    try:
        file = stackfile.read(target.project / target.file)
        cluster = file.cluster()
        login = login_of(file, cluster.ssh)
    except ConfigError:
        yield
        return
    with held(login, Inventory.of(cluster).servers, command, on_all=False):
        yield

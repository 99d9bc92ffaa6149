"""`busbar up` and `busbar destroy` do not run beside a restore, nor a restore beside them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from busbar.cli.stack.errors import StackError
from busbar.cli.stack.target import Target
from busbar.cli.stackfile import SecretError, login_of
from busbar.config import ConfigError, stackfile
from busbar.hosts.inventory import Inventory
from busbar.operations.lock import LockedError, held


@contextmanager
def operation_lock(target: Target, command: str) -> Iterator[None]:
    """Hold the lock of busbar.operations.lock on all servers that answer. Raises StackError if it is taken.

    A stack without a valid cluster, as those of other projects, has no servers to lock.
    """
    try:
        file = stackfile.read(target.project / target.file)
        cluster = file.cluster()
        login = login_of(file, cluster)
    except ConfigError:
        yield
        return
    except SecretError as error:
        raise StackError(str(error)) from None
    servers = Inventory.of(cluster).servers
    try:
        with held(login, servers, command, on_all=False):
            yield
    except LockedError as error:
        raise StackError(str(error)) from None

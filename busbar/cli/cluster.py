"""Shared by the commands that talk to a cluster: the request on stdin, the connection, the exit codes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeVar

from pydantic import BaseModel

from busbar.cli.operation import request
from busbar.cli.output import USAGE, fail
from busbar.kube.access import KubeconfigError, connect
from busbar.kube.client import ApiError, RestApi
from busbar.kube.wait import TimedOut

Spec = TypeVar("Spec", bound=BaseModel)


@contextmanager
def command_on_cluster(model: type[Spec]) -> Iterator[tuple[RestApi, Spec]]:
    """A client and the request from stdin.

    Exits with 64 for bad usage, with 1 where the API refuses or a wait times out.
    """
    spec = request(model)
    try:
        api = connect()
    except KubeconfigError as error:
        fail(error, USAGE)
    try:
        yield api, spec
    except (ApiError, TimedOut) as error:
        fail(f"{error} (server {api.server})", 1)

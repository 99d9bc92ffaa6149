"""Shared by the commands that talk to a cluster: the request on stdin, the connection, the exit codes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeVar

import typer
from pydantic import BaseModel

from busbar.cli import EX_USAGE
from busbar.cli.operation import request
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
        typer.echo(str(error), err=True)
        raise typer.Exit(EX_USAGE) from None
    try:
        yield api, spec
    except (ApiError, TimedOut) as error:
        typer.echo(f"{error} (server {api.server})", err=True)
        raise typer.Exit(1) from None


def progress(text: str) -> None:
    """Print one line of progress on stderr; stdout is for the result."""
    typer.echo(text, err=True)

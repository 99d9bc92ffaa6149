"""What commands have in common that ask or change the hosts of a stack over SSH, or that the engine runs."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar

import typer

from busbar.cli.output import NO_TERMINAL, USAGE, fail, progress
from busbar.cli.stackfile import SecretError, load_stack, login_of

if TYPE_CHECKING:
    from pathlib import Path

    from pydantic import BaseModel

    from busbar.config import Cluster
    from busbar.hosts.login import Login

    Request = TypeVar("Request", bound=BaseModel)


@contextmanager
def errors_end(*more: type[Exception], interrupted: str = "") -> Iterator[None]:
    """End the command with 1 where a secret, the SSH key, the bastion or a host fails, for `more` errors, and
    where it is interrupted, if `interrupted` says what to do then.
    """
    from busbar.hosts.remote import ScriptError

    expected: tuple[type[Exception], ...] = (SecretError, ScriptError, ValueError, *more)
    try:
        yield
    except expected as error:
        text = str(error)
    except KeyboardInterrupt:
        if not interrupted:
            raise
        text = f"interrupted{interrupted}"
    else:
        return
    fail(text, 1)


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


def request(model: type[Request]) -> Request:
    """The request on stdin. Ends the command with 64 where it is not valid."""
    from pydantic import ValidationError

    try:
        return model.model_validate_json(sys.stdin.read())
    except ValidationError as error:
        # Where the error is, never the value: that may be a private key.
        found = error.errors(include_input=False, include_url=False)
        texts = (": ".join(filter(None, (".".join(map(str, each["loc"])), each["msg"]))) for each in found)
        fail(f"stdin: {'; '.join(texts)}", USAGE)


def say(text: str) -> None:
    """Print a note of a host or of the operation on stderr."""
    progress(text.removeprefix("busbar: "))

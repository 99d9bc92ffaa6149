"""The arguments of commands on a stack, and reading its file, secrets, outputs and state."""

from __future__ import annotations

import os
import re
import shlex
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from busbar.cli.output import progress
from busbar.exits import Misuse, NoVerdict
from busbar.finding import STACK_SHOWN, Fix, shown
from busbar.text import ago

if TYPE_CHECKING:
    from busbar.capability import Capability
    from busbar.config import Cluster, Ssh
    from busbar.config.stackfile import StackFile
    from busbar.hosts.inventory import Login
    from busbar.kube.client import RestApi

SECRET_SECONDS = 60
STACK_HELP = "Name of a stack, or path of its file (Pulumi.STACK.yaml)."


def _stacks(context: typer.Context, incomplete: str) -> list[str]:
    """Names of stacks, for the completion of shells."""
    from busbar.config import stackfile

    folder = stackfile.project_folder(context.params.get("project"), Path.cwd())
    names = (name for name in stackfile.stacks(folder or Path.cwd()) if not name.endswith(".example"))
    return [name for name in names if name.startswith(incomplete)]


def stack_argument(text: str = STACK_HELP) -> Any:
    return typer.Argument(metavar="STACK", help=text, autocompletion=_stacks)


Stack = Annotated[str, stack_argument()]
Project = Annotated[
    Path | None,
    typer.Option(
        "--project",
        "-C",
        metavar="FOLDER",
        help="Folder of Pulumi.yaml; default: the nearest one, upward from here.",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of the table.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]


def load_stack(stack: str, project: Path | None = None) -> tuple[StackFile, Cluster]:
    """The stack file and its configuration. Raises NoStackFileError, ConfigError and Misuse."""
    from busbar.config import stackfile

    path = find_file(stack, project)
    if capability := capability_of(path):
        capability.on_hosts(path)
        what = f"{path.name} is a stack of {capability.project}, and this command is for a K3s cluster"
        raise Misuse(what, "busbar docs operations 'Commands and projects' lists what serves it")
    file = stackfile.read(path)
    return file, file.cluster()


def capability_of(path: Path) -> Capability | None:
    """The capability to which a stack file belongs; None for that of a cluster. Raises ConfigError."""
    from busbar.capability import of_project
    from busbar.config import stackfile
    from busbar.config.stackfile import PROJECT

    name = stackfile.project_name(path.parent)
    if name == PROJECT:
        return None
    return of_project([name or ""]) or of_project({key.partition(":")[0] for key in stackfile.keys(path)})


OPENED: list[Path] = []
"""The stack file on which the command works, for the places of its findings; empty before `open_file`."""


def open_file(stack: str, project: Path | None) -> Path:
    """The stack's file, on which this process works from now on. Raises NoStackFileError."""
    from busbar.config import stackfile

    OPENED[:] = [path := stackfile.find(stack, project, Path.cwd())]
    os.environ[STACK_SHOWN] = named(stackfile.stack_of(path), path.parent)
    return path


def named(stack: str, folder: Path) -> str:
    """The words for a stack, by default of the project in FOLDER, in a command that is typed here."""
    from busbar.config import stackfile

    _, project, name = f"//{stack}".rsplit("/", 2)
    if project not in ("", stackfile.project_name(folder)):
        return f"{name} in the folder of {project}"
    if folder.samefile(stackfile.project_folder(None, Path.cwd()) or Path.cwd()) and shown(stack) == stack:
        return stack
    return f"{stack} --project {shlex.quote(os.path.relpath(folder))}"


def find_file(stack: str, project: Path | None = None) -> Path:
    """The stack's file; prints how old its copy of another stack's hosts is. Raises NoStackFileError."""
    from busbar.config import stackfile

    path = open_file(stack, project)
    if (kept := stackfile.kept_hosts(path)) and kept.is_file():
        progress(f"hosts: as read {ago(time.time() - kept.stat().st_mtime)} ago, {kept}")
    return path


class SecretError(NoVerdict):
    """Pulumi does not give a secret of the stack; the text says why, and what to do."""


def read_secret(stack: str, project: Path, key: str, *, namespace: str = "busbar") -> str:
    """The value of a secret key of the stack, from `pulumi config get`. Raises SecretError."""
    name = f"{namespace}:{key}"
    text = _ask_pulumi(stack, project, f"the secret {name}", "config", "get", name)
    return text.removesuffix("\n") if key.endswith("Password") else text


def read_output(stack: str, project: Path, name: str) -> str:
    """A stack output, also a secret one, from `pulumi stack output`. Raises SecretError."""
    return _ask_pulumi(stack, project, f"the output {name}", "stack", "output", name, "--show-secrets")


def login_of(file: StackFile, ssh: Ssh) -> Login:
    """The login that `ssh` describes; the rest of the file may be invalid. Raises SecretError."""
    from busbar.hosts.inventory import Login

    needed = set() if ssh.agent else {"sshPrivateKey", "sshPrivateKeyPassword"} & file.secret_keys
    secrets = {key: read_secret(file.stack, file.project, key, namespace=file.namespace) for key in needed}
    return Login.of(
        ssh,
        private_key=secrets.get("sshPrivateKey"),
        private_key_password=secrets.get("sshPrivateKeyPassword"),
        project=file.project,
    )


def kubeconfig_of(file: StackFile) -> str:
    """The kubeconfig of a stack: from its state, else the one that `busbar up` kept. Raises SecretError."""
    from busbar.hosts.scripts import with_server

    kept = file.project / ".busbar" / file.stack / "kubeconfig"
    try:
        return read_output(file.stack, file.project, "kubeconfig")
    except SecretError:
        if not kept.is_file():
            raise
        text = kept.read_text(encoding="utf-8", errors="replace")
    try:
        with_server(text, server="", name="")
    except ValueError as error:
        again = Fix(command=("up", named(file.stack, file.project)), when=", which writes it anew")
        raise SecretError(f"{kept}: {error}", again) from None
    return text


def cluster_api(file: StackFile, cluster: Cluster) -> RestApi:
    """A client of the cluster, by its API or any server. Raises SecretError and UnknownState."""
    from busbar.hosts.inventory import Inventory
    from busbar.operations.verify import connect

    return connect(kubeconfig_of(file), Inventory.of(cluster))


def read_outputs(stack: str, project: Path) -> str:
    """All outputs of a stack, also of another project, as JSON, secrets too. Raises SecretError."""
    return _ask_pulumi(stack, project, "the outputs", "stack", "output", "--json", "--show-secrets")


def read_state(stack: str, project: Path) -> str:
    """The state of the stack as JSON, secrets encrypted. Raises SecretError."""
    return _ask_pulumi(stack, project, "the state", "stack", "export")


def install_id(file: StackFile) -> str | None:
    """The install id of the cluster, from the state: "" if nothing is installed, None if it is unreadable."""
    from busbar.cli.stack.errors import NO_STACK

    try:
        return install_id_in(read_state(file.stack, file.project))
    except SecretError as error:
        return "" if NO_STACK.search(str(error)) else None


def owner_id(file: StackFile) -> str:
    """The install id for a comparison of owner marks; "" with a warning if it is unreadable."""
    if (found := install_id(file)) is None:
        progress("warning: the state of the stack cannot be read: hosts of another cluster are not noticed")
    return found or ""


def install_id_in(state: str) -> str:
    """The install id of the cluster in a state; "" if nothing is installed."""
    found = re.search(r"\bINSTALL_ID=([0-9a-f]{16})\b", state)
    return found[1] if found else ""


def _ask_pulumi(stack: str, project: Path, what: str, *question: str) -> str:
    import subprocess

    from busbar.cli.stack.errors import NO_OUTPUT, UNREADABLE_STATE

    words = ["pulumi", *question, "--stack", stack, "--cwd", str(project)]
    try:
        done = subprocess.run(
            [*words, "--non-interactive"], capture_output=True, text=True, timeout=SECRET_SECONDS, check=False
        )
        said = done.stderr.strip().removeprefix("error: ")
        problem = said or f"exit code {done.returncode}" if done.returncode else ""
    except OSError as error:
        problem = f"pulumi on PATH cannot be run: {error.strerror}"
    except subprocess.TimeoutExpired:
        problem = f"timed out after {SECRET_SECONDS} s"
    if problem:
        fix = Fix(f"make `{shlex.join(words)}` work (pulumi login, PULUMI_CONFIG_PASSPHRASE)")
        if UNREADABLE_STATE.search(problem):
            fix = Fix("see how to repair it", ("status", named(stack, project)))
        elif NO_OUTPUT.search(problem):
            fix = Fix(command=("up", named(stack, project)), when=", because no update has written it yet")
        raise SecretError(f"{what} of stack {stack} cannot be read: {problem}", fix)
    return done.stdout

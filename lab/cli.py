"""`python -m lab …`: the lab's commands."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from typing import Annotated

import typer

from lab.steps import CONSOLE, LabError, log_line
from lab.topology import STACK, Host, find, hosts

app = typer.Typer(
    name="python -m lab",
    help="busbar's lab: hosts that boot on this machine, so that the whole bring-up runs for real.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


def main() -> None:
    """Run the command line; a LabError becomes its message and exit code 1."""
    try:
        app()
    except LabError as error:
        CONSOLE.print(f"lab: {error}", style="red", markup=False)
        sys.exit(1)


def start(workers: int = 2, load_balancers: int = 1, servers: int = 3) -> None:
    """What `up` does, for callers in Python. Raises LabError."""
    from lab.up import up

    up(hosts(workers, load_balancers, servers))


@app.command()
def up(
    workers: Annotated[int, typer.Option(min=0, max=100, help="GPU hosts to boot")] = 2,
    load_balancers: Annotated[int, typer.Option(min=1, max=2, help="load balancers to boot")] = 1,
    servers: Annotated[int, typer.Option(min=1, max=5, help="servers to boot")] = 3,
) -> None:
    """Boot the hosts; builds what is missing first. A second run changes nothing."""
    start(workers, load_balancers, servers)


@app.command()
def down() -> None:
    """Remove every trace: hosts, mounts, bridge, mirror, run state. What was built stays in the cache."""
    from lab.down import down as remove

    if not remove():
        log_line("nothing to remove")


@app.command()
def status() -> None:
    """List what runs; exit code 0 when everything does, 3 otherwise."""
    from lab.status import show

    raise typer.Exit(0 if show() else 3)


@app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def ssh(
    context: typer.Context,
    host: str,
    user: Annotated[str, typer.Option(help="root, deploy (sudo without a password) or guest")] = "root",
) -> None:
    """A shell on a host, or a command there: `python -m lab ssh worker-1 nvidia-smi -L`."""
    from lab.hosts.ssh import command

    argv = command(_host(host), context.args, user=user)
    sys.stdout.flush()
    os.execvp(argv[0], argv)


@app.command()
def env() -> None:
    """Shell lines for the engine's environment: `eval "$(python -m lab env)"`."""
    from lab.engine.environment import environment

    for name, value in environment().items():
        print(f"export {name}={shlex.quote(value)}")


@app.command()
def build(
    drills: Annotated[bool, typer.Option("--drills", help="also what only `make drills` needs")] = False,
    charts: Annotated[bool, typer.Option("--charts", help="only helm, for tests of charts; no root")] = False,
) -> None:
    """Build or download everything that `up` needs, and start nothing."""
    from lab.build.go import build as build_tool
    from lab.offline import HELM

    if charts:
        if not shutil.which("helm") and shutil.which("go"):
            build_tool(HELM)
        return
    from lab.build.tools import DRILL_TOOLS
    from lab.capabilities import parts
    from lab.everything import in_background
    from lab.hosts import machine
    from lab.hosts.rootfs import BASE

    machine.require_root()
    machine.prepare()
    with in_background():
        BASE.ensure()
    if drills:
        for tool in (*DRILL_TOOLS, *(tool for part in parts().values() for tool in part.tools)):
            build_tool(tool)


@app.command()
def bringup(
    capability: Annotated[str | None, typer.Argument(help="a folder of stacks/")] = None,
    stack: Annotated[str, typer.Argument(help="a stack of the capability")] = STACK,
) -> None:
    """`make up`: the hosts, then `busbar up` on stack dev. With a capability: `make up-<capability>`."""
    from lab import capabilities
    from lab.bringup import bring_up

    if capability:
        capabilities.bring_up(capability, stack)
    bring_up()


def _host(name: str) -> Host:
    from lab.capabilities import hosts_of_capabilities

    try:
        return find(name, hosts_of_capabilities())
    except ValueError as error:
        raise LabError(str(error)) from None

"""The commands on a running cluster: verify, nodes, drain, uncordon, snapshots, restore, support-bundle."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from busbar.cli.ending import when_interrupted
from busbar.cli.engine import say
from busbar.cli.operation import confirm, operations_of
from busbar.cli.output import error, fail, print_result, print_table
from busbar.cli.stackfile import (
    AsJson,
    Project,
    SecretError,
    Stack,
    Yes,
    find_file,
    install_id,
    load_stack,
    login_of,
    read_secret,
    read_state,
)
from busbar.exits import Failed, Misuse
from busbar.text import counted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from busbar.operations.restore import RestorePlan, Snapshot
    from busbar.operations.verify import Verified

Worker = Annotated[str, typer.Argument(metavar="HOST", help="Name of a worker.")]
_MIB = 1 << 20
COMMAND_SECONDS = 60


def verify(stack: Stack, project: Project = None, as_json: AsJson = False) -> None:
    """Compare hosts and cluster with the configuration: files, units, Nodes, labels, taints, charts.

    For a stack on another one's cluster it compares the objects of its charts, and asks whether it works.
    """
    from busbar.cli import operation
    from busbar.config.stackfile import stack_of

    path = find_file(stack, project)
    found = operation.verify(path)
    print_result({"stack": stack_of(path), **found.data()}, as_json, lambda: _show_differences(found))
    if found.drift:
        raise typer.Exit(1)


def _show_differences(found: Verified) -> None:
    rows = []
    for name, role in found.hosts:
        differences = [each for each in found.drift if each.host == name]
        states = [f"unknown: {each.what}" if each.kind == "unknown" else each.what for each in differences]
        rows += [(name, role, state) for state in states or ["as applied"]]
    print_table(("host", "role", "state"), rows)
    if found.drift:
        typer.echo(counted(len(found.drift), "difference"))
        for fix in found.fixes():
            typer.echo(f"Fix: {fix}")


def nodes(stack: Stack, project: Project = None, as_json: AsJson = False) -> None:
    """Check GPUs, PCIe links, HCAs and Nodes of all workers, at any time.

    It also names workers whose last measurement ran with few open files.

    Exit code 0: no errors, every Node Ready; 1: an error, or a Node that is not Ready or cannot be read.
    """
    from busbar.cli.before import show_hosts
    from busbar.config.stackfile import stack_of
    from busbar.operations.verify import few_open_files

    path = find_file(stack, project)
    found, name = operations_of(path).nodes(path), stack_of(path)
    measured = few_open_files(path.parent / ".busbar" / name, (host.pool for host in found.spec.hosts))
    found = replace(found, outcome=replace(found.outcome, findings=[*found.outcome.findings, *measured]))
    result = {"stack": name, **found.data()}
    print_result(result, as_json, lambda: show_hosts(found.spec, found.outcome, found.nodes))
    if not found.are_well:
        raise typer.Exit(1)


def drain(
    stack: Stack,
    host: Worker,
    reason: Annotated[
        str,
        typer.Option(metavar="TEXT", help="Why; kept on the Node, and shown by status, verify and nodes."),
    ] = "no reason given",
    end_jobs: Annotated[
        bool,
        typer.Option(
            "--end-jobs",
            help="Also evict pods that nothing starts again: those of jobs, and those without a controller.",
        ),
    ] = False,
    project: Project = None,
) -> None:
    """Cordon a worker for a repair, and wait until its pods have left.

    Disruption budgets are honoured. Pods of jobs and without a controller are waited for, those of DaemonSets
    stay. After pools.NAME.drain_timeout_seconds the command ends; the worker stays cordoned also then. No
    update undoes that, or waits for the worker. Run it again to go on, or to change the reason.
    """
    path = find_file(stack, project)
    typer.echo(operations_of(path).drain(path, host, reason, end_jobs=end_jobs))


def uncordon(stack: Stack, host: Worker, project: Project = None) -> None:
    """Let pods start again on a worker that `busbar drain` has taken out.

    First it must be Ready and offer the GPUs and HCAs of its pool; that is waited for, five minutes at most.
    One in quarantine comes back without them. A cordon of somebody else stays.
    """
    path = find_file(stack, project)
    typer.echo(operations_of(path).uncordon(path, host))


def snapshots(stack: Stack, as_json: AsJson = False, project: Project = None) -> None:
    """List the snapshots of etcd on the servers, and in the bucket while K3s is running; the newest first."""
    import asyncio

    from busbar.hosts.inventory import Inventory
    from busbar.hosts.remote import Hosts
    from busbar.operations.restore import ServerState, all_of, ask

    file, cluster = load_stack(stack, project)

    async def answers() -> list[ServerState | str]:
        async with Hosts.open(login_of(file, cluster.ssh)) as hosts:
            return await ask(hosts, Inventory.of(cluster).servers)

    states = asyncio.run(answers())
    missing = [each for each in states if isinstance(each, str)]
    found = all_of([each for each in states if isinstance(each, ServerState)])
    result = {"snapshots": [asdict(each) for each in found], "errors": missing}
    print_result(result, as_json, lambda: _show_snapshots(found))
    for text in missing:
        error(text)
    if missing:
        raise typer.Exit(1)


def restore(
    stack: Stack,
    snapshot: Annotated[
        str, typer.Option(help="Name as `busbar snapshots` lists it, or path of a file on a server.")
    ],
    s3: Annotated[bool, typer.Option("--s3", help="From the bucket (k3s.snapshots.s3), by name.")] = False,
    server: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Server to restore first; default: one that has the snapshot."),
    ] = None,
    project: Project = None,
    yes: Yes = False,
) -> None:
    """Replace everything in the cluster by a snapshot of etcd; the API is unavailable for minutes.

    Everything written since the snapshot is lost. Each server keeps its previous data in a folder that is
    printed. Refused while `busbar up` or `busbar destroy` is running. After an interruption: run it again.
    """
    import asyncio

    from busbar.hosts.inventory import Inventory
    from busbar.operations import lock
    from busbar.operations import restore as operation

    stopped = "; K3s may be stopped on servers. Fix: run the same command again"
    with when_interrupted(stopped):
        file, cluster = load_stack(stack, project)
        login, inventory = login_of(file, cluster.ssh), Inventory.of(cluster)

        def look() -> RestorePlan:
            return asyncio.run(operation.plan(inventory, login, snapshot, s3=s3, server=server))

        plan = look()
        plan.refuse_other(install_id(file))
        _explain(plan)
        confirm(yes)
        with lock.held(login, plan.servers, f"busbar restore {stack}", on_all=True):
            if not yes and look() != plan:
                what = "servers or snapshot have changed since they were shown; no changes made"
                raise Failed(what, "run it again: it shows what would be restored now")
            done = asyncio.run(operation.restore(plan, login, say))
    for host, folder in done.kept.items():
        typer.echo(f"old data: {host}:{folder} (delete it when it is no longer needed)")
    if done.waiting:
        error(f"restored; Nodes that are not Ready: {', '.join(done.waiting)}")

    verify(stack, project)
    if done.waiting:
        raise typer.Exit(1)


def _explain(plan: RestorePlan) -> None:
    snapshot = plan.snapshot
    known = f"{snapshot.bytes / _MIB:.1f} MiB, {snapshot.time}"
    what = known if snapshot.time else "not verified: K3s is not running"
    typer.echo(f"snapshot  {snapshot.name} ({snapshot.where}, {what})")
    typer.echo(f"restored  on {plan.first.name}; its current data is moved aside")
    others = ", ".join(each.name for each in plan.others)
    typer.echo(f"rejoin    {others or 'no other server'}, one at a time; their current data is moved aside")
    typer.echo(f"restart   the agents of {counted(len(plan.workers), 'worker')}; pods keep running")
    if plan.resumed:
        typer.echo("resumed   an unfinished restore; this one starts from the beginning")
    typer.echo("lost      everything that was written to the cluster since the snapshot")


def _show_snapshots(found: Sequence[Snapshot]) -> None:
    if not found:
        typer.echo("none; K3s takes one every 12 hours by default (k3s.snapshots)")
        return
    rows = [(each.name, each.where, f"{each.bytes / _MIB:.1f}", each.time) for each in found]
    print_table(("name", "where", "MiB", "time"), rows)


def support_bundle(
    stack: Stack,
    project: Project = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="File to write; default: ./busbar-support-STACK-TIME.tar.gz."),
    ] = None,
    preflight: Annotated[
        bool, typer.Option(help="Run preflight; without it the bundle has no facts of the hosts.")
    ] = True,
) -> None:
    """Write versions, findings, facts, logs and verdicts of a stack into a tar.gz, without secrets.

    It also works on a stack that is invalid or was never brought up.
    """
    from busbar.config.stackfile import stack_of
    from busbar.support.bundle import Bundle, Redactor

    path = find_file(stack, project)
    text = path.read_text(encoding="utf-8", errors="replace")
    name, project = stack_of(path), path.parent
    state = project / ".busbar" / name
    target = output or Path(f"busbar-support-{name}-{datetime.now(UTC):%Y%m%dT%H%M%SZ}.tar.gz")
    redactor = Redactor(_known_secrets(text, name, project, state))
    try:
        with Bundle(target, redactor) as bundle:
            bundle.add_json("versions.json", _versions(project))
            bundle.add_json("preflight.json", _preflight(path) if preflight else {"skipped": True})
            bundle.add_json("engine.json", _engine(name, project))
            bundle.add_files(state)
    except OSError as error:
        fail(f"{target} cannot be written: {error.strerror or error}", 1)
    typer.echo(f"{target}: secrets were replaced; host names and addresses not. Review it before sending")


def _known_secrets(text: str, stack: str, project: Path, state: Path) -> list[str]:
    """Values that must not be in the bundle, as far as they can be read here."""
    import yaml

    from busbar.config.stackfile import SECRETS
    from busbar.support.bundle import kubeconfig_secrets

    found: list[str] = []
    try:
        config = yaml.safe_load(text)["config"]
        entries = {str(key): value for key, value in config.items()}
    except (yaml.YAMLError, ValueError, LookupError, TypeError, AttributeError, RecursionError):
        entries = {}
    ssh: Any = None
    for key, value in entries.items():
        namespace, _, name = key.partition(":")
        if key == "busbar:cluster" or namespace == f"busbar-{name}":  # the configuration
            ssh = value.get("ssh") if isinstance(value, dict) else None
        elif name in SECRETS and value and not isinstance(value, dict):
            found += _leaves(str(value))
        elif name in SECRETS and value:
            try:
                found += _leaves(read_secret(stack, project, name, namespace=namespace))
            except SecretError:
                continue  # without the passphrase nothing here shows it in plain text
    key_file = ssh.get("key_file") if isinstance(ssh, dict) else None
    for file in filter(None, [key_file and project / Path(str(key_file)).expanduser(), state / "kubeconfig"]):
        try:
            content = file.read_text()
        except (OSError, UnicodeDecodeError):
            continue
        found += kubeconfig_secrets(content) if file.name == "kubeconfig" else [content]
    return found


def _leaves(text: str) -> list[str]:
    """A secret and, if it is JSON (registryCredentials), the texts in it."""

    def walk(value: Any) -> list[str]:
        if isinstance(value, dict):
            return [leaf for item in value.values() for leaf in walk(item)]
        return [value] if isinstance(value, str) else []

    try:
        return [text, *walk(json.loads(text))]
    except ValueError:
        return [text]


def _versions(project: Path) -> dict[str, Any]:
    import platform
    from importlib import metadata

    from busbar import release

    return {
        "busbar": release.line(),
        "python": platform.python_version(),
        "system": platform.platform(),
        "packages": {each.name: each.version for each in metadata.distributions()},
        "pulumi": _run("pulumi", "version"),
        "project_commit": _run("git", "-C", str(project), "rev-parse", "HEAD"),
    }


def _preflight(path: Path) -> dict[str, Any]:
    """Findings and facts of all hosts, or the reason why there are none."""
    from busbar.config import ConfigError

    try:
        _, outcome = operations_of(path).preflight(path)
    except ConfigError as error:
        return {"error": "the configuration is invalid", "findings": [*map(str, error.findings)]}
    except (ValueError, SecretError, Misuse) as error:
        return {"error": str(error)}
    return {
        "findings": [finding.data() for finding in outcome.findings],
        "facts": {name: dict(record.facts) for name, record in outcome.records.items()},
    }


def _engine(stack: str, project: Path) -> dict[str, Any]:
    from busbar.support.bundle import engine_state

    try:
        return engine_state(json.loads(read_state(stack, project)))
    except (SecretError, ValueError) as error:
        return {"error": str(error)}


def _run(*words: str) -> str:
    """The stdout of a command, or the reason why there is none."""
    import subprocess

    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=COMMAND_SECONDS, check=False)
    except OSError as error:
        return f"{words[0]} on PATH cannot be run: {error.strerror}"
    except subprocess.TimeoutExpired:
        return f"timed out after {COMMAND_SECONDS} s"
    return done.stdout.strip() if done.returncode == 0 else f"failed: {done.stderr.strip()}"

"""The commands before an update: init, check-config, schema, preflight, images, hosts keys."""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from busbar.cli.ending import show_findings
from busbar.cli.engine import KNOWN_HOSTS, PREVIOUS_RESULT, request
from busbar.cli.operation import operations_of
from busbar.cli.output import error, fail, print_result, print_table, print_text, progress
from busbar.cli.stackfile import (
    STACK_HELP,
    AsJson,
    Project,
    Stack,
    capability_of,
    find_file,
    login_of,
    stack_argument,
)
from busbar.exits import USAGE
from busbar.finding import STACK, Fix
from busbar.text import counted, listed

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from busbar.capability import Capability
    from busbar.config import Cluster
    from busbar.hosts.host_keys import Offer
    from busbar.hosts.inventory import Inventory
    from busbar.preflight.facts import HostRecord
    from busbar.preflight.spec import Spec
    from busbar.preflight.survey import Outcome


SITE = Path(__file__).resolve().parents[1] / "site"

_PROGRAM = '''"""The program of stacks.{name}, of the installed busbar."""

import runpy

runpy.run_module("stacks.{name}", run_name="__main__")
'''


def init(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The folder; it may exist.")],
    capability: Annotated[
        list[str] | None,
        typer.Option("--capability", metavar="NAME", help="Also DIR/NAME, a project on the cluster."),
    ] = None,
) -> None:
    """Make a site: Pulumi.yaml, a program, an example of a stack file with its schema, and a requirements.txt
    that pins this release.

    No file is overwritten.
    """
    from importlib.metadata import PackageNotFoundError

    from busbar.release import requirements, wheel

    try:
        files = {**_site(requirements()), **_of_capabilities(capability or ())}
    except PackageNotFoundError as error:
        fail(f"the package {error.name} is not installed. Fix: install busbar with its extra `stack`", USAGE)
    if existing := [name for name in files if (folder / name).exists()]:
        fail(f"{folder} has {', '.join(existing)}. Fix: name another folder, or move these files away", USAGE)
    for name, text in files.items():
        try:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(text)
        except OSError as error:
            fail(f"{folder / name} cannot be written: {error.strerror}. Fix: name another folder", USAGE)
        typer.echo(f"    {folder / name}")
    if (file := wheel()) and not (folder / file.name).exists():
        try:
            shutil.copy(file, folder)
            typer.echo(f"    {folder / file.name}")
        except OSError as error:
            progress(f"warning: {file} cannot be copied: {error.strerror}. Fix: put that wheel into {folder}")
    typer.echo(
        f"Next, in {folder}: python3 -m venv .venv && .venv/bin/pip install -r requirements.txt; "
        "copy Pulumi.h100.example.yaml to Pulumi.NAME.yaml and enter your hosts; busbar check-config NAME"
    )


def _site(requirements: list[str]) -> dict[str, str]:
    from busbar.config.stackfile import stack_schema

    copied = ("Pulumi.yaml", "__main__.py", "Pulumi.h100.example.yaml")
    return {
        **{name: (SITE / name).read_text() for name in copied},
        ".gitignore": (SITE / "gitignore").read_text(),
        "requirements.txt": "\n".join([*requirements, ""]),
        "schema/cluster.schema.json": json.dumps(stack_schema(), indent=2) + "\n",
    }


def _of_capabilities(names: list[str] | tuple[()]) -> dict[str, str]:
    """The projects of capabilities, which use the environment of the site."""
    from busbar.capability import FOLDER, capabilities

    known = [each.name for each in capabilities() if (FOLDER / each.name / "Pulumi.yaml").is_file()]
    files: dict[str, str] = {}
    for name in names:
        if name not in known:
            fail(f"--capability {name}: expected one of {', '.join(known)}", USAGE)
        source = FOLDER / name
        project = (source / "Pulumi.yaml").read_text()
        files[f"{name}/Pulumi.yaml"] = project.replace("../../.venv", "../.venv")
        files[f"{name}/__main__.py"] = _PROGRAM.format(name=name)
        for file in (source / "schema.json", *sorted(source.glob("Pulumi.*.example.yaml"))):
            files[f"{name}/{file.name}"] = file.read_text()
    return files


def schema(
    stack: Annotated[str | None, stack_argument(f"{STACK_HELP} Without it: the project here.")] = None,
    project: Project = None,
) -> None:
    """Print the JSON Schema of a stack file, for editors: of the cluster's project, or of a capability's."""
    from busbar.capability import of_project
    from busbar.config import stackfile
    from busbar.config.stackfile import stack_schema

    if stack:
        capability = capability_of(find_file(stack, project))
    else:
        name = stackfile.project_name(stackfile.project_folder(project, Path.cwd()))
        capability = of_project([name] if name else [])
    found = capability.stack_schema() if capability else stack_schema()
    typer.echo(json.dumps(found, indent=2))


def check_config(stack: Stack, project: Project = None) -> None:
    """Validate a stack's configuration, of any project of busbar; nothing is changed.

    In a site, the files of this stack in the projects of its folders are validated too.
    """
    from busbar.capability import of_project
    from busbar.config import ConfigError, stackfile

    folder = None if stack.endswith((".yaml", ".yml")) else stackfile.project_folder(project, Path.cwd())
    below = sorted(folder.glob(f"*/Pulumi.{stack.rpartition('/')[2]}.yaml")) if folder else []
    projects = {path: stackfile.project_name(path.parent) or "" for path in below}
    found = {path: known for path, name in projects.items() if (known := of_project([name]))}
    checked: dict[Path, Capability | None] = {}
    try:
        path = find_file(stack, project)
        checked[path] = capability_of(path)
    except stackfile.NoStackFileError:
        if not found:
            raise
    wrong = []
    for path, capability in {**checked, **found}.items():
        file = f"{path.parent.name}/{path.name}" if path in found else path.name
        try:
            check(path, capability, file)
        except ConfigError as error:
            wrong.append(show_findings(path, error.findings, file))
    if wrong:
        fail("; ".join(wrong), USAGE)


def check(path: Path, capability: Capability | None, file: str) -> None:
    """Print a summary of a stack file, shown as `file`, and its warnings. Raises ConfigError."""
    from busbar.config import stackfile, untested_versions, warnings
    from busbar.config.engine_yaml import located

    if capability:
        lines, found = capability.describe(path)
    else:
        cluster = stackfile.read(path).cluster()
        lines, found = describe(cluster), [*untested_versions(cluster), *warnings(cluster)]
    typer.echo("\n".join([f"OK  {file}", *(f"    {line}" for line in lines)]))
    for note in located(path, found, file):
        typer.echo(f"    warning: {note}")


def describe(cluster: Cluster) -> list[str]:
    """The configuration in a few lines: hosts by role, pools, versions, and the expected bandwidth."""
    from busbar import versions
    from busbar.hosts.inventory import Inventory
    from busbar.hosts.nfs import export_of

    inventory = Inventory.of(cluster)
    lines = [f"cluster {cluster.name}, API at {inventory.api_endpoint}"]
    for title, hosts in (
        ("load balancers", inventory.load_balancers),
        ("servers", inventory.servers),
        ("workers", inventory.workers),
    ):
        lines.append(f"{title}: {len(hosts)} ({listed([f'{host.name} {host.address}' for host in hosts])})")
    if export := export_of(inventory):
        lines.append(
            f"NFS server: {export.host.name} exports {export.host.address}:{export.folder} to the workers"
        )
    for name, pool in cluster.pools.items():
        has = f"{counted(pool.gpus, 'GPU')} and {counted(pool.rails, 'rail')} per worker"
        lines.append(
            f"pool {name}: {counted(len(inventory.workers_of(name)), 'worker')}, {has}, "
            f"{pool.rate_gbps:g} Gb/s per rail ({pool.link_layer})"
        )
    operators = {"GPU Operator": cluster.gpu_operator, "Network Operator": cluster.network_operator}
    installed = {title: each.version for title, each in operators.items() if each.enabled}
    is_set = len(installed) == len(operators)
    known = versions.known_set(cluster.k3s.version, *installed.values()) if is_set else None
    named = [f"{title} {installed[title]}" if title in installed else f"no {title}" for title in operators]
    lines.append(
        ", ".join([f"K3s {cluster.k3s.version}", *named])
        + (f" (set {known.name}: {known.note})" if known else "")
    )
    return [*lines, *_measurement(cluster, inventory)]


def _measurement(cluster: Cluster, inventory: Inventory) -> list[str]:
    """Lines about the measurement of each pool, and the bandwidth that it must reach."""
    from busbar.collect.spec import expectation
    from busbar.judge.nccl.expected.expectation import Expectation
    from busbar.manifests.nccljob import resolve

    if not cluster.validation.enabled:
        return []
    lines: list[str] = []
    for pool in cluster.pools:
        job = resolve(cluster, pool, [host.name for host in inventory.usable_of(pool)])
        of_pool = expectation(cluster.validation_of(pool), job, "job")
        wanted = Expectation.model_validate(of_pool)
        for collective in job.collectives:
            bounds = wanted.bounds(collective)
            number = (
                f"expected {bounds.expected:.4g} GB/s, floor {bounds.floor:.4g} GB/s"
                if bounds.expected is not None and bounds.floor is not None
                else f"no expected bandwidth ({bounds.reasoning[-1]})"
            )
            lines.append(f"validation of {pool}: {collective} over {job.transport}, {number}")
    return lines


def preflight(
    stack: Annotated[str | None, stack_argument(f"{STACK_HELP} Without it a spec comes on stdin.")] = None,
    project: Project = None,
    as_json: AsJson = False,
) -> None:
    """Check all hosts in parallel over SSH and report every finding with its fix; nothing is changed."""
    import asyncio

    from busbar.config.stackfile import stack_of
    from busbar.preflight import facts, output
    from busbar.preflight.spec import Spec
    from busbar.preflight.survey import survey

    if stack is None and sys.stdin.isatty():
        fail("Missing argument 'STACK'. Fix: see busbar preflight --help", USAGE)
    if not stack:
        spec = request(Spec)
        previous = previous_result()
        outcome = asyncio.run(survey(spec, previous, deliver=True))
        end_preflight(spec, outcome, previous)
        typer.echo(facts.pack(outcome.records))
        return
    path = find_file(stack, project)
    spec, outcome = operations_of(path).preflight(path)
    result = {"stack": stack_of(path), **output.data(spec, outcome)}
    print_result(result, as_json, lambda: show_hosts(spec, outcome))
    end_preflight(spec, outcome, listed=False)


def previous_result() -> Mapping[str, HostRecord]:
    """The records of the last update, from the environment; empty, with a warning, if they cannot be read."""
    from busbar.preflight import facts

    if text := os.environ.get(PREVIOUS_RESULT) or os.environ.get(KNOWN_HOSTS):
        try:
            return facts.read(text)
        except ValueError as unreadable:
            # Without the previous result all hosts are checked again.
            progress(f"warning: the previous result is not used: {unreadable}")
    return {}


def end_preflight(
    spec: Spec, outcome: Outcome, previous: Mapping[str, HostRecord] | None = None, *, listed: bool = True
) -> None:
    """Print the findings, if `listed`, and the summary. Ends the command with 1 if a host is not ready.

    Warnings that the update with the result `previous` has printed are only counted.
    """
    from busbar.preflight.facts import was_printed
    from busbar.preflight.output import lines, summary

    new = [each for each in outcome.findings if not was_printed(each, previous or {})]
    for kind, text in lines(new) if listed else ():
        progress(f"{kind}: {text}")
    if earlier := len(outcome.findings) - len(new):
        again = Fix("to see them", ("preflight", STACK))
        progress(f"{counted(earlier, 'warning')} as in the last update; {again}")
    if outcome.errors:
        fail(summary(spec, outcome), 1)
    progress(summary(spec, outcome))


def show_hosts(spec: Spec, outcome: Outcome, nodes: Mapping[str, str] | None = None) -> None:
    """Print the table of the hosts, with the states of their Nodes if given, and the findings."""
    from rich.console import Console

    from busbar.preflight.output import lines, states, table

    console = Console()
    made = table(spec, outcome, nodes)
    wide = console.options.update_width(10_000)
    if console.measure(made, options=wide).maximum > console.width:
        for column in made.columns:
            column.width = max(console.measure(each).minimum for each in (column.header, *column.cells))
    # A terminal wraps a line that is too long; rich would break words.
    console.width = max(console.width, console.measure(made, options=wide).maximum)
    console.print(made)
    for text in states(nodes or {}):
        console.print("Node", text, markup=False, highlight=False, soft_wrap=True)
    for level, text in lines(outcome.findings):
        console.print(level, style="red" if level == "error" else "yellow", end=" ")
        console.print(text, markup=False, highlight=False, soft_wrap=True)


def images(
    stack: Stack,
    project: Project = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of lines.")] = False,
) -> None:
    """List every container image, archive, binary, chart and package that a stack needs; nothing is fetched.

    One line each: kind, name, and where and when this version was run before its release. Images of NVIDIA's
    operators are read from their charts, where these are on this machine.
    """
    from busbar.config.stackfile import stack_of

    path = find_file(stack, project)
    found = operations_of(path).needs(path)
    width = max((len(each.name) for each in found.artifacts), default=0)
    lines = "\n".join(f"{each.kind:<8}{each.name:<{width}}  {each.run}" for each in found.artifacts)
    print_result({"stack": stack_of(path), **found.data()}, as_json, lambda: print_text(lines))
    for each in found.unknown:
        progress(f"not known: {each}")
    if found.unknown:
        fail("the list is not complete", 1)


def keys(stack: Stack, project: Project = None, as_json: AsJson = False) -> None:
    """Fetch the SSH host keys of all hosts, to compare them with the consoles and to pin them.

    Nothing is written: keys that are missing in the stack file are printed as the lines to add to it. With a
    bastion hosts are asked through it, once its own key is pinned.
    """
    import asyncio

    from busbar.config.cluster import has_list
    from busbar.hosts import host_keys

    path = find_file(stack, project)
    file, (ssh, offers) = operations_of(path).host_keys(path)
    offers = asyncio.run(host_keys.fetch(offers, lambda: login_of(file, ssh)))
    rows = [_row(each) for each in offers]
    # A key is long, and is printed below.
    cells = [[str(each or "-") for each in [*row.values()][:-1]] for row in rows]
    print_result({"stack": file.stack, "hosts": rows}, as_json, lambda: print_table((), cells))
    to_pin = [each for each in offers if each.offered and each.pinned is None]
    if to_pin and not as_json:
        progress(
            "\nCompare each with its host's console: ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub\n"
            f"Then add to {'the list of hosts' if has_list(file.data) else path.name}:\n"
        )
        print_text("\n".join(f"host_key: {each.offered}   # {each.path} ({each.name})" for each in to_pin))
    for each in offers:
        if problem := _problem(each, offers):
            error(f"{each.path} ({each.name}): {problem}")
    bad = [each for each in offers if each.problem or each.has_changed]
    if bad:
        fail(f"{len(bad)} of {len(offers)} host keys are not as pinned, or not known", 1)


def _row(offer: Offer) -> dict[str, Any]:
    from busbar.hosts.host_keys import fingerprint

    state = "CHANGED" if offer.has_changed else "pinned" if offer.pinned else "not pinned"
    return {
        "name": offer.name,
        "address": offer.host.address,
        "fingerprint": fingerprint(offer.offered) if offer.offered else None,
        "state": state if offer.offered else "no key",
        "host_key": offer.offered,
    }


def _problem(offer: Offer, offers: Sequence[Offer]) -> str | None:
    """The error about the key of a host, with the fix; None without one."""
    from busbar.hosts.host_keys import fingerprint

    if not offer.has_changed or not offer.offered or not offer.pinned:
        return offer.problem
    others = [each.name for each in offers if each.pinned == offer.offered]
    if others:
        return f"{offer.host.address} has the host key of {others[0]}. Fix: exchange addresses or host keys"
    return (
        f"{offer.host.address} has another host key than the pinned one (possible man-in-the-middle): got "
        f"{fingerprint(offer.offered)}, pinned {fingerprint(offer.pinned)}. Fix: if the host was "
        f"reinstalled, compare the key on its console, and set host_key: {offer.offered}"
    )

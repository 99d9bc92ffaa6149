"""`busbar diagnose`: which node, rail or switch of a pool is slow."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from stat import S_IMODE
from typing import TYPE_CHECKING, Annotated

import typer

from busbar.cli.ending import end, when_interrupted
from busbar.cli.nccl import value
from busbar.cli.output import fail, print_result, print_table, print_text, progress
from busbar.cli.stackfile import AsJson, Project, Stack, capability_of, cluster_api, find_file
from busbar.exits import FAILED, NO_VERDICT, USAGE, Failed, NoVerdict
from busbar.fabric.commands.nccl import options_of
from busbar.finding import shown
from busbar.text import counted, listed
from busbar.writing import write_whole

if TYPE_CHECKING:
    from busbar.config.cluster import Worker
    from busbar.config.stackfile import StackFile
    from busbar.fabric.diagnosis import Backend, Findings, Scope, State
    from busbar.fabric.paths import Found
    from busbar.hosts.inventory import Host
    from busbar.hosts.remote import Say
    from busbar.kube.client import Api
    from busbar.preflight.spec import Spec

FOLDER = "diagnosis"
KEPT = ". What is known is kept: the same command continues"


def diagnose(
    stack: Stack,
    project: Project = None,
    pool: Annotated[
        str | None, value(None, "POOL", "Pool; needed where there are several, without --nodes.")
    ] = None,
    nodes: Annotated[
        str | None,
        value(None, "A,B,...", "Only these workers, also those in quarantine; default: all that are not."),
    ] = None,
    as_json: AsJson = False,
    quarantine: Annotated[
        bool,
        typer.Option("--quarantine", help="Write `quarantine` into the stack file for nodes that are named."),
    ] = False,
    release: Annotated[
        bool,
        typer.Option(
            "--release",
            help="Have three healthy partners judge workers in quarantine (those of --nodes, else those that "
            "--quarantine put there), and end it in the stack file for those that pass.",
        ),
    ] = False,
    paths: Annotated[
        bool,
        typer.Option(
            "--paths",
            help="In place of NCCL, measure each rail with ib_write_bw on the hosts: alone with the memory "
            "of the host and of a GPU, then with a partner.",
        ),
    ] = False,
) -> None:
    """Find the slow node, rail or switch of a pool by short NCCL runs on one or two nodes each.

    A few jobs run, which hold the GPUs of the nodes that they measure; none is left at the end. Results are
    kept in .busbar/STACK/POOL/diagnosis: after an interruption, or at the end of its time, the same command
    continues.

    With --paths it logs in to the workers instead, and nothing is kept.

    Exit code 0: all nodes were measured and nothing is slow; 1: something is named; 2: no verdict, as where
    a node could not be measured; 64: bad usage; 130: interrupted.
    """
    if quarantine and release:
        fail("--quarantine and --release exclude each other", USAGE)
    path = find_file(stack, project)
    capability = capability_of(path)
    if paths:
        if quarantine or release:
            fail("--paths excludes --quarantine and --release", USAGE)
        of_site = capability.on_hosts(path).paths if capability else _paths
        raise typer.Exit(of_site(path, pool, nodes, as_json=as_json))
    on_site = capability.on_hosts(path).diagnose if capability else _diagnose
    code = on_site(path, pool, nodes, as_json=as_json, quarantine=quarantine, release=release)
    raise typer.Exit(code)


def _diagnose(
    path: Path,
    pool: str | None,
    nodes: str | None,
    *,
    as_json: bool = False,
    quarantine: bool = False,
    release: bool = False,
) -> int:
    """Find what is slow in a pool of a K3s cluster, and print it. Returns the exit code."""
    from busbar.config import stackfile
    from busbar.fabric.diagnosis.kubernetes import InCluster, scope_of
    from busbar.fabric.diagnosis.quarantine import reasons, to_release, why_not, with_partners
    from busbar.hosts.inventory import Inventory
    from busbar.kube.wait import SystemClock

    file = stackfile.read(path)
    cluster = file.cluster()
    inventory = Inventory.of(cluster)
    chosen, named = one_pool([*cluster.pools], inventory.workers, pool, nodes)
    wanted = [host.name for host in inventory.usable_of(chosen)] if named is None else named
    judged = to_release(inventory, chosen, named) if release else []
    if release and not judged:
        fail(f"no worker of pool {chosen} to release. Fix: --nodes A, of those in quarantine", USAGE)
    if release:
        wanted = with_partners(inventory, chosen, judged)
    if not wanted:
        fail(f"pool {chosen} has no workers to diagnose: all are in quarantine. Fix: --nodes A,B", USAGE)
    folder = file.project / ".busbar" / file.stack / chosen / FOLDER
    scope = scope_of(inventory, chosen, wanted, folder, judged)
    api, options = cluster_api(file, cluster), options_of(file)
    backend = InCluster(api, inventory, chosen, file.project, SystemClock(), progress, options=options)
    with when_interrupted(KEPT):
        state, found = run(backend, scope, file.stack, as_json=as_json)
    if quarantine:
        edit_quarantines(file, {node: (None, why) for node, why in reasons(found, cluster).items()})
    kept = {node: why for node in judged if (why := why_not(state, found, node))}
    for node, why in kept.items():
        progress(f"{node} stays in quarantine: {why}")
    edit_quarantines(file, {node: (cluster.quarantine[node], None) for node in judged if node not in kept})
    return found.exit_code or (NO_VERDICT if kept else 0)


def _paths(path: Path, pool: str | None, nodes: str | None, *, as_json: bool) -> int:
    """Measure the paths of a pool of a K3s cluster, and print them. Returns the exit code."""
    from busbar.cli.k3s import spec_of_stack
    from busbar.config import stackfile
    from busbar.hosts.inventory import Inventory

    file = stackfile.read(path)
    cluster = file.cluster()
    inventory = Inventory.of(cluster)
    chosen, named = one_pool([*cluster.pools], inventory.workers, pool, nodes)
    names = [host.name for host in inventory.usable_of(chosen)] if named is None else named
    held = pods_on(names, cluster_api(file, cluster))
    spec = spec_of_stack(file, cluster)
    image = cluster.validation_of(chosen).image
    found = measure_paths(spec, names, cluster.hosts.workers, held, image=image)
    return show_paths(file.stack, chosen, found, as_json)


def pods_on(names: Sequence[str], api: Api) -> list[str]:
    """The pods that hold GPUs or HCAs of these workers. Raises ApiError."""
    from busbar.kube.gpus import active_pods, held_by

    held = held_by(active_pods(api))
    found = [f"{pod} on {name}" for name in names for by in held.get(name, {}).values() for pod in by]
    return [*dict.fromkeys(found)]


def measure_paths(
    spec: Spec,
    names: Sequence[str],
    places: Iterable[Worker],
    held: Sequence[str],
    say: Say = progress,
    *,
    image: str = "",
) -> Found:
    """Measure the paths of these workers over SSH. `held`: what runs on them; `image`: as in paths.measure.

    Raises NoVerdict while something does, and ScriptError for the bastion.
    """
    from busbar.fabric import paths
    from busbar.fabric.diagnosis.stages import places_of
    from busbar.hosts.remote import Hosts

    if held:
        raise NoVerdict(f"GPUs or HCAs are in use: {listed(held)}", "wait for these jobs, or end them")
    workers = {host.name: host for host in spec.hosts if host.name in names}
    rounds = paths.rounds_of(names, places_of(places))
    rails = max((spec.requirements_of(host).rails for host in workers.values()), default=0)
    say(paths.plan_text(len(workers), rails, rounds))

    async def measure() -> Found:
        async with Hosts.open(spec.login, say) as hosts:
            return await paths.measure(hosts, workers, spec.requirements_of, rounds, say, image)

    return asyncio.run(measure())


def show_paths(stack: str, pool: str, found: Found, as_json: bool) -> int:
    """Print the paths that are slow, and what was not run. Returns the exit code."""
    for why in found.not_run:
        progress(f"not run: {why}")
    result = {
        "stack": stack,
        "pool": pool,
        "rows": [asdict(row) for row in found.rows],
        "paths": [each.model_dump() for each in found.paths],
        "not_run": found.not_run,
    }
    lines = [
        f"{row.path}: {row.measured}, expected {row.expected}\n  points to {row.points_to}"
        for row in found.rows
    ]
    measured, slow = counted(len(found.paths), "path"), len(found.rows)
    lines.append(f"{measured} measured, {slow} slow, {len(found.not_run)} not run")
    print_result(result, as_json, lambda: print_text("\n".join(lines)))
    return found.exit_code


def edit_quarantines(
    file: StackFile, changes: Mapping[str, tuple[str | None, str | None]], **where: str
) -> None:
    """Write quarantines into the stack file: worker -> the reason that it had, and the new one, or None.

    `where`: as `quarantine.edit`.
    """
    from busbar.config import ConfigError
    from busbar.config.engine_yaml import NotYaml
    from busbar.fabric.diagnosis.quarantine import edit

    before = text = file.path.read_text(encoding="utf-8")
    try:
        # Somebody may have edited the file during the diagnosis.
        stays = [name for name, (was, _) in changes.items() if edit(text, name, was, **where) != text]
        for worker, (_, reason) in changes.items():
            text = text if worker in stays else edit(text, worker, reason, **where)
    except (ConfigError, NotYaml) as error:
        fail(f"{file.path.name}: {error}", FAILED)
    for worker, (_, reason) in changes.items():
        what = f"quarantine: {reason}" if reason else "quarantine ended"
        what = "its quarantine was changed meanwhile, and stays" if worker in stays else what
        progress(f"{file.path.name}: {worker}: {what}")
    if text != before:
        path = file.path.resolve()
        write_whole(path, text, S_IMODE(path.stat().st_mode))
        progress(f"Next: busbar preview {shown(file.stack)}, then busbar up {shown(file.stack)}")


def run(backend: Backend, scope: Scope, stack: str, *, as_json: bool = False) -> tuple[State, Findings]:
    """Run or continue a diagnosis, and print what it finds."""
    from busbar.fabric.diagnosis import Diagnosis, findings_of
    from busbar.fabric.diagnosis.findings import COLUMNS
    from busbar.kube.wait import SystemClock

    state = Diagnosis(backend, scope, SystemClock(), progress).run()
    found = findings_of(state, scope)
    if as_json:
        print_text(found.as_json(stack, state, scope))
    else:
        if found.rows:
            print_table(COLUMNS, [row.texts for row in found.rows])
        print_text("\n".join(found.lines()))
    return state, found


def after_failed_gate(path: Path, say: Callable[[str], None]) -> None:
    """Print the command, and diagnose the pools that did not pass if `validation.diagnose.when` says so.

    Another program that makes a Cluster has no `busbar:cluster` in its file, so nothing can be diagnosed. For
    a stack of a capability only the command is printed.
    """
    from busbar.config import ConfigError, stackfile
    from busbar.judge.archive import Archive

    stack = shown(stackfile.stack_of(path))
    command = f"busbar diagnose {stack}"
    finds = "finds which node, rail or switch is slow"
    advice = f"`{command}` {finds}, `{command} --paths` measures each rail without NCCL."
    try:
        if capability_of(path):
            say(advice)
            return
        if stackfile.written(path, f"{stackfile.PROJECT}:{stackfile.KEY}") is None:
            return
        file = stackfile.read(path)
        cluster = file.cluster()
    except ConfigError:
        why = f"{path.name} has changed since the update began and is not valid"
        say(f"no diagnosis, because {why}. Fix: `busbar check-config {stack}`, correct it, then `{command}`")
        return
    say(advice.replace(command, f"{command} --pool POOL") if len(cluster.pools) > 1 else advice)
    for pool in cluster.pools:
        verdict = Archive(file.project / ".busbar" / file.stack / pool).verdict() or {}
        if cluster.validation_of(pool).diagnose.when == "on_failure" and verdict.get("passed") is False:
            # The diagnosis has printed why there is no verdict; the update has failed for another reason.
            try:
                _diagnose(path, pool, None)
            except (typer.Exit, Failed, KeyboardInterrupt) as error:
                end(error)


def one_pool(
    pools: Sequence[str], workers: Sequence[Host], pool: str | None, nodes: str | None
) -> tuple[str, list[str] | None]:
    """The pool, and the workers that were asked for; None: all of it. Bad usage ends with 64."""
    from busbar.fabric.commands.measure import asked

    found = asked(pools, workers, pool, nodes)
    if len(found) > 1:
        fail(f"the stack has the pools {', '.join(found)}. Fix: --pool NAME", USAGE)
    [chosen] = found.items()
    return chosen

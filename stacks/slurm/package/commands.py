"""`busbar slurm`: the configuration of stacks/slurm, its hosts, and the measurement."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import typer

from busbar.cli.operation import errors_end, request
from busbar.cli.output import USAGE, progress
from busbar.cli.stackfile import AsJson, Project, Stack, find_file, findings_end_the_command, login_by

if TYPE_CHECKING:
    from pathlib import Path

    from busbar.config.stackfile import StackFile
    from stacks.slurm.package.config import Slurm


def register(group: typer.Typer) -> None:
    """Add the commands to `busbar slurm`."""
    group.command("check-config")(check_config)
    group.command("validate")(validate)
    group.command("verify")(verify)
    group.command("preflight", hidden=True)(preflight)
    group.command("collect", hidden=True)(collect)


def check_config(stack: Stack, project: Project = None) -> None:
    """Validate a stack's configuration; nothing is changed.

    Exit code 0: valid; 1: errors; 64: no such stack.
    """
    from busbar.config import validation_checks

    slurm, file = _open(stack, project)
    typer.echo(f"OK  {file.path.name}")
    for line in _describe(slurm):
        typer.echo(f"    {line}")
    for text in validation_checks.warnings(slurm):
        progress(f"warning: {text}")


def _describe(slurm: Slurm) -> Iterator[str]:
    """The configuration in a few lines."""
    from stacks.slurm.package import render

    login = ", ".join(host.name for host in slurm.hosts.login) or "none"
    yield f"cluster {slurm.name}: controller {slurm.hosts.controller.name}, login {login}"
    for name, pool in slurm.pools.items():
        hosts = slurm.workers_of(name)
        yield (
            f"pool {name}: {len(hosts)} compute hosts, {render.gres(slurm, hosts[0])}, {pool.rails} rails of "
            f"{pool.rate_gbps:g} Gb/s, measured in partition {slurm.partition_of(name)}"
        )
    partitions = (f"{name} ({', '.join(each.pools)})" for name, each in slurm.partitions_or_default.items())
    yield f"partitions: {', '.join(partitions)}; topology: {render.topology_plugin(slurm) or 'none'}"
    accounting = "slurmdbd and MariaDB" if slurm.accounting.enabled else "none"
    yield f"packages: {slurm.packages}; accounting: {accounting}"
    yield "measured: " + (", ".join(slurm.validation.collectives) if slurm.validation.enabled else "nothing")


def validate(stack: Stack, project: Project = None) -> None:
    """Measure every pool of a running cluster now, without an update; the stack's outputs stay.

    Log, verdict and report are kept in .busbar/STACK/POOL/validate beside the stack file.

    Exit code 0: pass; 1: fail, or hosts are not ready; 2: no verdict because evidence is missing, or hosts
    were not measured that are not in quarantine, and validation.min_nodes_fraction is not set; 64: bad usage.
    """
    import asyncio
    from datetime import UTC, datetime

    from rich.console import Console

    from busbar.cli.preflight import end
    from busbar.kube.wait import SystemClock
    from stacks.slurm.package import config, job, outputs, preflight
    from stacks.slurm.package.measure import MeasureSpec
    from stacks.slurm.package.measure import collect as run
    from stacks.slurm.package.summary import summary as tables

    slurm, file = _open(stack, project, invalid=USAGE)
    with errors_end(interrupted="; the job is cancelled"):
        login = login_by(file, slurm.ssh, config.PROJECT)
        asked = {**preflight.spec_of(slurm), "login": login.model_dump()}
        spec = preflight.Spec.model_validate(asked)
        outcome = asyncio.run(preflight.survey(spec, {}))
        end(spec, outcome)
        facts = {host: record.facts for host, record in outcome.records.items()}
        results = {}
        for pool in slurm.pools:
            folder = str(file.project / ".busbar" / file.stack / pool / "validate")
            now = datetime.now(UTC).isoformat()
            request = job.measure_spec(slurm, pool, facts, folder, again=now)
            measured = MeasureSpec.model_validate({**request, "login": login})
            results[pool] = run(measured, SystemClock(), progress)
    made = outputs.build_outputs(slurm, facts, results)
    Console().print(tables(made))
    verdicts = {each["verdict"] for each in results.values()}
    raise typer.Exit(1 if "fail" in verdicts else 0 if made["slurm_nccl_passed"] else 2)


def verify(
    stack: Stack,
    project: Project = None,
    as_json: AsJson = False,
) -> None:
    """Compare all hosts with what the last update applied, and list nodes that start no jobs.

    Exit code 0: nothing differs; 1: something differs, or could not be verified; 64: no such stack.
    """
    import asyncio

    from busbar.cli.verify import end
    from stacks.slurm.package import verify as operation
    from stacks.slurm.package.config import PROJECT
    from stacks.slurm.package.preflight import hosts_of

    slurm, file = _open(stack, project)
    with errors_end():
        found = asyncio.run(operation.verify(slurm, login_by(file, slurm.ssh, PROJECT)))
    roles = {slurm.hosts.controller.name: "controller"} | {host.name: "login" for host in slurm.hosts.login}
    rows = [(host.name, roles.get(host.name, "compute")) for host in hosts_of(slurm)]
    end(file.stack, rows, found, as_json=as_json, command="busbar slurm verify", resume=operation.RESUME)


def _open(stack: str, project: Path | None, invalid: int = 1) -> tuple[Slurm, StackFile]:
    """The configuration of a stack, and its file."""
    from stacks.slurm.package import config

    path = find_file(stack, project)
    with findings_end_the_command(path, invalid):
        return config.read(path)


def preflight() -> None:
    """Check all hosts in parallel; the spec is JSON on stdin, the previous result in the environment.

    Prints what was found. Exit code 0: all hosts are ready; 1: findings; 64: no spec on stdin.
    """
    import asyncio

    from busbar.cli.preflight import end, previous_result
    from busbar.preflight import facts
    from stacks.slurm.package.preflight import Spec, survey

    spec = request(Spec)
    with errors_end():
        outcome = asyncio.run(survey(spec, previous_result()))
    end(spec, outcome)
    typer.echo(facts.pack(outcome.records))


def collect() -> None:
    """Measure a pool by a job of Slurm and judge its log; the request is JSON on stdin.

    stdin: stacks.slurm.package.measure.MeasureSpec. Prints the verdict in short as JSON
    (busbar.outputs.pool.summarize). Exit code 0 for any verdict; 1 where no key or bastion can be used, 64
    for a request that is not valid. The log, the whole verdict and the report are written to `folder`.
    """
    import json
    import signal

    from busbar.kube.wait import SystemClock
    from stacks.slurm.package.measure import MeasureSpec
    from stacks.slurm.package.measure import collect as run

    # On SIGTERM, the command cancels its job.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    spec = request(MeasureSpec)
    with errors_end(interrupted="; the job is cancelled"):
        found = run(spec, SystemClock(), progress)
    typer.echo(json.dumps(found, sort_keys=True, separators=(",", ":")))

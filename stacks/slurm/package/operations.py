"""The commands of the core on the hosts of a stack (busbar.cli.operation.Operations)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from busbar.cli.preflight import install_id
from busbar.cli.stackfile import login_by
from busbar.cli.verify import end
from busbar.config import Ssh, stackfile
from busbar.config.stackfile import StackFile
from busbar.hosts.finding import Finding
from busbar.hosts.host_keys import Offer, listed
from busbar.hosts.login import Login
from busbar.hosts.remote import Hosts, ScriptError, UnreachableError
from busbar.operations.node_check import UNKNOWN, Workers
from busbar.preflight.survey import Outcome
from stacks.slurm.package import config
from stacks.slurm.package import verify as drift
from stacks.slurm.package.config import Slurm
from stacks.slurm.package.preflight import Spec, hosts_of, spec_of, survey
from stacks.slurm.package.status import why_unusable

Answer = TypeVar("Answer")

ROLES = {"controller": "lb", "login": "lb", "compute": "worker"}


def verify(path: Path, as_json: bool) -> None:
    """Compare all hosts with what the last update applied, and list nodes that start no jobs."""
    slurm, file = config.read(path)
    found = asyncio.run(drift.verify(slurm, login_by(file, slurm.ssh)))
    roles = {slurm.hosts.controller.name: "controller"} | {host.name: "login" for host in slurm.hosts.login}
    rows = [(host.name, roles.get(host.name, "compute")) for host in hosts_of(slurm)]
    end(file.stack, rows, found, as_json=as_json, resume=drift.RESUME)


def host_keys(path: Path) -> tuple[StackFile, tuple[Ssh, list[Offer]]]:
    """The file, whose other sections may be invalid, and its hosts."""
    file = stackfile.read(path, config.PROJECT, config.KEY, config.SECRETS)
    return file, listed(file.data, config.Hosts, ROLES)


def preflight(path: Path) -> tuple[Spec, Outcome]:
    """Query all hosts; nothing is changed."""
    spec = _spec(*config.read(path))
    return spec, asyncio.run(survey(spec, {}))


def nodes(path: Path) -> Workers:
    """Query the compute hosts, and slurmctld for the states of their nodes."""
    slurm, file = config.read(path)
    asked = _spec(slurm, file)
    spec = asked.model_copy(update={"hosts": tuple(host for host in asked.hosts if host.role == "worker")})
    outcome = asyncio.run(survey(spec, {}))
    try:
        found = _ask(spec.login, lambda hosts: drift.read_nodes(hosts, asked.hosts[0]))
    except (ScriptError, UnreachableError) as error:
        what = f"slurmctld cannot be asked: {error}"
        problem = Finding(slurm.hosts.controller.name, "error", what, "busbar verify tells more")
        outcome = replace(outcome, findings=[*outcome.findings, problem])
        return Workers(spec, outcome, {host.name: UNKNOWN for host in spec.hosts})
    bad = {host.name: why_unusable(found.get(host.name)) for host in spec.hosts}
    states = {name: why or found[name]["state"] for name, why in bad.items()}
    return Workers(spec, outcome, states, [states[name] for name, why in bad.items() if not why])


def _ask(login: Login, ask: Callable[[Hosts], Coroutine[Any, Any, Answer]]) -> Answer:
    """The answer of one query. Raises ScriptError, UnreachableError, and ValueError for an unusable key."""

    async def answer() -> Answer:
        async with Hosts.open(login) as hosts:
            return await ask(hosts)

    return asyncio.run(answer())


def _spec(slurm: Slurm, file: StackFile) -> Spec:
    """The spec of preflight. Raises SecretError."""
    login = login_by(file, slurm.ssh).model_dump()
    return Spec.model_validate({**spec_of(slurm), "login": login, "install_id": install_id(file)})

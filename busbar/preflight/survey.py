"""The whole preflight: query all hosts in parallel, check their reports, and collect the records."""

from __future__ import annotations

import asyncio
import math
import os
import time
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import urlsplit

from busbar.finding import Finding, Kind
from busbar.hosts.inventory import API_PORT, Host, Login
from busbar.hosts.remote import GRACE_SECONDS, Hosts, ScriptError, on_each
from busbar.hosts.ssh import CONNECT_SECONDS
from busbar.preflight import facts
from busbar.preflight.cross_checks import check_across_hosts
from busbar.preflight.facts import HostRecord
from busbar.preflight.host_checks import check_host, host_facts
from busbar.preflight.network_checks import NODE_ROLES
from busbar.preflight.nfs_checks import check_nfs
from busbar.preflight.spec import SCRIPT_SECONDS, Answer, Spec, query

ROUTE_SECONDS = 10
THIS_MACHINE = "this machine"
_FIX = f"open TCP port {API_PORT} from this machine to the load balancers, or to api_endpoint (firewalls)"
_BASTION_FIX = (
    "the bastion carries SSH only: set ssh.bastion.api_proxy_url to an HTTP proxy in that network (CONNECT "
    f"to port {API_PORT}), route this machine there, or run busbar on the bastion"
)
_DEFAULT_PORTS = {"http": 80, "https": 443}


async def check_api_route(spec: Spec, answered: Collection[str], *, with_k3s: bool = False) -> list[Finding]:
    """Errors if the load balancers that `answered` by SSH, or the proxy in front of them, cannot be reached.

    Before the bring-up nothing listens there, and a refused connection shows that there is a route. An
    endpoint of the site may get its address from the servers (kube-vip): before one runs K3s it is a warning.
    """
    bastion = spec.login.bastion
    if bastion is not None and bastion.api_proxy_url is not None:
        proxy = urlsplit(bastion.api_proxy_url)
        problem = await _dial(proxy.hostname or "", proxy.port or _DEFAULT_PORTS[proxy.scheme], refused=True)
        if problem is None:
            return []
        what = f"the proxy {bastion.api_proxy_url} cannot be reached: {problem}"
        return [Finding((THIS_MACHINE,), what, "start it, or correct ssh.bastion.api_proxy_url")]
    ways = {host.name: host.address for host in spec.hosts if host.role == "lb" and host.name in answered}
    if spec.api_endpoint and answered:
        ways = {"api_endpoint": spec.api_endpoint}
    level: Kind = "warning" if spec.api_endpoint and not with_k3s else "error"
    found = []
    for name, address in ways.items():
        if problem := await _dial(address, API_PORT, refused=False):
            what = f"the Kubernetes API at {address}:{API_PORT} ({name}) cannot be reached: {problem}"
            found.append(Finding((THIS_MACHINE,), what, _BASTION_FIX if bastion else _FIX, kind=level))
    return found


async def _dial(host: str, port: int, *, refused: bool) -> str | None:
    """The reason why a TCP connection fails; None if it works. `refused`: a refused one is a failure too."""
    try:
        async with asyncio.timeout(ROUTE_SECONDS):
            _, writer = await asyncio.open_connection(host, port)
        writer.close()
    except TimeoutError:
        return f"timed out after {ROUTE_SECONDS} s"
    except ConnectionRefusedError:
        return "connection refused" if refused else None
    except OSError as error:
        return os.strerror(error.errno) if error.errno and error.errno > 0 else str(error)
    return None


Answers = Mapping[str, Answer | Finding]
Ask = Callable[[Hosts, Host], Awaitable[Answer | Finding]]
CONCURRENT = 64
# Parallel retries for hosts whose connection failed while others responded: on a loaded machine, or with a
# slow bastion, 64 logins at once may exceed the time limit of a login.
CONCURRENT_AGAIN = 8


@dataclass(frozen=True)
class Outcome:
    """Findings of all hosts, records of the hosts without an error, and the number of hosts queried.

    `failed`: the records of hosts with an error that have responded.
    """

    findings: list[Finding]
    records: dict[str, HostRecord]
    queried: int
    failed: Mapping[str, HostRecord] = field(default_factory=dict)

    def facts(self, host: str) -> Mapping[str, Any]:
        """The facts of a host without an error; empty for any other one."""
        record = self.records.get(host)
        return record.facts if record else {}

    @property
    def errors(self) -> list[Finding]:
        """The findings that stop the bring-up."""
        return [finding for finding in self.findings if finding.kind == "error"]


def deadline_seconds(hosts: int) -> int:
    """The time limit of all queries: CONCURRENT hosts at a time, each with its own limits."""
    waves = math.ceil(hosts / CONCURRENT)
    return waves * (CONNECT_SECONDS + SCRIPT_SECONDS + GRACE_SECONDS)


async def survey(spec: Spec, previous: Mapping[str, HostRecord], *, deliver: bool = False) -> Outcome:
    """Query every host whose requirements have changed since `previous`.

    With `deliver` they get the scripts of their installation, whose digests are in the requirements.
    A worker that passed before and is not responding now is a warning, and so is one in quarantine that lets
    nobody in. Raises ValueError if the SSH key or the ssh-agent cannot be used.
    """
    kept = {
        host.name: previous[host.name]
        for host in spec.hosts
        if host.name in previous and previous[host.name].fingerprint == spec.fingerprint(host)
    }
    hosts = [host for host in spec.hosts if host.name not in kept]
    began = int(time.time())

    async def ask(on: Hosts, host: Host) -> Answer | Finding:
        return await query(on, host, spec.values(host), deliver=deliver)

    answers = await query_all(spec.login, hosts, ask) if hosts else {}

    records: dict[str, HostRecord] = {}
    reports = {name: answer.report for name, answer in answers.items() if isinstance(answer, Answer)}
    servers = {host.name for host in spec.hosts if host.role == "server"}
    with_k3s = any(name in servers and report.k3s_version for name, report in reports.items())
    findings = await check_api_route(spec, reports.keys(), with_k3s=with_k3s)
    for host in spec.hosts:
        answer = answers.get(host.name)
        if answer is None:
            records[host.name] = kept[host.name]
        elif isinstance(answer, Finding):
            before, held = previous.get(host.name), host.name in spec.quarantined
            if before and (held or is_gone(host, answer)):
                answer = left_out(answer, "update")  # It was installed before, and is queried next time.
                records[host.name] = replace(before, fingerprint="")
            findings.append(answer)
        else:
            required = spec.requirements_of(host)
            findings += check_host(
                host,
                required,
                answer.report,
                clock=answer.clock,
                in_quarantine=host.name in spec.quarantined,
            )
            findings += check_nfs(spec.nfs, host, answer.report)
            found = host_facts(required, answer.report)
            if host.role in NODE_ROLES and not answer.report.k3s_version and not answer.report.k3s_data:
                found[facts.WITHOUT_K3S] = began
            records[host.name] = HostRecord(spec.fingerprint(host), answer.report.machine, found)
    findings += check_across_hosts(spec, reports, records)
    records = facts.with_warnings(records, findings)
    with_error = {finding.host for finding in findings if finding.kind == "error"}
    failed = {name: records.pop(name) for name in with_error & records.keys()}
    return Outcome(findings, records, len(hosts), failed)


def is_gone(host: Host, answer: Finding) -> bool:
    """Whether a worker is not responding, so that the others can go on without it."""
    return host.role == "worker" and answer.unreachable


def left_out(answer: Finding, of: str) -> Finding:
    """The finding on such a worker as a warning; `of`: "update" or "measurement"."""
    return replace(answer, kind="warning", what=f"{answer.what}; left out of this {of}")


async def query_all(login: Login, hosts: Sequence[Host], ask: Ask) -> Answers:
    """The answer of each of `hosts`, by name; a host without one at the deadline gets a finding."""
    deadline = deadline_seconds(len(hosts))
    answers: dict[str, Answer | Finding] = {}

    async def ask_some(some: Sequence[Host], on: Hosts) -> None:
        async def one(host: Host) -> None:
            answers[host.name] = await ask(on, host)

        await on_each(some, one, at_once=CONCURRENT)

    try:
        async with asyncio.timeout(deadline) as limited, Hosts.open(login) as on:
            await ask_some(hosts, on)
            silent = [host for host in hosts if not _is_reached(answers[host.name])]
            if len(silent) < len(hosts):
                # The retries end with the first batch in which no host responds.
                for start in range(0, len(silent), CONCURRENT_AGAIN):
                    batch = silent[start : start + CONCURRENT_AGAIN]
                    limited.reschedule(asyncio.get_running_loop().time() + deadline_seconds(len(batch)))
                    await ask_some(batch, on)
                    if not any(_is_reached(answers[host.name]) for host in batch):
                        break
    except ScriptError as error:
        return {host.name: Finding((host.name,), f"bastion: {error.what}", error.fix) for host in hosts}
    except TimeoutError:
        pass  # Hosts without an answer get the finding below.
    fix = "check the host and the network to it; with very many hosts, run preflight from a faster machine"
    for host in hosts:
        what = f"no answer from {host.user}@{host.address}:{host.port} within {deadline} s"
        answers.setdefault(host.name, Finding((host.name,), what, fix))
    return answers


def _is_reached(answer: Answer | Finding) -> bool:
    return isinstance(answer, Answer) or not answer.unreachable

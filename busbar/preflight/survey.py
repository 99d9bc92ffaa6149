"""The whole preflight: ask all hosts at once, judge them, and keep what was found."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass

import asyncssh

from busbar.preflight import ask, fleet, judge
from busbar.preflight.facts import Passed
from busbar.preflight.spec import Finding, Spec, Target

CONCURRENT = 64
# The promise is an end within 60 s whatever the hosts do; what is left is for starting and judging.
DEADLINE_SECONDS = 55


@dataclass(frozen=True)
class Outcome:
    """`findings` of all hosts; `passed` holds the hosts without an error, asked now or before."""

    findings: list[Finding]
    passed: dict[str, Passed]
    asked: int

    @property
    def errors(self) -> list[Finding]:
        """The findings that stop the bring-up."""
        return [finding for finding in self.findings if finding.level == "error"]


async def survey(spec: Spec, former: Mapping[str, Passed]) -> Outcome:
    """Ask every host that has not passed the same questions before (`former`). Raises ValueError: bad key."""
    kept = {
        target.name: former[target.name]
        for target in spec.hosts
        if target.name in former and former[target.name].fingerprint == spec.fingerprint(target)
    }
    targets = [target for target in spec.hosts if target.name not in kept]
    answers = await _ask_all(spec, targets) if targets else {}

    findings: list[Finding] = []
    passed: dict[str, Passed] = {}
    reports = {name: answer.report for name, answer in answers.items() if isinstance(answer, ask.Answer)}
    for target in spec.hosts:
        answer = answers.get(target.name)
        if answer is None:
            passed[target.name] = kept[target.name]
        elif isinstance(answer, Finding):
            findings.append(answer)
        else:
            need = spec.need_of(target)
            findings += judge.judge(target, need, answer.report, clock=answer.clock)
            passed[target.name] = Passed(
                spec.fingerprint(target), answer.report.machine, judge.facts(need, answer.report)
            )
    findings += fleet.judge(spec, reports, passed)
    failed = {finding.host for finding in findings if finding.level == "error"}
    return Outcome(
        findings, {name: host for name, host in passed.items() if name not in failed}, len(targets)
    )


async def _ask_all(spec: Spec, targets: list[Target]) -> dict[str, ask.Answer | Finding]:
    """Every host's answer within DEADLINE_SECONDS; who has none by then has not answered in time."""
    keys = ask.load_keys(spec)
    answers: dict[str, ask.Answer | Finding] = {}
    limit = asyncio.Semaphore(CONCURRENT)

    async def one(target: Target, tunnel: asyncssh.SSHClientConnection | None) -> None:
        async with limit:
            answers[target.name] = await ask.ask(spec, target, keys, tunnel)

    try:
        async with (
            asyncio.timeout(DEADLINE_SECONDS),
            ask.bastion(spec, keys) as tunnel,
            asyncio.TaskGroup() as group,
        ):
            for target in targets:
                group.create_task(one(target, tunnel))
    except TimeoutError:
        pass  # who is missing from the answers gets the finding below
    except (OSError, asyncssh.Error) as error:
        return {target.name: _no_way(spec, target, error) for target in targets}
    for target in targets:
        answers.setdefault(target.name, _too_late(target))
    return answers


def _no_way(spec: Spec, target: Target, error: Exception) -> Finding:
    jump = spec.login.bastion
    about = Target(
        name="bastion",
        address=jump.address if jump else "",
        port=jump.port if jump else 22,
        user=jump.user if jump else "",
        host_key=jump.host_key if jump else "",
        role="lb",
    )
    reason = ask.explain(about, error)
    return Finding(target.name, "error", f"cannot be reached: the bastion {reason.what}", reason.cure)


def _too_late(target: Target) -> Finding:
    return Finding(
        target.name,
        "error",
        f"gave no answer within {DEADLINE_SECONDS} s ({target.user}@{target.address}:{target.port})",
        "Look at the host and the way to it; with very many hosts, run it from a faster machine",
    )

"""Asks what a destroy would end, before anything is removed: jobs, and the releases of other stacks."""

from __future__ import annotations

import json
import pkgutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from busbar.capability import Capability, capabilities
from busbar.cli.output import progress
from busbar.cli.stack.engine import Snapshot
from busbar.cli.stack.errors import NO_STACK
from busbar.cli.stack.keep import KUBECONFIG
from busbar.cli.stack.target import Target
from busbar.cli.stackfile import SecretError, capability_of, read_outputs
from busbar.config import ConfigError, stackfile
from busbar.config.stackfile import KEY, PROJECT
from busbar.exits import Failed
from busbar.hosts.inventory import Inventory
from busbar.kube.client import ApiError, RestApi
from busbar.kube.wait import SystemClock
from busbar.kube.workloads import Workload, end, owners, releases_by_stack, workloads
from busbar.names import CLUSTER_ID
from busbar.operations.verify import UnknownState, connect
from busbar.text import listed

_REFERENCE = "pulumi:pulumi:StackReference"


@dataclass(frozen=True)
class Guard:
    """The question of one destroy. `find`: the jobs that run; with True it ends them, and finds what remains.

    `may_end`: whether the stack file allows that. `gone`: why nothing of the stack exists any more, or "".
    """

    target: Target
    find: Callable[[bool], Sequence[str]] = lambda _: ()
    may_end: bool = False
    gone: str = ""

    def check(self, *, ends: bool = False) -> None:
        """Raise Failed for jobs that a destroy would end; with `ends` they are ended if the file says so."""
        try:
            jobs = self.find(ends and self.may_end)
        except ApiError as error:
            raise Failed(
                f"it is unknown whether jobs run: {error}; nothing was removed. Fix: make the Kubernetes API "
                "respond; if the machines of the cluster are gone: first busbar destroy of its own stack"
            ) from error
        if jobs and (ends or not self.may_end):
            raise Failed(
                f"jobs are running or pending: {listed(jobs)}; nothing was removed. Fix: wait for their end, "
                f"or set removal.cancel_jobs: true in {self.target.file}, which ends them; then retry"
            )
        if jobs:
            progress(f"removal.cancel_jobs: {listed(jobs)} will be ended first")


def guard_of(target: Target, state: Snapshot, outputs: Callable[[], Mapping[str, Any]]) -> Guard:
    """The guard of a stack with this state and these outputs; one that asks nothing for other programs.

    Raises ConfigError where the stack file cannot be read, and SecretError.
    """
    path, project = target.project / target.file, stackfile.project_name(target.project) or ""
    try:
        capability = capability_of(path)
        name = f"{capability.project}:{capability.name}" if capability else f"{PROJECT}:{KEY}"
        given = stackfile.written(path, name)
    except ConfigError:
        if project == PROJECT or project in {each.project for each in capabilities()}:
            raise
        return Guard(target)
    removal = given.get("removal") if isinstance(given, Mapping) else None
    may_end = isinstance(removal, Mapping) and removal.get("cancel_jobs") is True
    guard, own = partial(Guard, target, may_end=may_end), f"{project}/{target.name}"
    if capability and capability.operations:
        return guard(partial(pkgutil.resolve_name(capability.jobs), path)) if capability.jobs else guard()
    if capability:
        return _of_consumer(guard, capability, own, state, target)
    if not (kubeconfig := outputs().get(KUBECONFIG)):
        return guard()
    try:
        api = connect(str(kubeconfig), Inventory.of(stackfile.read(path).cluster()))
    except (ConfigError, UnknownState) as error:
        progress(f"warning: nothing runs without an API, and it is not responding: {error}")
        return guard()

    def find(ends: bool) -> Sequence[str]:
        others = {stack: names for stack, names in releases_by_stack(api).items() if stack != own}
        if others:
            texts = (
                f"{listed(names)} of {stack}. Fix: `busbar destroy {stack.rpartition('/')[2]}` in the folder "
                f"of {stack.partition('/')[0]}"
                for stack, names in others.items()
            )
            raise Failed("\n".join(["other stacks are on this cluster; nothing was removed:", *texts]))
        return _of_pods(api, lambda each, owner: owner.get(each.namespace) != own, ends)

    return guard(find)


def _of_consumer(
    guard: Callable[..., Guard], capability: Capability, own: str, state: Snapshot, target: Target
) -> Guard:
    """The guard of a stack on the cluster of another stack, which its state names."""
    resources = json.loads(state.text)["deployment"].get("resources") or []
    stacks = [each["id"] for each in resources if each["type"] == _REFERENCE]
    known = [each["inputs"]["input"]["id"] for each in resources if each["urn"].endswith(f"::{CLUSTER_ID}")]
    if not (stacks and known):
        return guard()  # An update that was refused has made nothing.
    try:
        outputs = json.loads(read_outputs(stacks[0], target.project))
    except SecretError as error:
        if not NO_STACK.search(str(error)):
            raise
        outputs = {}
    current = outputs.get("cluster_id") or outputs.get("cluster_name")
    if current != known[0]:
        what = "another cluster now" if current else "no cluster any more"
        return guard(gone=f"{stacks[0]} has {what}; {known[0]}, on which this stack was, is gone")
    api = RestApi(outputs[KUBECONFIG])

    def counts(each: Workload, owner: Mapping[str, str]) -> bool:
        return owner.get(each.namespace) == own or each.kind in capability.job_kinds

    def find(ends: bool) -> Sequence[str]:
        of_pods = _of_pods(api, counts, ends)
        return [*of_pods, *(pkgutil.resolve_name(capability.jobs)(api, ends) if capability.jobs else ())]

    return guard(find)


def _of_pods(
    api: RestApi, counts: Callable[[Workload, Mapping[str, str]], bool], ends: bool
) -> Sequence[str]:
    """The workloads that count and hold devices; with `ends` they have ended."""
    owner = owners(api)

    def look() -> list[Workload]:
        return [each for each in workloads(api) if counts(each, owner)]

    if ends:
        end(api, look, SystemClock(), progress)
    return [*map(str, look())]

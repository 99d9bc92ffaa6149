"""Asks, before anything is changed, which jobs it would end, and which releases an upgrade leaves out."""

from __future__ import annotations

import json
import pkgutil
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from busbar import names
from busbar.capability import capabilities
from busbar.cli.charts import RELEASE, Consumed, consumed
from busbar.cli.output import progress
from busbar.cli.stack import Target
from busbar.cli.stack.engine import Snapshot
from busbar.cli.stack.report import KUBECONFIG
from busbar.cli.stack.rows import resource_name
from busbar.cli.stackfile import capability_of, login_of
from busbar.config import ConfigError, stackfile
from busbar.config.stackfile import KEY, PROJECT, StackFile
from busbar.exits import Failed, NoVerdict
from busbar.finding import STACK, filled
from busbar.helm.releases import statuses
from busbar.hosts.inventory import Inventory
from busbar.kube.client import Api, ApiError, RestApi
from busbar.kube.drain import leaving
from busbar.kube.gpus import Workload, end, owners, workloads
from busbar.kube.objects import of_others
from busbar.kube.wait import Clock, Deadline, SystemClock, TimedOut, wait_until
from busbar.manifests.artifacts import chart_version
from busbar.manifests.operators import GPU_OPERATOR, NETWORK_OPERATOR
from busbar.operations.verify import UnknownState, connect, running
from busbar.text import listed

# A load balancer needs some seconds to notice that a server is gone.
_API_SECONDS, _POLL_SECONDS = 30.0, 2.0
_NAMESPACE = "kubernetes:core/v1:Namespace"
_SERVERS = f"{names.CLUSTER}-{names.CONTROL_PLANE}"
_NO_API = "warning: it is not known whether jobs run: the API is not responding"


@dataclass(frozen=True)
class Guard:
    """The question of one destroy. `find`: the jobs that run; with True it ends them, and finds what remains.

    `may_end`: whether the stack file allows that. `gone`: why nothing of the stack exists any more, or "".
    `own`: whether the cluster that is asked is the stack's own, so that nobody else can make it respond.
    `lost`: as refuse_lost, on that cluster.
    """

    target: Target
    find: Callable[[bool], Sequence[str]] = lambda _: ()
    may_end: bool = False
    gone: str = ""
    own: bool = False
    lost: Callable[..., None] = lambda *_: None
    clock: Clock = field(default_factory=SystemClock)

    def jobs(self, ends: bool = False) -> Sequence[str]:
        """The jobs that run, or remain; none if they are unknown, and the file allows to end them anyway."""
        try:
            return self.find(ends and self.may_end)
        except NoVerdict as unknown:
            if ends or not self.may_end:
                raise
            progress(f"warning: {unknown.what}")
            return ()

    def check(self, *, ends: bool = False) -> None:
        """Raise Failed for jobs that a destroy would end; with `ends` they are ended if the file says so."""
        look, deadline = partial(self.jobs, ends), Deadline(self.clock, _API_SECONDS)
        try:
            jobs = wait_until(look, deadline, poll_seconds=_POLL_SECONDS, progress=progress)
            if not self.own:
                self.lost()
        except (ApiError, TimedOut) as error:
            if self.own and isinstance(error, TimedOut):
                progress(f"{_NO_API}: {error}")
                return
            what = f"it is unknown whether jobs run: {error}; nothing was removed"
            fix = "make the Kubernetes API respond; if its machines are gone, destroy its own stack first"
            raise Failed(what, fix) from error
        if jobs and (ends or not self.may_end):
            what = f"jobs are running or pending: {listed(jobs)}; nothing was removed"
            fix = f"wait for them, or set removal.cancel_jobs: true in {self.target.file}, which ends them"
            raise Failed(what, fix)
        if jobs:
            progress(f"removal.cancel_jobs: {listed(jobs)} will be ended first")


def guard_of(
    target: Target, state: Snapshot, outputs: Callable[[], Mapping[str, Any]], *, of_all: bool = True
) -> Guard:
    """The guard of a stack. `of_all`: its own cluster goes too. Raises ConfigError and SecretError."""
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
    jobs = pkgutil.resolve_name(capability.jobs) if capability and capability.jobs else lambda *_: ()
    if capability and capability.operations:
        return Guard(target, partial(jobs, path), may_end)
    on = consumed(state.text, path) if capability else Consumed(_own(path, outputs(), of_all))
    if on.api is None:
        return Guard(target, gone=on.gone)
    api, own = on.api, f"{project}/{target.name}"
    kinds = capability.job_kinds if capability else ()
    # The mark of a namespace has the name that its stack had when it made it.
    resources = json.loads(state.text)["deployment"].get("resources") or []
    of_state = {each["inputs"]["metadata"]["name"]: own for each in resources if each["type"] == _NAMESPACE}

    def find(ends: bool) -> Sequence[str]:
        owner = owners(api) | of_state
        if not capability and of_all:
            _refuse_others(api, owner, own)

        def look() -> list[Workload]:
            """Find those of the stack; on its own cluster those of all others than the stack."""
            mine = ((each, owner.get(each.namespace) == own or each.kind in kinds) for each in workloads(api))
            return [each for each, is_mine in mine if is_mine is bool(capability)]

        if ends:
            end(api, look, SystemClock(), progress)
        return [*map(str, look()), *jobs(api, ends)]

    return Guard(target, find, may_end, own=not capability, lost=partial(refuse_lost, api, resources))


def refuse_lost(api: Api, resources: Sequence[Any], going: Collection[str] | None = None) -> None:
    """Raise Failed for what others have put into the namespaces of these names of RESOURCES, and ApiError.

    At a destroy (None) no namespace with a release is looked at: charts leave objects of their own there.
    """
    made = [each["inputs"] for each in resources if each["type"] == RELEASE]
    releases = {each["name"]: each["namespace"] for each in made}
    ours = {*map(_object, resources)}
    for each in resources:
        if each["type"] != _NAMESPACE or each.get("retainOnDelete"):
            continue
        space, name = each["inputs"]["metadata"]["name"], resource_name(each["urn"])
        goes = space not in releases.values() if going is None else name in going
        theirs = of_others(api, space, releases) if goes else ()
        if found := [each for each in theirs if (space, each) not in ours]:
            what = f"no changes made: namespace {space} would be deleted, with {listed(found)} of others"
            fix = f"copy what is needed elsewhere, kubectl -n {space} delete {' '.join(found)}, and retry"
            raise Failed(what, fix)


def _object(resource: Any) -> tuple[str, str]:
    """Namespace and KIND/NAME of an object of the state, on which the provider sets no label."""
    about = (resource.get("inputs") or {}).get("metadata") or {}
    return about.get("namespace", ""), f"{resource['type'].split(':')[-1].lower()}s/{about.get('name')}"


def _own(path: Path, outputs: Mapping[str, Any], of_all: bool = False) -> RestApi | None:
    """The stack's own API, or None. `of_all`: raise Failed where only this machine does not reach it."""
    if not (kubeconfig := outputs.get(KUBECONFIG)):
        return None
    try:
        return connect(str(kubeconfig), Inventory.of(stackfile.read(path).cluster()))
    except (ConfigError, UnknownState) as error:
        if of_all and isinstance(error, UnknownState):
            _refuse_running(stackfile.read(path), error)
        progress(f"{_NO_API}: {error}")
        return None


def _refuse_running(file: StackFile, error: UnknownState) -> None:
    """Raise Failed if K3s runs on most servers, although the API cannot be asked from here."""
    cluster = file.cluster()
    servers = Inventory.of(cluster).servers
    names = running(login_of(file, cluster.ssh), servers)
    if len(names) > len(servers) / 2:
        what = f"{error.what}; K3s runs on {listed(names)}: jobs may run; nothing was removed"
        raise Failed(what, f"{error.fix}; or, to remove it all the same, systemctl stop k3s there")


def _refuse_others(api: RestApi, owner: Mapping[str, str], own: str) -> None:
    """Refuse while other stacks have Helm releases on the cluster, with or without jobs."""
    found: dict[str, list[str]] = {}
    for namespace, release in sorted(statuses(api)):
        if (stack := owner.get(namespace, own)) != own:
            found.setdefault(stack, []).append(release)
    texts = []
    for stack, those in found.items():
        project, _, name = stack.partition("/")
        fix = f"`busbar destroy {name}` in the folder of {project}; without its state: helm uninstall each"
        texts.append(f"{listed(those)} of {stack}. Fix: {fix}")
    if texts:
        raise Failed("\n".join(["other stacks are on this cluster; nothing was removed:", *texts]))


def check_removed(
    target: Target, state: Snapshot, ends: Sequence[set[str]], outputs: Callable[[], Mapping[str, Any]]
) -> None:
    """Raise Failed where an update deletes a worker with the data of a claim, a namespace with objects of
    others, or, while jobs run, a release. Raises ApiError. `ends`: deleted names, and replaced ones."""
    deleted, replaced = ends
    agents = {name for name in map(resource_name, state.resources) if f"{names.WORKER}@" in name}
    if agents & deleted and (api := _own(target.project / target.file, outputs())):
        leaving(api, [names.host_of(name) for name in agents - deleted])
    made = [(resource_name(urn), urn.split("::")[-2].rpartition("$")[2]) for urn in state.resources]
    ending = {RELEASE: deleted | replaced, _NAMESPACE: replaced}
    gone = listed([name for name, kind in made if name in ending.get(kind, ())])
    if not gone:
        return
    guard = guard_of(target, state, outputs, of_all=False)
    if jobs := guard.jobs():
        what = f"no changes made: {gone} would be deleted, and jobs are running or pending: {listed(jobs)}"
        raise Failed(what, f"wait for their end, or end them; or write back what {target.file} had")
    guard.lost(deleted | replaced)


def check_upgrades(target: Target, state: Snapshot) -> None:
    """Raise Failed where an update would begin another cluster, leave out a major release of an operator that
    the state has (the program asks Helm again), or delete an operator after a measurement with it."""
    resources = json.loads(state.text)["deployment"].get("resources") or []
    known = {
        each["inputs"].get("name"): ((each.get("outputs") or {}).get("status") or {}).get("version")
        for each in resources
        if each["type"] == RELEASE
    }
    operators = [each for each in (GPU_OPERATOR, NETWORK_OPERATOR) if known.get(each.release)]
    try:
        cluster = stackfile.read(target.project / target.file).cluster()
        configs = [(each, getattr(cluster, each.config_key)) for each in operators]
        wanted = [(each, chart_version(config, target.project)) for each, config in configs if config.enabled]
    except (ConfigError, OSError, ValueError):
        return  # The program says what is wrong.
    made = names.installations([*map(resource_name, state.resources)])
    former = {names.host_of(each) for each in made if names.component_of(each) == _SERVERS}
    if former and former.isdisjoint(server.name for server in cluster.hosts.servers):
        what = (
            f"no changes made: no server of the cluster stays ({listed(sorted(former))}): the new ones would "
            "begin an empty one, and the data of this one would be deleted"
        )
        fix = "replace them one after the other; if all are lost, list a new machine under the name of one"
        raise Failed(what, fix)
    off = [f"{each.config_key}.enabled" for each, config in configs if not config.enabled]
    if off and cluster.validation.enabled:
        # The engine deletes at the end of an update: the verdict would be of devices that are gone then.
        what = f"no changes made: {listed(off)}: false would remove an operator after a measurement with it"
        again = "when the operator of the site offers the devices, set it to true again"
        raise Failed(what, f"set validation.enabled: false for this update; {again}")
    found = [each.skipped_releases(str(known[each.release]), new) for each, new in wanted]
    if texts := [str(each) for each in found if each]:
        refresh = f"If Helm has another version deployed: `pulumi refresh --stack {STACK}`, then retry"
        raise Failed("\n".join(["no changes made:", *texts, filled(refresh)]))

"""Helm releases: installation, repairs before it (busbar.helm.releases), the check after an update."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pulumi
import pulumi_kubernetes as kubernetes
from pulumi.runtime import stack as sdk

from busbar import names
from busbar.components.engine.cluster import create_privileged_namespace, known_or_none, run_on_cluster
from busbar.components.engine.local_command import create_cluster_command
from busbar.config import Chart
from busbar.config import cluster as models
from busbar.config.cluster import Taint
from busbar.exits import Failed
from busbar.finding import Finding, shown, with_fix
from busbar.helm import releases
from busbar.kube.client import ASK_VERIFY, Api, ApiError, RestApi
from busbar.kube.wait import SystemClock, TimedOut, lasting
from busbar.manifests.artifacts import chart_version
from busbar.manifests.names import digest
from busbar.manifests.operators import Operator, OperatorConfig

HELM_VALUES = Path(__file__).resolve().parents[2] / "helm_values"
# Number of past revisions that stay as Secrets in the cluster; 0 would mean all of them.
MAX_HISTORY = 5
HOOK_SECONDS = 20
"""How often hook Jobs of uninstallations are looked at."""


@dataclass(frozen=True)
class Installed:
    """A namespace that a program has made, or, with its name, a Helm release in it."""

    resource: pulumi.CustomResource
    namespace: str
    release: str | None = None
    revision: pulumi.Output[int | None] | None = None


def files_digest(chart: Chart) -> str | None:
    """`chart sha256:...` over the files of a local chart, None for any other."""
    if not chart.is_local:
        return None
    path, total = Path(chart.chart).expanduser(), hashlib.sha256()
    for file in sorted(each for each in (path, *path.rglob("*")) if each.is_file()):
        content = hashlib.sha256(file.read_bytes()).hexdigest()
        total.update(f"{content}  {file.relative_to(path)}\n".encode())
    return f"chart sha256:{total.hexdigest()}"


def image_version(image: str) -> str:
    """The tag of an image reference, else its digest, else "latest", as a runtime would pull it."""
    name, _, digest = image.partition("@")
    tag = name.rpartition("/")[2].partition(":")[2]
    return tag or digest or "latest"


# Further attempts after Helm has met kinds that an API server does not know yet.
REPEATS = 3


def create_recovery_hooks(
    name: str,
    release: str,
    namespace: str,
    kubeconfig: pulumi.Input[str],
    before_change: Callable[[Api], None] | None = None,
) -> pulumi.ResourceHookBinding:
    """The hooks for the Release resource `name`. `before_change`: called before installation and upgrades."""

    def before(change: str, step: Callable[[Api, str, str], str | None]) -> pulumi.ResourceHook:
        async def prepare(_: pulumi.ResourceHookArgs) -> None:
            if before_change:
                await run_on_cluster(kubeconfig, before_change)
            await run_on_cluster(kubeconfig, lambda api: step(api, release, namespace))

        return pulumi.ResourceHook(f"{name}-before-{change}", prepare)

    async def on_error(args: pulumi.ErrorHookArgs) -> bool:
        """Ask for another attempt where Helm came to an API server that did not know of a CRD yet."""
        await run_on_cluster(kubeconfig, lambda api: "\n".join(releases.hook_job_problems(api, namespace)))
        kinds = set(releases.UNKNOWN_KIND.findall(args.errors[-1]))
        if not kinds or len(args.errors) > REPEATS:
            return False
        connect = partial(RestApi, str(await pulumi.Output.from_input(kubeconfig).future()))
        return await asyncio.to_thread(releases.await_kinds, connect, kinds, SystemClock())

    return pulumi.ResourceHookBinding(
        before_create=[before("create", releases.before_install)],
        before_update=[before("update", releases.before_upgrade)],
        on_error=[pulumi.ErrorHook(f"{name}-on-error", on_error)],
    )


def check_upgrade(operator: Operator, chart: Chart, api: Api) -> None:
    """Raise Failed where the chart leaves out a major release; `busbar up` says so before it begins."""
    installed = releases.deployed_version(api, operator.namespace, operator.release)
    if found := operator.skipped_releases(installed, chart_version(chart, Path())):
        raise Failed(str(found))


class HelmOperator(pulumi.ComponentResource):
    """Makes the Namespace and the Helm Release; neither if another tool has installed the operator.

    The history is bounded, and hooks run (operators upgrade their CRDs in them).
    """

    version: pulumi.Output[str | None]
    """The version that runs, known after the installation; None if another tool has installed it."""
    releases: Sequence[kubernetes.helm.v3.Release] = ()
    """The Helm Release; empty if another tool has installed the operator."""
    installed: Sequence[Installed] = ()
    """The namespace and the release, for the check at the end of an update."""
    changes: pulumi.Output[Any]
    """A `replacement_trigger` that changes with each upgrade and each installation into a new namespace.

    A trigger that a state does not have yet replaces nothing, unlike one in the inputs of a Command.
    """

    def __init__(
        self,
        operator: Operator,
        name: str,
        opts: pulumi.ResourceOptions | None,
        *,
        kubeconfig: pulumi.Input[str],
        config: OperatorConfig,
        chart: Chart,
        taints: Sequence[Taint] = (),
        image: str | None = None,
        await_ready: bool = False,
        before_change: Callable[[Api], None] | None = None,
        keep_namespace: bool | None = None,
        helm_values: Path = HELM_VALUES,
    ) -> None:
        """`config`: its section of the configuration. `helm_values`: the folder with its values.

        `image`: where it is configured, its tag is the version that runs. `await_ready`: whether Helm waits
        for the pods; not needed if something after the release waits for the resources that they offer.
        `before_change` is called just before each installation and upgrade, which does not happen if it
        raises; by default it is the check of skipped releases. `keep_namespace`: a destroy leaves it.
        """
        super().__init__(f"busbar:index:{type(self).__name__}", name, None, opts)
        self._operator, self._kubeconfig = operator, kubeconfig
        self._values = operator.values(helm_values, config, taints)
        self.version = pulumi.Output.from_input(None)
        self.changes = pulumi.Output.from_input([])
        if not config.enabled:
            return
        check = partial(check_upgrade, operator, chart) if operator.releases else None
        namespace = create_privileged_namespace(
            f"{name}-namespace",
            operator.namespace,
            kubeconfig,
            pulumi.ResourceOptions(parent=self, retain_on_delete=keep_namespace),
        )
        resource, repository = names.release(name), chart.repository_url
        release = kubernetes.helm.v3.Release(
            resource,
            kubernetes.helm.v3.ReleaseArgs(
                name=operator.release,
                namespace=namespace.metadata["name"],
                chart=chart.chart,
                # A folder or an archive has one version, whichever is configured.
                version=None if chart.is_local else chart.version,
                repository_opts=kubernetes.helm.v3.RepositoryOptsArgs(repo=repository)
                if repository
                else None,
                values=self._values,
                timeout=config.timeout_seconds,
                max_history=MAX_HISTORY,
                # The provider does not read a chart's files; this digest makes it install changed ones.
                description=files_digest(chart),
                create_namespace=False,
                skip_await=not await_ready,
                # An upgrade replaces CRDs in a hook; checked against the old ones, new objects are refused.
                disable_openapi_validation=True,
            ),
            opts=pulumi.ResourceOptions(
                parent=self,
                # Two releases of one name would share their objects, so the old one is deleted first.
                delete_before_replace=True,
                hooks=create_recovery_hooks(
                    resource, operator.release, operator.namespace, kubeconfig, before_change or check
                ),
            ),
        )
        status: pulumi.Output[Any] = pulumi.Output.from_input(release.status)
        revision = status.apply(lambda found: (found or {}).get("revision"))
        self.releases = [release]
        self.installed = [
            Installed(namespace, operator.namespace),
            Installed(release, operator.namespace, operator.release, revision),
        ]

        # A chart of busbar has the version that it was made for, but the image is what runs.
        runs = image_version(image) if image else None
        self.version = status.apply(lambda found: runs or str((found or {}).get("version") or chart.version))
        found = pulumi.Output.all(namespace.metadata, revision).apply(
            lambda known: [[(known[0] or {}).get("uid"), known[1]]]
        )
        # A preview shows what a change of the release replaces.
        self.changes = found if pulumi.runtime.is_dry_run() else known_or_none(found)

    def _wait_for_devices(
        self,
        name: str,
        config: models.GpuOperator | models.NetworkOperator,
        resource: str,
        nodes: Mapping[str, int],
        after: Sequence[pulumi.Resource],
        *triggers: pulumi.Input[Any],
    ) -> None:
        """Register the Command that waits until `nodes` offer so many units of `resource` each."""
        create_cluster_command(
            name,
            "wait allocatable",
            self._operator.wait_request(config, resource, nodes),
            self._kubeconfig,
            pulumi.ResourceOptions(parent=self, depends_on=after, replacement_trigger=self.changes),
            triggers=[digest(self._values), *triggers, config.version],
        )


Ready = Callable[[RestApi], list[Finding]]
"""What does not work of that which a program has made; empty where all does. Raises ApiError."""


def check_after_deletions(
    kubeconfig: pulumi.Input[str], made: Sequence[Installed], ready: Ready | None = None
) -> None:
    """Make the update fail if a release or namespace of `made` is missing at its end, or not `ready`.

    The engine deletes after the program: the former parts of replacements, also those that an earlier update
    has left, and resources whose URN is not registered any more. Each deletion removes an object by its name,
    even if the configuration has it. The SDK's wait for the engine's end is the only place in a program that
    comes after these deletions; an error there fails the update (pulumi/pulumi
    pkg/resource/deploy/source_eval.go, resmon.Cancel).
    """
    wait = sdk._wait_for_shutdown

    async def wait_and_check() -> None:
        ended, warned = asyncio.ensure_future(wait()), set[str]()
        # The provider gives Helm no time limit for an uninstallation (helm_release.go, Delete).
        try:
            while not (await asyncio.wait([ended], timeout=HOOK_SECONDS))[0]:
                await _warn_of_hook_jobs(kubeconfig, warned)
        finally:
            await ended
        await _fail_unless_installed(kubeconfig, made, ready)

    sdk._wait_for_shutdown = wait_and_check


async def _warn_of_hook_jobs(kubeconfig: pulumi.Input[str], warned: set[str]) -> None:
    text = await pulumi.Output.from_input(kubeconfig).future()
    if pulumi.runtime.is_dry_run() or text is None:
        return
    try:
        found = await asyncio.to_thread(lambda: releases.jobs_of_uninstallations(RestApi(text)))
    except (ApiError, ValueError):
        return  # asked again later
    for line in found:
        if line not in warned:
            pulumi.warn(f"an uninstallation waits for the {line}")
    warned.update(found)


async def _fail_unless_installed(
    kubeconfig: pulumi.Input[str], made: Sequence[Installed], ready: Ready | None
) -> None:
    """Raise pulumi.RunError if a release or namespace of `made` is not on the cluster, or does not work, or
    if the API is not responding. Resources that failed in this update have errors of their own."""
    text = await pulumi.Output.from_input(kubeconfig).future()
    expected = [
        (each.namespace, each.release, await each.revision.future() if each.revision else None)
        for each in made
        if await each.resource.id.is_known()
    ]
    if pulumi.runtime.is_dry_run() or text is None:
        return
    problems: list[Finding] = []
    try:
        missing = await asyncio.to_thread(releases.ask, text, expected)
        if ready and not missing and len(expected) == len(made):
            problems = await asyncio.to_thread(lambda: lasting(partial(ready, RestApi(text)), SystemClock()))
    except ValueError as error:
        pulumi.warn(f"it is unknown whether the Helm releases are installed: {error}")
        return
    except (ApiError, TimedOut) as error:
        what = f"it is unknown whether what is installed works: {error}"
        raise pulumi.RunError(with_fix(what, ASK_VERIFY)) from None
    if missing:
        raise pulumi.RunError("\n".join(missing))
    if problems:
        listed = "\n".join(str(each) for each in problems)
        raise pulumi.RunError(f"{listed}\n`busbar verify {shown(pulumi.get_stack())}` compares all of it")

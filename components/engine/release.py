"""A Helm release in its own namespace: the operators call `create_release` with themselves as parent."""

import asyncio
import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pulumi
import pulumi_kubernetes as kubernetes

from busbar import names
from busbar.components.engine.cluster_objects import create_privileged_namespace
from busbar.components.engine.release_hooks import create_recovery_hooks
from busbar.components.engine.update_end import Installed
from busbar.config import Chart
from busbar.config.kubernetes_values import is_local_chart
from busbar.kube.client import Api, RestApi
from busbar.manifests.operators import Operator, OperatorConfig

HELM_VALUES = Path(__file__).resolve().parents[2] / "helm_values"
# Number of past revisions that stay as Secrets in the cluster; 0 would mean all of them.
MAX_HISTORY = 5


@dataclass(frozen=True, kw_only=True)
class ChartSource:
    """The source of a chart: a name in `repository`, an oci:// URL, a folder or an archive."""

    chart: str
    version: str | None = None
    repository: str | None = None

    @classmethod
    def configured(cls, config: Chart) -> "ChartSource":
        """The source of a chart of the configuration."""
        # A folder or an archive has one version, whichever is configured.
        version = None if config.is_local else config.version
        return cls(chart=config.chart, version=version, repository=config.repository_url)

    def __str__(self) -> str:
        """As `helm` takes it."""
        options = {"--repo": self.repository, "--version": self.version}
        return " ".join([self.chart, *(f"{key} {value}" for key, value in options.items() if value)])

    def digest(self) -> str | None:
        """`chart sha256:...` over the files of a local chart, None for any other."""
        path = Path(self.chart).expanduser()
        if not is_local_chart(self.chart):
            return None
        total = hashlib.sha256()
        for file in sorted(each for each in (path, *path.rglob("*")) if each.is_file()):
            content = hashlib.sha256(file.read_bytes()).hexdigest()
            total.update(f"{content}  {file.relative_to(path)}\n".encode())
        return f"chart sha256:{total.hexdigest()}"


@dataclass(frozen=True, kw_only=True)
class ReleaseArgs:
    """The Helm release of an operator on a cluster.

    `operator` has its name in Helm and its namespace, `config` its time limit. `await_ready`: whether Helm
    waits for the pods; not needed if something after the release waits for the resources that they offer.
    `before_change` is called just before each installation and upgrade, which does not happen if it raises.
    """

    kubeconfig: pulumi.Input[str]
    operator: Operator
    config: OperatorConfig
    source: ChartSource
    values: Mapping[str, Any]
    await_ready: bool = False
    before_change: Callable[[Api], None] | None = None


@dataclass(frozen=True)
class InstalledRelease:
    """A Helm release and its namespace. `installed`: both, for the check at the end of the update."""

    release: kubernetes.helm.v3.Release
    namespace: kubernetes.core.v1.Namespace
    installed: tuple[Installed, ...]


def create_release(
    name: str, args: ReleaseArgs, parent: pulumi.Resource, *, keep_namespace: bool | None = None
) -> InstalledRelease:
    """Register `<name>-namespace` and `<name>-release` as children of the operator called `name`.

    The history is bounded, and hooks run (operators upgrade their CRDs in them). `keep_namespace`: a destroy
    leaves it, with the volumes in it.
    """
    operator, source = args.operator, args.source
    namespace = create_privileged_namespace(
        f"{name}-namespace",
        operator.namespace,
        args.kubeconfig,
        pulumi.ResourceOptions(parent=parent, retain_on_delete=keep_namespace),
    )
    resource = names.release(name)

    async def check(api: RestApi) -> None:
        # Imported here: only an installation needs it.
        from busbar.helm import crds

        policy = operator.policy
        if policy and not operator.renews_crds and await asyncio.to_thread(crds.is_in, api, policy["path"]):
            objects = await _rendered(args, parent)
            await asyncio.to_thread(crds.compare, api, objects, f"helm show crds {source}")

    release = kubernetes.helm.v3.Release(
        resource,
        kubernetes.helm.v3.ReleaseArgs(
            name=operator.release,
            namespace=namespace.metadata["name"],
            chart=source.chart,
            version=source.version,
            repository_opts=kubernetes.helm.v3.RepositoryOptsArgs(repo=source.repository)
            if source.repository
            else None,
            values=dict(args.values),
            timeout=args.config.timeout_seconds,
            max_history=MAX_HISTORY,
            # The provider does not read a chart's files; this digest makes it install changed ones.
            description=source.digest(),
            create_namespace=False,
            skip_await=not args.await_ready,
            # The upgrade replaces CRDs in a hook; a check against the old CRDs would refuse the new objects.
            disable_openapi_validation=True,
        ),
        opts=pulumi.ResourceOptions(
            parent=parent,
            # Two releases of one name would share their objects, so the old one is deleted first.
            delete_before_replace=True,
            hooks=create_recovery_hooks(
                resource, operator.release, operator.namespace, args.kubeconfig, check, args.before_change
            ),
        ),
    )
    made = (
        Installed(namespace, operator.namespace),
        Installed(release, operator.namespace, operator.release),
    )
    return InstalledRelease(release, namespace, made)


async def _rendered(args: ReleaseArgs, parent: pulumi.Resource) -> list[Any]:
    """The objects of the chart, with its CRDs."""
    source = args.source
    options = {
        "path" if source.digest() else "chart": source.chart,
        "version": source.version,
        "fetch_opts": {"repo": source.repository},
        "release_name": args.operator.release,
        "values": dict(args.values),
    }
    found = await pulumi.runtime.invoke_async(
        "kubernetes:helm:template", {"jsonOpts": json.dumps(options)}, pulumi.InvokeOptions(parent=parent)
    )
    return list(found["result"])


def changes(*releases: InstalledRelease) -> pulumi.Output[Any]:
    """A `replacement_trigger` that changes with each upgrade and each installation into a new namespace.

    A trigger that a state does not have yet replaces nothing, unlike one in the inputs of a Command.
    """

    def read(metadata: Any, status: Any) -> list[Any]:
        return [(metadata or {}).get("uid"), (status or {}).get("revision")]

    async def none_if_failed() -> list[Any] | None:
        return await found.future() if await found.is_known() else None

    pairs = [pulumi.Output.all(each.namespace.metadata, each.release.status) for each in releases]
    found = pulumi.Output.all(*(pair.apply(lambda known: read(*known)) for pair in pairs))
    # An unknown trigger would end the whole update, even the steps that continue after a failed release.
    return found if pulumi.runtime.is_dry_run() else pulumi.Output.from_input(none_if_failed())


def installed_version(made: InstalledRelease, configured: str) -> pulumi.Output[str]:
    """The chart's version as Helm reports it after the installation; `configured` if it reports none."""

    def read(status: Any) -> str:
        found = status.get("version") if isinstance(status, Mapping) else None
        return str(found or configured)

    return pulumi.Output.from_input(made.release.status).apply(read)

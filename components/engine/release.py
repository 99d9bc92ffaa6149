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
from busbar.kube.client import Api, RestApi
from busbar.manifests.operators import Operator

HELM_VALUES = Path(__file__).resolve().parents[2] / "helm_values"
# Number of past revisions that stay as Secrets in the cluster; 0 would mean all of them.
MAX_HISTORY = 5


@dataclass(frozen=True)
class InstalledRelease:
    """A Helm release and its namespace. `installed`: both, for the check at the end of the update."""

    release: kubernetes.helm.v3.Release
    namespace: kubernetes.core.v1.Namespace
    version: pulumi.Output[str]
    """The version that runs, known after the installation."""
    installed: tuple[Installed, ...]


def create_release(
    name: str,
    operator: Operator,
    chart: Chart,
    values: Mapping[str, Any],
    kubeconfig: pulumi.Input[str],
    parent: pulumi.Resource,
    *,
    timeout_seconds: int,
    image: str | None = None,
    await_ready: bool = False,
    before_change: Callable[[Api], None] | None = None,
    keep_namespace: bool | None = None,
) -> InstalledRelease:
    """Register `<name>-namespace` and `<name>-release` as children of the operator called `name`.

    The history is bounded, and hooks run (operators upgrade their CRDs in them).

    `image`: where it is configured, its tag is the version that runs. `await_ready`: whether Helm waits for
    the pods; not needed if something after the release waits for the resources that they offer.
    `before_change` is called just before each installation and upgrade, which does not happen if it raises.
    `keep_namespace`: a destroy leaves it, with the volumes in it.
    """
    namespace = create_privileged_namespace(
        f"{name}-namespace",
        operator.namespace,
        kubeconfig,
        pulumi.ResourceOptions(parent=parent, retain_on_delete=keep_namespace),
    )
    resource, repository = names.release(name), chart.repository_url
    # A folder or an archive has one version, whichever is configured.
    version = None if chart.is_local else chart.version

    async def check(api: RestApi) -> None:
        # Imported here: only an installation needs it.
        from busbar.helm import crds

        policy = operator.policy
        if not policy or operator.renews_crds or not await asyncio.to_thread(crds.is_in, api, policy["path"]):
            return
        request = {
            "path" if chart.is_local else "chart": chart.chart,
            "version": version,
            "fetch_opts": {"repo": repository},
            "release_name": operator.release,
            "values": dict(values),
        }
        found = await pulumi.runtime.invoke_async(
            "kubernetes:helm:template", {"jsonOpts": json.dumps(request)}, pulumi.InvokeOptions(parent=parent)
        )
        options = {"--repo": repository, "--version": version}
        given = [f"{key} {value}" for key, value in options.items() if value]
        command = " ".join(["helm show crds", chart.chart, *given])
        await asyncio.to_thread(crds.compare, api, list(found["result"]), command)

    release = kubernetes.helm.v3.Release(
        resource,
        kubernetes.helm.v3.ReleaseArgs(
            name=operator.release,
            namespace=namespace.metadata["name"],
            chart=chart.chart,
            version=version,
            repository_opts=kubernetes.helm.v3.RepositoryOptsArgs(repo=repository) if repository else None,
            values=dict(values),
            timeout=timeout_seconds,
            max_history=MAX_HISTORY,
            # The provider does not read a chart's files; this digest makes it install changed ones.
            description=files_digest(chart),
            create_namespace=False,
            skip_await=not await_ready,
            # The upgrade replaces CRDs in a hook; a check against the old CRDs would refuse the new objects.
            disable_openapi_validation=True,
        ),
        opts=pulumi.ResourceOptions(
            parent=parent,
            # Two releases of one name would share their objects, so the old one is deleted first.
            delete_before_replace=True,
            hooks=create_recovery_hooks(
                resource, operator.release, operator.namespace, kubeconfig, check, before_change
            ),
        ),
    )

    def running(status: Any) -> str:
        # A chart of busbar has the version that it was made for, but the image is what runs.
        if image:
            return image_version(image)
        found = status.get("version") if isinstance(status, Mapping) else None
        return str(found or chart.version)

    return InstalledRelease(
        release,
        namespace,
        pulumi.Output.from_input(release.status).apply(running),
        (Installed(namespace, operator.namespace), Installed(release, operator.namespace, operator.release)),
    )


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

"""The provider for objects on the cluster, objects that several components make, and steps of hooks on it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pulumi
import pulumi_kubernetes as kubernetes

from busbar.components.engine.hosts import owner_mark
from busbar.finding import Finding, with_fix
from busbar.kube import batches
from busbar.kube.client import ASK_VERIFY, Api, ApiError, RestApi
from busbar.kube.objects import claim_namespace
from busbar.kube.wait import TimedOut
from busbar.manifests import names as namespaces

_KINDS: dict[str, Any] = {
    "ClusterRoleBinding": kubernetes.rbac.v1.ClusterRoleBinding,
    "ConfigMap": kubernetes.core.v1.ConfigMap,
    "DaemonSet": kubernetes.apps.v1.DaemonSet,
    "Deployment": kubernetes.apps.v1.Deployment,
    "Job": kubernetes.batch.v1.Job,
    "PersistentVolume": kubernetes.core.v1.PersistentVolume,
    "PersistentVolumeClaim": kubernetes.core.v1.PersistentVolumeClaim,
    "Service": kubernetes.core.v1.Service,
    "ServiceAccount": kubernetes.core.v1.ServiceAccount,
}
_ARGUMENTS = {"roleRef": "role_ref"}


def create_cluster_provider(
    kubeconfig: pulumi.Input[str],
    identifier: pulumi.Input[str],
    opts: pulumi.ResourceOptions | None = None,
    *,
    name: str = "cluster",
) -> kubernetes.Provider:
    """Register the provider. If its `identifier` changed, the engine would replace everything."""
    return kubernetes.Provider(
        name,
        kubeconfig=kubeconfig,
        cluster_identifier=identifier,
        # An update adopts objects that an interrupted one made without recording them.
        upsert_existing_objects=True,
        opts=opts,
    )


def create_object(
    name: str, manifest: Mapping[str, Any], opts: pulumi.ResourceOptions
) -> pulumi.CustomResource:
    """Register the object of a manifest, whose kind is in _KINDS, else defined by a CRD."""
    kind = _KINDS.get(manifest["kind"])
    if kind is None:
        return create_custom_resource(name, manifest, opts)
    given = {key: value for key, value in manifest.items() if key not in ("apiVersion", "kind")}
    fields = {_ARGUMENTS.get(key, key): value for key, value in given.items()}
    made: pulumi.CustomResource = kind(name, **fields, opts=of_fixed_name(opts))
    return made


def create_custom_resource(
    name: str, manifest: Mapping[str, Any], opts: pulumi.ResourceOptions
) -> kubernetes.apiextensions.CustomResource:
    """Register the object of a manifest with apiVersion, kind, metadata and spec."""
    return kubernetes.apiextensions.CustomResource(
        name,
        api_version=manifest["apiVersion"],
        kind=manifest["kind"],
        metadata=manifest["metadata"],
        spec=manifest["spec"],
        opts=of_fixed_name(opts),
    )


def uid_of(resource: pulumi.Resource) -> pulumi.Output[str | None]:
    """The uid of a resource's object: an object that was made again has another one under the same name."""
    metadata: pulumi.Output[Mapping[str, Any]] = pulumi.get(resource, "metadata")
    return metadata.apply(lambda found: found.get("uid"))


def known_or_none(value: pulumi.Output[Any]) -> pulumi.Output[Any]:
    """The value, None where it is not known: a `replacement_trigger` that is None replaces nothing.

    An unknown one would replace the resource in each preview, and would end an update.
    """

    async def read() -> Any:
        return await value.future() if await value.is_known() else None

    return pulumi.Output.from_input(read())


def create_privileged_namespace(
    name: str,
    namespace: str,
    kubeconfig: pulumi.Input[str],
    opts: pulumi.ResourceOptions,
    *,
    configurable: bool = False,
) -> kubernetes.core.v1.Namespace:
    """Register a namespace with privileged pods, which device plugins, drivers and locked memory need.

    It is deleted with the stack. It is created before the provider adopts it, so that an existing one is
    refused, unless this resource created it and it is not in the state, after an interrupted update or a
    `destroy` that retained it. With `configurable`, a new name is checked before the former is deleted.
    """
    owner = owner_mark(name)

    async def claim_it(_: pulumi.ResourceHookArgs) -> None:
        await run_on_cluster(kubeconfig, lambda api: claim_namespace(api, namespace, owner))

    hook = pulumi.ResourceHook(f"{name}-claim", claim_it)
    hooks = pulumi.ResourceOptions(hooks=pulumi.ResourceHookBinding(before_create=[hook]))
    if configurable:
        when_renamed = pulumi.ResourceHookBinding(before_update=[hook])
        claimed = pulumi.ResourceOptions(parent=opts.parent, depends_on=opts.depends_on, hooks=when_renamed)
        hooks.depends_on = [pulumi.Stash(f"{name}-name", input=namespace, opts=claimed)]
    return kubernetes.core.v1.Namespace(
        name,
        metadata=namespaces.render_namespace(namespace)["metadata"],
        opts=of_fixed_name(pulumi.ResourceOptions.merge(opts, hooks)),
    )


def deleted_with(resource: pulumi.Resource) -> pulumi.ResourceTransformation:
    """The transformation of a component whose objects are gone from the cluster together with `resource`."""

    def apply(args: pulumi.ResourceTransformationArgs) -> pulumi.ResourceTransformationResult | None:
        if not args.type_.startswith("kubernetes:"):
            return None
        opts = pulumi.ResourceOptions.merge(args.opts, pulumi.ResourceOptions(deleted_with=resource))
        return pulumi.ResourceTransformationResult(args.props, opts)

    return apply


def of_fixed_name(opts: pulumi.ResourceOptions) -> pulumi.ResourceOptions:
    """Options of an object of fixed name: a replacement made first would be the former object, adopted."""
    return pulumi.ResourceOptions.merge(opts, pulumi.ResourceOptions(delete_before_replace=True))


async def refuse_changes(kubeconfig: pulumi.Input[str], look: Callable[[RestApi], Sequence[Finding]]) -> None:
    """Let the update or preview fail with what `look` finds, before anything is registered.

    `kubeconfig`: of another stack, so that a preview knows it too.
    """
    text = await pulumi.Output.from_input(kubeconfig).future()
    try:
        found = await asyncio.to_thread(batches.answer, str(text), look)
    except (ApiError, TimedOut, ValueError) as error:
        what = f"the cluster cannot be asked what must not be changed: {error}"
        raise pulumi.RunError(with_fix(what, ASK_VERIFY)) from None
    if found:
        raise pulumi.RunError("\n".join(map(str, found)))


async def run_on_cluster(kubeconfig: pulumi.Input[str], step: Callable[[Api], str | None]) -> None:
    """Run the step of a hook, and show the message that it returns as a warning."""
    # The kubeconfig is known when a hook runs.
    text = str(await pulumi.Output.from_input(kubeconfig).future())
    # The step runs in a thread, because the program's event loop serves the engine meanwhile.
    if message := await asyncio.to_thread(lambda: step(RestApi(text))):
        pulumi.log.warn(message)

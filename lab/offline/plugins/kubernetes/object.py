"""A Kubernetes object of any kind, and `XxxPatch`, which edits an object made elsewhere.

After pulumi-kubernetes 4.34 (provider/pkg/provider/provider.go).
"""

from __future__ import annotations

from busbar.kube.transport import Unreachable
from lab.offline.plugins.kubernetes import checkpoint, diff, immutable_fields, messages, refresh
from lab.offline.plugins.kubernetes.client import ApiError, Object
from lab.offline.plugins.kubernetes.cluster import Cluster
from lab.offline.plugins.kubernetes.kinds import Kind, NoMatch, annotation, is_crd, metadata
from lab.offline.plugins.kubernetes.waiting import NotReady, Waiter
from lab.offline.plugins.sdk.resource import (
    Call,
    Difference,
    Failure,
    InitializationError,
    ProviderError,
    Resource,
)
from lab.offline.plugins.sdk.values import Properties, Unknown, has_unknown

_REFUSALS = (ApiError, Unreachable, NoMatch, ProviderError)


class KubernetesObject(Resource):
    """Objects on one cluster."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    def check(self, call: Call, olds: Properties, news: Properties) -> tuple[Properties, list[Failure]]:
        old, new = checkpoint.to_object(olds), checkpoint.to_object(news)
        settings = self._cluster.settings
        if self._cluster.unreachable and settings.skip_update_unreachable:
            call.log_message(
                "warning", "Cluster is unreachable but skipUpdateUnreachable is set to true, skipping..."
            )
            return olds, []
        if not settings.server_side_apply:
            raise ProviderError("this replacement of the kubernetes plugin applies server-side only")
        if _is_patch(call, new) and not checkpoint.named(new):
            raise ProviderError("patch resources require the `.metadata.name` field to be set")
        if metadata(new).get("generateName"):
            raise ProviderError(
                "the `.metadata.generateName` field is not supported in Server-Side Apply mode"
            )
        checkpoint.give_name(call, new, old)
        kind = Kind.of_token(call.type)
        if _is_patch(call, new):
            kind = Kind(kind.group, kind.version, kind.kind.removesuffix("Patch"))
        default = self._cluster.default_namespace
        placeable = isinstance(new.get("metadata"), dict) and not metadata(new).get("namespace")
        if placeable and default and self._cluster.kinds.namespaced(kind):
            new["metadata"]["namespace"] = default
        if is_crd(new):
            self._cluster.kinds.announce(new)
        return checkpoint.hide(new, news), []

    def diff(self, call: Call, id: str, state: Properties, news: Properties) -> Difference:
        old, live = checkpoint.load(state)
        new = checkpoint.to_object(news)
        pruned: Object = checkpoint.prune(live, old)
        kind = Kind.of(new)
        for obj in (pruned, new, old):
            _settle_namespace(obj, self._cluster.kinds.namespaced(kind))
        pruned.setdefault("apiVersion", new.get("apiVersion"))
        pruned.setdefault("kind", new.get("kind"))
        if metadata(new).get("name") and isinstance(pruned.get("metadata"), dict):
            pruned["metadata"]["name"] = metadata(live).get("name")
        settings = self._cluster.settings
        immutable = immutable_fields.fields(
            new,
            patch=_is_patch(call, new),
            mutable_config_maps=settings.mutable_config_maps,
            mutable_secrets=settings.mutable_secrets,
        )
        found = diff.changes(pruned, new, old, immutable, built_in=kind.built_in)
        found = {path: how for path, how in found.items() if not _ignored(path, call.ignore_changes)}
        extra = self._replace_unready(call, new, live)
        same_place = metadata(new).get("name") == metadata(live).get("name") and metadata(new).get(
            "namespace", ""
        ) == metadata(pruned).get("namespace", "")
        must_go_first = (
            checkpoint.named(new) and annotation(new, checkpoint.AUTONAMED) != "true" and same_place
        )
        difference = Difference(found, extra)
        return Difference(found, extra, delete_before_replace=bool(difference.replaces) and must_go_first)

    def _replace_unready(self, call: Call, new: Object, live: Object) -> tuple[str, ...]:
        if annotation(new, "pulumi.com/replaceUnready") != "true" or new.get("kind") != "Job":
            return ()
        if self._cluster.unreachable:
            call.log_message("warning", "Cluster is unreachable, skipping replaceUnready check")
            return ()
        try:
            current = self._cluster.get(live)
            Waiter(self._cluster, call, new).ready_now(current)
        except NotReady:
            return ('metadata.annotations["pulumi.com/replaceUnready"]',)
        except _REFUSALS:
            return ()
        return ()

    def create(self, call: Call, inputs: Properties) -> tuple[str, Properties]:
        wanted = checkpoint.to_object(inputs)
        patch = _is_patch(call, wanted)
        if call.preview and (has_unknown(wanted) or patch or not self._cluster.kinds.exists(Kind.of(wanted))):
            return "", inputs
        manager = checkpoint.field_manager(wanted, {})
        try:
            made = self._cluster.applier.create(call, wanted, manager, patch=patch)
        except NoMatch as error:
            what = (
                f'creation of resource "{call.urn}" with kind {Kind.of(wanted).api_version}/{wanted["kind"]}'
            )
            raise ProviderError(messages.no_such_kind(what, error)) from error
        except (ApiError, Unreachable, ProviderError) as error:
            if call.preview and _cannot_preview(error):
                return "", inputs
            raise ProviderError(messages.not_created(call.urn, error)) from error
        if call.preview:
            made.pop("status", None)
            return "", checkpoint.store(wanted, made, inputs, wanted["apiVersion"], manager)
        id = checkpoint.full_name(made)
        try:
            live = Waiter(self._cluster, call, wanted).ready(made)
        except NotReady as error:
            raise InitializationError(
                messages.created_but_not_ready(call.urn, error),
                id=id,
                state=checkpoint.store(wanted, error.live, inputs, wanted["apiVersion"], manager),
                reasons=error.reasons,
            ) from error
        return id, checkpoint.store(wanted, live, inputs, wanted["apiVersion"], manager)

    def update(self, call: Call, id: str, state: Properties, news: Properties) -> Properties:
        wanted = checkpoint.to_object(news)
        if call.preview and (has_unknown(wanted) or not self._cluster.kinds.exists(Kind.of(wanted))):
            return news
        _, before = checkpoint.load(state)
        manager = checkpoint.field_manager(wanted, state)
        api_version = str(state.get(checkpoint.API_VERSION, wanted["apiVersion"]))
        applier = self._cluster.applier
        try:
            live = applier.update(call, wanted, manager, patch=_is_patch(call, wanted))
            if call.preview:
                return checkpoint.store(wanted, live, news, api_version, manager)
            live = Waiter(self._cluster, call, wanted).ready(live)
        except NoMatch as error:
            what = f'update of resource "{call.urn}"'
            raise ProviderError(messages.no_such_kind(what, error)) from error
        except (ApiError, Unreachable, ProviderError, NotReady) as error:
            if call.preview and getattr(error, "code", 0) == 403:
                return news
            raise self._half_updated(id, error, wanted, before, news, api_version, manager) from error
        if manager != (former := checkpoint.field_manager(wanted, state, ignore_annotation=True)):
            applier.relinquish(live, former)
        return checkpoint.store(wanted, live, news, api_version, manager)

    def _half_updated(
        self,
        id: str,
        error: Exception,
        wanted: Object,
        before: Object,
        news: Properties,
        api_version: str,
        manager: str,
    ) -> ProviderError:
        """The error of a failed update, with the server's present state if it can be read."""
        try:
            live = error.live if isinstance(error, NotReady) else self._cluster.get(before)
        except _REFUSALS as second:
            return ProviderError(
                f'update of resource "{id}" failed: {error}\nunable to get cluster state: {second}'
            )
        return InitializationError(
            messages.updated_but_not_ready(id, error),
            id=id,
            state=checkpoint.store(wanted, live, news, api_version, manager),
            reasons=error.reasons if isinstance(error, NotReady) else [],
        )

    def read(
        self, call: Call, id: str, state: Properties, inputs: Properties
    ) -> tuple[str, Properties, Properties] | None:
        return refresh.read(self._cluster, call, id, state, inputs)

    def delete(self, call: Call, id: str, state: Properties) -> None:
        inputs, live = checkpoint.load(state)
        if self._cluster.unreachable:
            call.log_message("warning", messages.unreachable(self._cluster.unreachable))
            if self._cluster.settings.delete_unreachable:
                call.log_message("info", messages.dropped())
                return
            raise ProviderError(messages.cannot_delete())
        applier = self._cluster.applier
        try:
            if _is_patch(call, inputs or live):
                applier.relinquish(live, checkpoint.field_manager(inputs, state))
                return
            applier.delete(live, inputs)
            Waiter(self._cluster, call, inputs, live).gone(live)
        except NoMatch:
            return  # its CRD is gone, and it with it
        except NotReady as error:
            manager, version = (
                checkpoint.field_manager(inputs, state),
                str(state.get(checkpoint.API_VERSION, "")),
            )
            raise InitializationError(
                str(error),
                id=id,
                state=checkpoint.store(inputs, error.live, state, version, manager),
                reasons=[],
            ) from error
        except ApiError as error:
            if error.code == 404:
                return
            if _is_patch(call, inputs or live) and "Required value" in str(error):
                raise ProviderError(messages.required_field(error)) from error
            raise ProviderError(str(error)) from error
        except Unreachable as error:
            raise ProviderError(str(error)) from error


def _is_patch(call: Call, obj: Object) -> bool:
    return call.type.split(":")[-1] == f"{obj.get('kind')}Patch"


def _settle_namespace(obj: Object, namespaced: bool) -> None:
    found = obj.get("metadata")
    if not isinstance(found, dict):
        return
    if namespaced and not isinstance(found.get("namespace"), Unknown):
        found["namespace"] = found.get("namespace") or "default"
    elif not namespaced:
        found.pop("namespace", None)


def _ignored(path: str, ignored: tuple[str, ...]) -> bool:
    steps = immutable_fields.steps(path)
    prefixes = [immutable_fields.steps(item) for item in ignored]
    return any(steps[: len(prefix)] == prefix for prefix in prefixes)


def _cannot_preview(error: Exception) -> bool:
    """Whether a refused dry run does not mean that the real request would fail."""
    if not isinstance(error, ApiError):
        return False
    missing_namespace = error.code == 404 and error.details.get("kind") == "namespaces"
    no_dry_run = error.code == 400 and "dry run" in str(error)
    return error.code == 403 or error.reason == "AlreadyExists" or missing_namespace or no_dry_run

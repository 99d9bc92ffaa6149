"""Looking at an object again: refresh and import."""

from __future__ import annotations

from typing import Any

from busbar.kube.transport import Unreachable
from lab.offline.plugins.kubernetes import checkpoint, diff, messages
from lab.offline.plugins.kubernetes.client import ApiError, Object
from lab.offline.plugins.kubernetes.cluster import Cluster
from lab.offline.plugins.kubernetes.kinds import Kind, NoMatch, metadata
from lab.offline.plugins.kubernetes.waiting import NotReady, Waiter
from lab.offline.plugins.sdk.resource import Call, InitializationError, ProviderError
from lab.offline.plugins.sdk.values import Properties


def read(
    cluster: Cluster, call: Call, id: str, state: Properties, inputs: Properties
) -> tuple[str, Properties, Properties] | None:
    """ID, state and inputs of the object as it is now, None where it is gone.

    Raises InitializationError if it exists but is not ready, ProviderError if that is unknown.
    """
    if cluster.unreachable:
        return _unreachable(cluster, call, id, state, inputs)
    old = checkpoint.to_object(inputs)
    if not old.get("kind"):
        kind = Kind.of_token(call.type)
        namespace, name = checkpoint.split_name(id)
        place = {"name": name, **({"namespace": namespace} if namespace else {})}
        old |= {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": place}
    imported = not inputs
    try:
        live = cluster.get({**old, "metadata": {**metadata(old), "name": checkpoint.split_name(id)[1]}})
    except NoMatch:
        return None
    except ApiError as error:
        if error.code == 404:
            return None
        raise ProviderError(str(error)) from error
    except Unreachable as error:
        raise ProviderError(str(error)) from error
    kept = _importable(live) if imported else checkpoint.prune(live, old)
    if not imported and Kind.of(live).built_in:
        kept = diff.as_written(kept, old)
    manager = checkpoint.field_manager(old, state)
    stored = checkpoint.store(
        kept, live, inputs, str(state.get(checkpoint.API_VERSION, live["apiVersion"])), manager
    )
    hidden = checkpoint.hide(kept, inputs)
    if not imported:
        try:
            Waiter(cluster, call, old).ready_now(live)
        except NotReady as error:
            raise InitializationError(
                str(error), id=id, state=stored, reasons=error.reasons, inputs=hidden
            ) from error
    return id, stored, hidden


def _unreachable(
    cluster: Cluster, call: Call, id: str, state: Properties, inputs: Properties
) -> tuple[str, Properties, Properties] | None:
    call.log_message("warning", messages.unreachable(cluster.unreachable))
    if cluster.settings.delete_unreachable:
        call.log_message("info", messages.dropped())
        return None
    if cluster.settings.skip_update_unreachable:
        return id, state, inputs
    raise ProviderError(messages.cannot_read())


def _importable(live: Object) -> Any:
    """The live object without what only the server writes."""
    kept = {key: value for key, value in live.items() if key != "status"}
    kept["metadata"] = {
        key: value
        for key, value in metadata(live).items()
        if key not in ("creationTimestamp", "generation", "managedFields", "resourceVersion", "uid")
    }
    return kept

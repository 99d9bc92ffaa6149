"""Requests that change an object: create, server-side apply, replace, delete.

After pulumi-kubernetes 4.34 (provider/pkg/await/await.go): a new object is created with the field manager
`pulumi-kubernetes`; the first update transfers its fields to the object's manager and applies.
"""

from __future__ import annotations

import copy
from typing import Any, Final

from lab.offline.plugins.kubernetes import messages
from lab.offline.plugins.kubernetes.client import APPLY, JSON_PATCH, ApiError, KubeClient, Object
from lab.offline.plugins.kubernetes.kinds import Endpoint, Kind, Kinds, NoMatch, annotation, is_crd, metadata
from lab.offline.plugins.sdk.resource import Call, ProviderError

CREATE_MANAGER: Final = "pulumi-kubernetes"
_CREATE_TRIES: Final = 6
# Managers whose fields the first apply takes over: earlier writers that did not apply server-side.
_ADOPTED: Final = frozenset(
    {
        *(("kubectl", operation) for operation in ("Apply", "Update")),
        *((name, "Update") for name in ("before-first-apply", CREATE_MANAGER, "pulumi-resource-kubernetes")),
    }
)


class Applier:
    """Changes objects on one cluster."""

    def __init__(self, client: KubeClient, kinds: Kinds, *, force: bool, upsert: bool) -> None:
        self._client = client
        self._kinds = kinds
        self._force = force
        self._upsert = upsert

    def create(self, call: Call, wanted: Object, manager: str, *, patch: bool) -> Object:
        """The created object; waits a while for a missing namespace or kind, unless this is a preview.

        Raises NoMatch, ApiError or Unreachable.
        """
        delay = 1.0
        for attempt in range(_CREATE_TRIES):
            try:
                return self._create_once(call, wanted, manager, patch=patch)
            except (ApiError, NoMatch) as error:
                missing = isinstance(error, NoMatch) or error.reason == "NotFound"
                if call.preview or not missing or attempt == _CREATE_TRIES - 1:
                    raise
                call.show(f"Retry #{attempt}; creation failed: {error}")
            if call.cancelled.wait(delay):
                break
            delay *= 2
        raise ProviderError("cancelled")

    def _create_once(self, call: Call, wanted: Object, manager: str, *, patch: bool) -> Object:
        endpoint = self._kinds.endpoint(Kind.of(wanted))
        body = _placed(wanted, endpoint)
        if patch or self._upsert:
            force = self._force or call.preview or annotation(wanted, "pulumi.com/patchForce") == "true"
            return self._apply(endpoint, body, manager, force=force, preview=call.preview)
        namespace = metadata(body).get("namespace")
        query = {"fieldManager": CREATE_MANAGER} | _dry_run(call.preview)
        return self._client.request("POST", endpoint.collection(namespace), query=query, body=body)

    def update(self, call: Call, wanted: Object, manager: str, *, patch: bool) -> Object:
        """The changed object. Raises NoMatch, ApiError or Unreachable."""
        endpoint = self._kinds.endpoint(Kind.of(wanted))
        body = _placed(wanted, endpoint)
        found = metadata(body)
        path = endpoint.object(found.get("namespace"), found["name"])
        live = self._client.request("GET", path)
        if is_crd(body):
            # Replaced as a whole: that neither deletes it nor any of its objects.
            found["resourceVersion"] = metadata(live)["resourceVersion"]
            query = {"fieldManager": manager} | _dry_run(call.preview)
            return self._client.request("PUT", path, query=query, body=body)
        managers = metadata(live).get("managedFields") or []
        force = self._force or annotation(wanted, "pulumi.com/patchForce") == "true" or not managers
        if not patch and call.preview:
            force = force or any(
                (item.get("manager"), item.get("operation")) in _ADOPTED for item in managers
            )
        elif not patch:
            self._take_over(path, live, manager)
        return self._apply(endpoint, body, manager, force=force, preview=call.preview)

    def _take_over(self, path: str, live: Object, manager: str) -> None:
        entries = metadata(live).get("managedFields") or []
        adopted = [
            item
            for item in entries
            if (item.get("manager"), item.get("operation")) in _ADOPTED and not item.get("subresource")
        ]
        if not adopted:
            return
        kept = [item for item in entries if item not in adopted]
        ours = next((i for i in kept if i.get("manager") == manager and i.get("operation") == "Apply"), None)
        fields: Object = {}
        for item in ([ours] if ours else []) + adopted:
            _merge(fields, item.get("fieldsV1") or {})
        entry = {**(ours or adopted[0]), "manager": manager, "operation": "Apply", "fieldsV1": fields}
        entry["apiVersion"] = live["apiVersion"]
        patch = [
            {
                "op": "replace",
                "path": "/metadata/managedFields",
                "value": [i for i in kept if i is not ours] + [entry],
            },
            {
                "op": "replace",
                "path": "/metadata/resourceVersion",
                "value": metadata(live)["resourceVersion"],
            },
        ]
        self._client.request("PATCH", path, body=patch, content_type=JSON_PATCH)

    def _apply(self, endpoint: Endpoint, body: Object, manager: str, *, force: bool, preview: bool) -> Object:
        found = metadata(body)
        query = {"fieldManager": manager, "force": str(force).lower(), "fieldValidation": "Warn"}
        path = endpoint.object(found.get("namespace"), found["name"])
        try:
            return self._client.request(
                "PATCH", path, query=query | _dry_run(preview), body=body, content_type=APPLY
            )
        except ApiError as error:
            if error.reason != "Conflict":
                raise
            raise ProviderError(messages.conflict(manager, error)) from error

    def relinquish(self, live: Object, manager: str) -> None:
        """Give up every field that `manager` owns; fields without another owner are removed."""
        endpoint = self._kinds.endpoint(Kind.of(live))
        identity = {key: metadata(live)[key] for key in ("name", "namespace") if key in metadata(live)}
        body = {"apiVersion": live["apiVersion"], "kind": live["kind"], "metadata": identity}
        self._apply(endpoint, _placed(body, endpoint), manager, force=False, preview=False)

    def delete(self, live: Object, inputs: Object) -> None:
        """Request the deletion, in the foreground unless an annotation says otherwise."""
        endpoint = self._kinds.endpoint(Kind.of(live))
        policy = annotation(inputs, "pulumi.com/deletionPropagationPolicy").title()
        body = {
            "apiVersion": "v1",
            "kind": "DeleteOptions",
            "propagationPolicy": policy if policy in ("Orphan", "Background") else "Foreground",
        }
        found = metadata(live)
        self._client.request("DELETE", endpoint.object(found.get("namespace"), found["name"]), body=body)


def _placed(wanted: Object, endpoint: Endpoint) -> Object:
    """A copy of the object, without a namespace where its kind has none."""
    body = copy.deepcopy(wanted)
    if not endpoint.namespaced:
        metadata(body).pop("namespace", None)
    return body


def _dry_run(preview: bool) -> dict[str, str]:
    return {"dryRun": "All"} if preview else {}


def _merge(into: Object, fields: dict[str, Any]) -> None:
    for key, value in fields.items():
        if isinstance(into.get(key), dict) and isinstance(value, dict):
            _merge(into[key], value)
        else:
            into[key] = copy.deepcopy(value)

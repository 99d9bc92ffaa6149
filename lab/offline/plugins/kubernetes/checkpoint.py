"""What is stored of a Kubernetes object: its live form, and beside it the inputs that made it.

Keys and rules as in pulumi-kubernetes 4.34 (provider/pkg/provider/provider.go: checkpointObject,
parseCheckpointObject, pruneLiveState; pkg/metadata/naming.go).
"""

from __future__ import annotations

import base64
import copy
from typing import Any, Final

from lab.offline.plugins.kubernetes.client import Object
from lab.offline.plugins.kubernetes.kinds import annotation, is_crd, metadata
from lab.offline.plugins.sdk.resource import Call, ProviderError, unique
from lab.offline.plugins.sdk.values import Properties, Secret, Unknown, has_unknown, mark_secrets_like, reveal

INPUTS: Final = "__inputs"
API_VERSION: Final = "__initialApiVersion"
FIELD_MANAGER: Final = "__fieldManager"
AUTONAMED: Final = "pulumi.com/autonamed"

_READ_ONLY: Final = (
    *("creationTimestamp", "deletionGracePeriodSeconds", "deletionTimestamp", "generation"),
    *("managedFields", "resourceVersion", "uid"),
)
# The SDKs cannot spell these keys of a JSON schema.
_DASHED: Final = {
    f"x_kubernetes_{name}": f"x-kubernetes-{name.replace('_', '-')}"
    for name in (
        *("embedded_resource", "int_or_string", "list_map_keys", "list_type", "map_type"),
        *("preserve_unknown_fields", "validations"),
    )
}
_UNDERSCORED: Final = {dashed: name for name, dashed in _DASHED.items()}


def _rename(value: Any, names: dict[str, str]) -> Any:
    if isinstance(value, dict):
        return {names.get(key, key): _rename(item, names) for key, item in value.items()}
    if isinstance(value, list):
        return [_rename(item, names) for item in value]
    return value


def to_object(properties: Properties) -> Object:
    """The plain object that properties describe, as the API server wants to read it; unknowns stay."""
    obj: Object = _rename(reveal(properties), _DASHED)
    found = obj.get("metadata")
    if isinstance(found, dict):
        obj["metadata"] = {key: value for key, value in found.items() if key not in _READ_ONLY}
    return obj if has_unknown(obj) else _as_served(obj)


def _as_served(obj: Object) -> Object:
    """The object without what the server never gives back in the form in which it was sent."""
    if obj.get("kind") == "Secret" and obj.get("apiVersion") == "v1" and obj.get("stringData"):
        written = {
            key: base64.b64encode(str(value).encode()).decode()
            for key, value in obj.pop("stringData").items()
        }
        obj["data"] = {**(obj.get("data") or {}), **written}
    if is_crd(obj):
        obj.pop("status", None)
        if obj.get("spec", {}).get("preserveUnknownFields") is False:
            del obj["spec"]["preserveUnknownFields"]
    return obj


def store(
    inputs: Object, live: Object, given: Properties, api_version: str, field_manager: str
) -> Properties:
    """The state of an object; what is secret in the `given` properties stays secret in it."""
    state = _hide(_rename(live, _UNDERSCORED), given)
    state[INPUTS] = _hide(_rename(inputs, _UNDERSCORED), given)
    state[API_VERSION] = api_version
    state[FIELD_MANAGER] = field_manager
    return state


def hide(inputs: Object, given: Properties) -> Properties:
    """The inputs to store for an object, with the secrets of the `given` properties marked."""
    return _hide(inputs, given)


def _hide(obj: Object, given: Properties) -> Properties:
    if obj.get("kind") == "Secret" and obj.get("apiVersion") == "v1":
        return {
            key: Secret(value) if key in ("data", "stringData") and not isinstance(value, Secret) else value
            for key, value in obj.items()
        }
    return mark_secrets_like(obj, given)


def load(state: Properties) -> tuple[Object, Object]:
    """The inputs and the live object of a stored state."""
    plain: Object = _rename(reveal(state), _DASHED)
    inputs = to_object(plain.pop(INPUTS, None) or {})
    plain.pop(API_VERSION, None)
    plain.pop(FIELD_MANAGER, None)
    return inputs, plain


def prune(live: Any, shape: Any) -> Any:
    """The part of `live` that the inputs `shape` set."""
    if isinstance(live, dict) and isinstance(shape, dict):
        return {key: prune(value, shape[key]) for key, value in live.items() if key in shape}
    if isinstance(live, list) and isinstance(shape, list):
        if not live or not shape:
            return []
        if type(live[0]) is not type(shape[0]):
            return copy.deepcopy(live)
        return [prune(value, wanted) for value, wanted in zip(live, shape, strict=False)]
    return copy.deepcopy(live)


def full_name(obj: Object) -> str:
    """The resource ID: `namespace/name`, or the name alone."""
    found = metadata(obj)
    return f"{found['namespace']}/{found['name']}" if found.get("namespace") else str(found["name"])


def split_name(id: str) -> tuple[str, str]:
    """Namespace ("" for none) and name of a resource ID."""
    namespace, _, name = id.rpartition("/")
    return namespace, name


def named(obj: Object) -> bool:
    """Whether the object has a name, or will have one that is not known yet."""
    name = metadata(obj).get("name")
    return isinstance(name, Unknown) or bool(name)


def give_name(call: Call, obj: Object, old: Object) -> None:
    """Name an unnamed object: as it was named before, or after the resource with a random ending."""
    if not isinstance(obj.get("metadata", {}), dict) or named(obj):
        return
    found = obj.setdefault("metadata", {})
    if annotation(old, AUTONAMED) == "true":
        found["name"] = metadata(old)["name"]
    elif old:
        return
    elif call.autonaming_disabled:
        raise ProviderError("autonaming is disabled, resource requires the .metadata.name field to be set")
    else:
        found["name"] = call.proposed_name or unique(f"{call.name}-")
    annotations = found.setdefault("annotations", {})
    if isinstance(annotations, dict):
        annotations[AUTONAMED] = "true"


def field_manager(obj: Object, state: Properties, *, ignore_annotation: bool = False) -> str:
    """The manager that applies the object: named by an annotation, stored, or new."""
    chosen = "" if ignore_annotation else annotation(obj, "pulumi.com/patchFieldManager")
    return chosen or str(state.get(FIELD_MANAGER) or unique("pulumi-kubernetes-"))

"""Compares the objects of Helm's releases with what Helm has applied, and applies that again.

The API server itself compares: in a dry run of a server-side apply it sets the fields of a manifest, with its
own defaults and forms of values, and leaves all others as they are.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import yaml

from busbar.exits import Failed
from busbar.finding import path_of
from busbar.helm.releases import decode, deployed
from busbar.kube.client import Api, ApiError, JsonObject
from busbar.kube.objects import find, quantity
from busbar.text import listed

_OF_SERVER = {"creationTimestamp", "generation", "managedFields", "resourceVersion", "uid"}
_NAMED_FIELDS = 3
_SHOWN = 60
# The controller of HorizontalPodAutoscalers, by which name the API server knows it.
_AUTOSCALER = "kube-controller-manager"


class _Loader(yaml.SafeLoader):
    """Reads a date as a text, as Helm does."""

    yaml_implicit_resolvers = {  # noqa: RUF012 (of the base class)
        first: [each for each in resolvers if not each[0].endswith(":timestamp")]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }


@dataclass(frozen=True)
class Difference:
    """An object of a release, by its path in the API, that is not as Helm has applied it.

    `refused`: the API server did not compare it.
    """

    path: str
    manifest: JsonObject
    what: str
    refused: bool = False


def differences(api: Api, releases: Iterable[tuple[str, str]]) -> list[Difference]:
    """Compare all objects of the deployed releases (namespace, name). Raises ApiError."""
    kinds: dict[str, dict[str, JsonObject]] = {}
    found = []
    for namespace, release in releases:
        for record in deployed(api, namespace, release)[-1:]:
            for manifest in _manifests(decode(record["data"]["release"])["manifest"]):
                found.append(_compare(api, manifest, _path(api, manifest, namespace, kinds)))
    return [each for each in found if each]


def apply(api: Api, found: Iterable[Difference]) -> None:
    """Set the fields of the manifests of these differences. Raises Failed."""
    for each in found:
        try:
            api.apply(each.path, each.manifest)
        except ApiError as error:
            kind, name = each.manifest["kind"], each.manifest["metadata"]["name"]
            fix = error.fix or "repair what the API server names, then retry"
            raise Failed(f"{kind} {name} cannot be applied: {error}", fix) from error


def _manifests(text: str) -> Iterator[JsonObject]:
    for manifest in yaml.load_all(text, _Loader):
        if manifest:
            yield from manifest["items"] if manifest["kind"].endswith("List") else [manifest]


def _path(
    api: Api, manifest: JsonObject, namespace: str, kinds: dict[str, dict[str, JsonObject]]
) -> str | None:
    """The object's path in the API; None where the cluster does not have its kind."""
    version, metadata = manifest["apiVersion"], manifest["metadata"]
    base = f"/{'apis' if '/' in version else 'api'}/{version}"
    if version not in kinds:
        served = (find(api, base) or {}).get("resources") or []
        kinds[version] = {each["kind"]: each for each in served if "/" not in each["name"]}
    kind = kinds[version].get(manifest["kind"])
    if kind is None:
        return None
    inside = f"/namespaces/{metadata.get('namespace') or namespace}" if kind["namespaced"] else ""
    return f"{base}{inside}/{kind['name']}/{metadata['name']}"


def _compare(api: Api, manifest: JsonObject, path: str | None) -> Difference | None:
    metadata = manifest["metadata"]
    name = f"{manifest['kind']} {'/'.join(filter(None, (metadata.get('namespace'), metadata['name'])))}"
    if path is None:
        what = f"the cluster does not have the kind of {name}, {manifest['apiVersion']}"
        return Difference("", manifest, what, refused=True)
    live = find(api, path)
    given = _without_nulls(manifest)
    if live is None:
        return Difference(path, given, f"{name} is not on the cluster")
    if any(
        each.get("manager") == _AUTOSCALER and each.get("subresource") == "scale"
        for each in live["metadata"].get("managedFields") or ()
    ):
        given["spec"].pop("replicas", None)
    try:
        wanted = api.apply(path, given, dryRun="All")
    except ApiError as error:
        return Difference(path, given, f"{name} cannot be compared: {error}", refused=True)
    is_secret = manifest["kind"] == "Secret"
    texts = [
        f"{path_of(where)} {'differs' if is_secret else f'is {_shown(now)}, expected {_shown(then)}'}"
        for where, now, then in _changed(live, wanted)
        if where[0] != "status" and not (where[0] == "metadata" and where[1] in _OF_SERVER)
    ]
    return Difference(path, given, f"{name}: {listed(texts, _NAMED_FIELDS)}") if texts else None


def _without_nulls(value: Any) -> Any:
    """The value without keys that are null: the API server has none of them."""
    if isinstance(value, dict):
        return {key: _without_nulls(below) for key, below in value.items() if below is not None}
    return [_without_nulls(each) for each in value] if isinstance(value, list) else value


def _changed(
    live: Any, wanted: Any, path: tuple[int | str, ...] = ()
) -> Iterator[tuple[tuple[int | str, ...], Any, Any]]:
    """Path, value and expected value of each field that differs."""
    if isinstance(live, dict) and isinstance(wanted, dict):
        for key in {**wanted, **live}:
            yield from _changed(live.get(key), wanted.get(key), (*path, key))
    elif isinstance(live, list) and isinstance(wanted, list) and len(live) == len(wanted):
        for index, (now, then) in enumerate(zip(live, wanted, strict=True)):
            yield from _changed(now, then, (*path, index))
    elif not (live == wanted or (_is_empty(live) and _is_empty(wanted)) or _is_same(live, wanted, path)):
        yield path, live, wanted


def _is_empty(value: Any) -> bool:
    return value is None or value == {} or value == []


def _is_same(live: Any, wanted: Any, path: tuple[int | str, ...]) -> bool:
    """Whether both are one quantity, such as `1000m` and `1`; a controller may write it in another form."""
    if not {"limits", "requests"} & {*path[-2:-1]}:
        return False
    try:
        return quantity(live) == quantity(wanted)
    except (ArithmeticError, KeyError):
        return False


def _shown(value: Any) -> str:
    if value is None:
        return "missing"
    text = value if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."

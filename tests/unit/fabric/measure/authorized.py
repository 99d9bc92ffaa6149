"""A cluster that allows what RBAC rules allow, as a real API server does, and notes what was used of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from busbar.kube.client import ApiError, JsonObject
from tests.unit.fabric.measure.foreign import Foreign

REVIEWS = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
USER = "system:serviceaccount:bench:serviceaccount"


class Right(NamedTuple):
    """One verb on one resource, such as `pods/log`. `namespace`: empty for the whole cluster."""

    verb: str
    group: str
    resource: str
    namespace: str

    def __str__(self) -> str:
        return f"{self.resource}{'.' + self.group if self.group else ''}: {self.verb}"


def rights_of(role: Mapping[str, Any]) -> Iterator[Right]:
    namespace = role["metadata"].get("namespace", "")
    for rule in role["rules"]:
        for group in rule["apiGroups"]:
            for resource in rule["resources"]:
                yield from (Right(verb, group, resource, namespace) for verb in rule["verbs"])


class Authorized(Foreign):
    """Answers 403 where no right allows a request. `used`: the rights by which requests were allowed."""

    def __init__(self, rights: Iterable[Right], *nodes: JsonObject) -> None:
        super().__init__(*nodes)
        self.rights = set(rights)
        self.used: set[Right] = set()

    def _right(self, wanted: Right) -> Right | None:
        return next((each for each in (wanted, wanted._replace(namespace="")) if each in self.rights), None)

    def _ask(self, method: str, verb: str, path: str) -> None:
        api, *parts = path.partition("?")[0].removeprefix("/").split("/")
        group = parts.pop(0) if api == "apis" else ""
        parts = parts[1:]
        if not parts:
            return  # Discovery is for everybody.
        namespace = ""
        if parts[0] == "namespaces" and len(parts) > 1:
            namespace = parts[1]
            parts = parts[2:] or parts
        resource = "/".join([parts[0], *parts[2:]])
        wanted = Right(verb, group, resource, namespace)
        if (found := self._right(wanted)) is None:
            where = f'in the namespace "{namespace}"' if namespace else "at the cluster scope"
            reason = f'{resource} is forbidden: User "{USER}" cannot {verb} resource "{resource}" {where}'
            raise ApiError(f"{method} {path}", 403, reason)
        self.used.add(found)

    def get(self, path: str, **query: str) -> JsonObject:
        self._ask("GET", "get", path)
        return super().get(path, **query)

    def list(self, path: str, **query: str) -> list[JsonObject]:
        self._ask("GET", "list", path)
        return super().list(path, **query)

    def create(self, path: str, body: Mapping[str, Any]) -> JsonObject:
        if path == REVIEWS:
            asked = body["spec"]["resourceAttributes"]
            resource = "/".join(filter(None, (asked["resource"], asked.get("subresource"))))
            right = Right(asked["verb"], asked.get("group", ""), resource, asked.get("namespace", ""))
            return {"status": {"allowed": self._right(right) is not None}}
        self._ask("POST", "create", path)
        return super().create(path, body)

    def merge(self, path: str, body: Mapping[str, Any]) -> JsonObject:
        self._ask("PATCH", "patch", path)
        return super().merge(path, body)

    def delete(self, path: str, **preconditions: str) -> JsonObject:
        self._ask("DELETE", "delete", path)
        return super().delete(path, **preconditions)

    def stream(self, path: str, **query: str) -> Iterator[bytes]:
        self._ask("GET", "get", path)
        return super().stream(path, **query)

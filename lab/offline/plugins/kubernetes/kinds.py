"""Which kinds exist, under which path, and whether they live in a namespace."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Any, Final

from busbar.kube.transport import Unreachable
from lab.offline.plugins.kubernetes.client import ApiError, KubeClient, Object

# Groups whose objects the server decodes into Go types, dropping empty fields; others are custom resources.
BUILT_IN_GROUPS: Final = frozenset(
    {
        *("", "admissionregistration.k8s.io", "apiextensions.k8s.io", "apiregistration.k8s.io", "apps"),
        *("autoscaling", "batch", "certificates.k8s.io", "coordination.k8s.io", "discovery.k8s.io"),
        *("events.k8s.io", "extensions", "flowcontrol.apiserver.k8s.io", "networking.k8s.io", "node.k8s.io"),
        *("policy", "rbac.authorization.k8s.io", "resource.k8s.io", "scheduling.k8s.io", "storage.k8s.io"),
    }
)
_CLUSTER_KINDS: Final = frozenset(
    {
        *("APIService", "CSIDriver", "CSINode", "CertificateSigningRequest", "ClusterRole"),
        *("ClusterRoleBinding", "CustomResourceDefinition", "FlowSchema", "IngressClass"),
        *("MutatingWebhookConfiguration", "Namespace", "Node", "PersistentVolume", "PriorityClass"),
        *("PriorityLevelConfiguration", "RuntimeClass", "StorageClass", "VolumeAttachment"),
        "ValidatingWebhookConfiguration",
    }
)


class NoMatch(Exception):
    """The API server does not know the kind."""

    def __init__(self, kind: Kind) -> None:
        super().__init__(f'no matches for kind "{kind.kind}" in version "{kind.api_version}"')


@dataclass(frozen=True)
class Kind:
    """Group, version and kind; the core group is ""."""

    group: str
    version: str
    kind: str

    @property
    def api_version(self) -> str:
        """As objects write it: `v1`, `apps/v1`."""
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def built_in(self) -> bool:
        """Whether the kind is Kubernetes' own."""
        return self.group in BUILT_IN_GROUPS

    @staticmethod
    def of(obj: Object) -> Kind:
        """The kind that `obj` claims to be."""
        group, _, version = str(obj.get("apiVersion", "")).rpartition("/")
        return Kind("" if group == "core" else group, version, str(obj.get("kind", "")))

    @staticmethod
    def of_token(token: str) -> Kind:
        """The kind of a type token such as `kubernetes:apps/v1:Deployment`."""
        _, module, kind = token.split(":")
        group, _, version = module.rpartition("/")
        return Kind("" if group == "core" else group, version, kind)


@dataclass(frozen=True)
class Endpoint:
    """Where objects of a kind are found."""

    base: str  # "/api/v1" or "/apis/GROUP/VERSION"
    plural: str
    namespaced: bool

    def collection(self, namespace: str | None) -> str:
        """The path of all objects, in `namespace` where the kind has namespaces."""
        return (
            self.base
            + (f"/namespaces/{namespace}" if self.namespaced and namespace else "")
            + f"/{self.plural}"
        )

    def object(self, namespace: str | None, name: str) -> str:
        """The path of one object."""
        return f"{self.collection(namespace)}/{name}"


class Kinds:
    """The server's kinds, requested once per group; a miss requests again, because CRDs change."""

    def __init__(self, client: KubeClient | None) -> None:
        self._client = client
        self._lock = threading.Lock()
        self._known: dict[Kind, Endpoint] = {}
        self._announced: dict[tuple[str, str], bool] = {}

    def announce(self, crd: Object) -> None:
        """Take note of a CRD that the program is about to create, for previews of its objects."""
        spec = crd.get("spec")
        names = spec.get("names") if isinstance(spec, dict) else None
        if isinstance(spec, dict) and isinstance(names, dict):
            self._announced[(str(spec.get("group")), str(names.get("kind")))] = spec.get("scope") != "Cluster"

    def endpoint(self, kind: Kind) -> Endpoint:
        """Where `kind` lives; raises NoMatch, ApiError or Unreachable."""
        if self._client is None:
            raise Unreachable("no API server is configured")
        if kind not in self._known:
            base = f"/apis/{kind.group}/{kind.version}" if kind.group else f"/api/{kind.version}"
            try:
                resources = self._client.request("GET", base).get("resources", [])
            except ApiError as error:
                if error.code == 404:
                    raise NoMatch(kind) from error
                raise
            with self._lock:
                for resource in resources:
                    if "/" not in resource["name"]:
                        found = Kind(kind.group, kind.version, resource["kind"])
                        self._known[found] = Endpoint(base, resource["name"], resource["namespaced"])
        if kind not in self._known:
            raise NoMatch(kind)
        return self._known[kind]

    def exists(self, kind: Kind) -> bool:
        """Whether the server is reachable and has `kind`."""
        try:
            self.endpoint(kind)
        except (NoMatch, ApiError, Unreachable):
            return False
        return True

    def namespaced(self, kind: Kind) -> bool:
        """Whether objects of `kind` live in a namespace; true if unknown."""
        if kind.built_in and kind.kind in _CLUSTER_KINDS:
            return False
        announced = self._announced.get((kind.group, kind.kind))
        if announced is not None:
            return announced
        try:
            return self.endpoint(kind).namespaced
        except (NoMatch, ApiError, Unreachable):
            return True


def is_crd(obj: Object) -> bool:
    """Whether `obj` is a CustomResourceDefinition."""
    return obj.get("kind") == "CustomResourceDefinition" and Kind.of(obj).group == "apiextensions.k8s.io"


def metadata(obj: Any) -> Object:
    """The object's metadata, {} where it has none (or not yet)."""
    found = obj.get("metadata") if isinstance(obj, dict) else None
    return found if isinstance(found, dict) else {}


def annotation(obj: Any, key: str) -> str:
    """The value of an annotation, "" where it is not set."""
    annotations = metadata(obj).get("annotations")
    value = annotations.get(key) if isinstance(annotations, dict) else None
    return value if isinstance(value, str) else ""

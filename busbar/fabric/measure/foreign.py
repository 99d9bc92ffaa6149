"""A measurement on a cluster that busbar did not create: its rights, and the plan that is read from it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from busbar.fabric.measure.plan import CannotMeasure
from busbar.kube.client import Api

_REVIEWS = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
_REVIEW = {"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview"}
_Rights = Mapping[str, Sequence[str]]
"""RESOURCE or RESOURCE/SUBRESOURCE, with .GROUP -> verbs. docs/measuring.md has them as roles."""

_IN_CLUSTER: _Rights = {"nodes": ("list",)}
_IN_NAMESPACE: _Rights = {
    "mpijobs.kubeflow.org": ("create", "get", "list", "patch", "delete"),
    "configmaps": ("create", "get", "list", "delete"),
    "pods": ("create", "get", "list"),
    "pods/log": ("get",),
    "events": ("list",),
}
_OWN_NAMESPACE: _Rights = {"namespaces": ("create", "get", "list", "delete")}


def require(api: Api, namespace: str | None) -> None:
    """Raise CannotMeasure with all missing permissions of a run in `namespace`; None: in its own namespace.

    Raises ApiError if the API does not tell the permissions.
    """
    inside = _IN_NAMESPACE if namespace else {**_OWN_NAMESPACE, **_IN_NAMESPACE}
    missing = [*_missing(api, _IN_CLUSTER, ""), *_missing(api, inside, namespace or "")]
    if not missing:
        return
    where = f"in namespace {namespace}" if namespace else "in all namespaces"
    roles = "Role and ClusterRole of `busbar docs measuring Rights`"
    fix = f"apply the {roles}" if namespace else f"--namespace NAME, one with the {roles}"
    lines = "".join(f"\n  {each}" for each in missing)
    raise CannotMeasure([f"rights of a run {where} are missing; nothing was created:{lines}\nFix: {fix}"])


def _missing(api: Api, rights: _Rights, namespace: str) -> Iterator[str]:
    for name, verbs in rights.items():
        resource, _, group = name.partition(".")
        kind, _, subresource = resource.partition("/")
        for verb in verbs:
            asked = {"verb": verb, "group": group, "resource": kind, "namespace": namespace}
            spec = {"resourceAttributes": {**asked, "subresource": subresource}}
            if not api.create(_REVIEWS, {**_REVIEW, "spec": spec})["status"]["allowed"]:
                yield f"{name}: {verb}"

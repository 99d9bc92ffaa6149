"""Error messages of the kubernetes plugin, worded like the official ones, which people search for."""

from __future__ import annotations

_STATE_HINT = (
    "If the cluster was deleted, you can remove this resource from Pulumi state by rerunning the operation "
    'with the PULUMI_K8S_DELETE_UNREACHABLE environment variable set to "true"'
)


def unreachable(reason: str | None) -> str:
    """The cluster does not answer."""
    return f"configured Kubernetes cluster is unreachable: {reason}"


def cannot_read() -> str:
    """A refresh of an unreachable cluster."""
    return f"failed to read resource state due to unreachable cluster. {_STATE_HINT}"


def cannot_delete() -> str:
    """A deletion on an unreachable cluster."""
    return f"configured Kubernetes cluster is unreachable. {_STATE_HINT}"


def dropped() -> str:
    """A deletion on an unreachable cluster, with deleteUnreachable."""
    return "deleteUnreachable is set: deleting the unreachable resource from Pulumi state"


def no_such_kind(what: str, error: Exception) -> str:
    """The server has no such kind; `what` is the operation."""
    return (
        f"{what} failed because the Kubernetes API server reported that the apiVersion for this resource "
        f"does not exist. Verify that any required CRDs have been created: {error}"
    )


def not_created(urn: str, error: Exception) -> str:
    """The server refused a new object."""
    hint = ""
    if getattr(error, "reason", "") == "AlreadyExists":
        hint = (
            "\n\nThe resource already exists in the cluster: import it, edit it with the Patch resource of "
            "its kind, or set upsertExistingObjects on the provider to take it over"
        )
    return f'resource "{urn}" was not successfully created by the Kubernetes API server: {error}{hint}'


def created_but_not_ready(urn: str, error: Exception) -> str:
    """A new object did not become ready."""
    return (
        f'resource "{urn}" was successfully created, but the Kubernetes API server reported that it failed '
        f"to fully initialize or become live: {error}"
    )


def updated_but_not_ready(id: str, error: Exception) -> str:
    """A changed object did not become ready, or was not changed at all."""
    return (
        f'the Kubernetes API server reported that "{id}" failed to fully initialize or become live: {error}'
    )


def conflict(manager: str, error: Exception) -> str:
    """Another field manager owns what an apply wants to set."""
    return (
        "server-side apply field conflict detected: another manager owns a field that this resource sets; "
        'take it over with the annotation pulumi.com/patchForce: "true" or leave the field out\n'
        f'The resource managed by field manager "{manager}" had an apply conflict: {error}'
    )


def required_field(error: Exception) -> str:
    """A Patch cannot give up a field without which the object is invalid."""
    return (
        "this Patch resource is currently managing a required field, so it can't be deleted directly. Either "
        "set the `retainOnDelete` resource option, or transfer ownership of the field before deleting: "
        f"{error}"
    )

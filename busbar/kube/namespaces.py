"""Creating a namespace that is deleted with its stack: not where it exists and belongs to somebody else."""

from __future__ import annotations

from busbar.kube import objects
from busbar.kube.client import Api
from busbar.kube.wait import Clock, Deadline, SystemClock, wait_until

NAMESPACES = "/api/v1/namespaces"
OWNER = "busbar/owner"
"""The annotation with the resource that created the namespace, as PROJECT/STACK/RESOURCE."""


API_SECONDS = 60.0
POLL_SECONDS = 2.0


def claim(api: Api, name: str, owner: str, clock: Clock | None = None) -> None:
    """Create the namespace, with `owner` as its mark.

    Raises ValueError if it exists without that mark, and ApiError or TimedOut.
    """
    deadline = Deadline(clock or SystemClock(), API_SECONDS)
    wait_until(lambda: _claim(api, name, owner), deadline, poll_seconds=POLL_SECONDS)


def _claim(api: Api, name: str, owner: str) -> None:
    metadata = {"name": name, "annotations": {OWNER: owner}}
    manifest = {"apiVersion": "v1", "kind": "Namespace", "metadata": metadata}
    if objects.create(api, NAMESPACES, manifest):
        return
    mark = (api.get(f"{NAMESPACES}/{name}")["metadata"].get("annotations") or {}).get(OWNER)
    if mark != owner:
        raise ValueError(
            f"namespace {name} exists and was not created by this stack: annotation {OWNER} is "
            f"{mark or 'missing'}, expected {owner}. Fix: configure another namespace; if this one may be "
            f"deleted with the stack, run `kubectl annotate namespace {name} {OWNER}={owner} --overwrite`"
        )

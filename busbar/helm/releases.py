"""The records of Helm's releases, and their recovery after an update that was killed while Helm ran.

Helm 3 keeps a Secret per revision (pkg/storage/driver/secrets.go): labels owner, name, version and status;
`data.release` is the Secret's base64 around Helm's base64 around gzip around JSON.

Pulumi records a release only when Helm has finished. After a killed update Helm refuses the next one ("cannot
re-use a name that is still in use", "another operation is in progress") until somebody edits its records. A
record of the release can only be this stack's: it has claimed the namespace (busbar.kube.objects).
"""

from __future__ import annotations

import base64
import gzip
import json
import re
from collections.abc import Callable, Collection
from datetime import UTC, datetime
from functools import partial

from busbar.finding import STACK, Fix, with_fix
from busbar.kube.batches import answer
from busbar.kube.client import Api, ApiError, JsonObject
from busbar.kube.objects import find
from busbar.kube.pods import issue_report
from busbar.kube.wait import Clock, Deadline, Pending, SystemClock, TimedOut, wait_until


def hook_job_problems(api: Api, namespace: str) -> list[str]:
    """List the problems that keep hook Jobs of the namespace from running. Raises ApiError."""
    found, base = [], f"/api/v1/namespaces/{namespace}"
    for job in api.list(f"/apis/batch/v1/namespaces/{namespace}/jobs"):
        metadata, status = job["metadata"], job.get("status") or {}
        if "helm.sh/hook" in (metadata.get("annotations") or {}) and not status.get("succeeded"):
            selector = f"batch.kubernetes.io/job-name={metadata['name']}"
            pods = api.list(f"{base}/pods", labelSelector=selector)
            lines = issue_report(pods, api.list(f"{base}/events"), also=[metadata["name"]])
            found += [f"hook Job {namespace}/{metadata['name']}: {line}" for line in lines]
    return found


def jobs_of_uninstallations(api: Api) -> list[str]:
    """`problems` of all releases that are being uninstalled. Raises ApiError."""
    records = api.list("/api/v1/secrets", labelSelector="owner=helm,status=uninstalling")
    namespaces = sorted({record["metadata"]["namespace"] for record in records})
    return [line for each in namespaces for line in hook_job_problems(api, each)]


UNKNOWN_KIND = re.compile(r'no matches for kind "([^"]+)" in version "([^"]+)"')
"""Kind and version, such as monitoring.coreos.com/v1, that Helm did not find in the API."""
# API servers learn of a CRD one by one. Each look has a connection of its own, to the next of them.
SERVED_LOOKS = 6
SERVED_SECONDS = 30.0


def await_kinds(connect: Callable[[], Api], kinds: Collection[tuple[str, str]], clock: Clock) -> bool:
    """Wait until all API servers serve the kinds; whether they do. `connect`: a client with new connections.

    Raises ApiError where the API refuses to answer.
    """
    looks = 0

    def all_serve() -> bool | Pending:
        nonlocal looks
        api, served = connect(), set[tuple[str, str]]()
        for version in {version for _, version in kinds}:
            resources = (find(api, f"/apis/{version}") or {}).get("resources") or []
            served |= {(each["kind"], version) for each in resources}
        looks = looks + 1 if served.issuperset(kinds) else 0
        return looks >= SERVED_LOOKS or Pending("API servers do not know the kinds")

    try:
        return bool(wait_until(all_serve, Deadline(clock, SERVED_SECONDS), poll_seconds=0.5))
    except TimedOut:
        return False


# Helm refuses any operation while the newest record is pending, and an upgrade while it is uninstalling.
UNFINISHED = frozenset({"pending-install", "pending-upgrade", "pending-rollback", "uninstalling"})
# Time in seconds for the plugin, which outlives a killed engine and may still finish the operation.
GRACE_SECONDS = 30.0
API_SECONDS = 60.0
POLL_SECONDS = 2.0

Now = Callable[[], datetime]
_now: Now = partial(datetime.now, UTC)


def before_install(
    api: Api, name: str, namespace: str, clock: Clock | None = None, now: Now = _now
) -> str | None:
    """Delete the records of a release that the stack does not know; Helm adopts the objects that stay.

    Returns a text about the repair, None if nothing was repaired. Raises ApiError.
    """

    def delete(records: list[JsonObject]) -> str:
        for metadata in (record["metadata"] for record in records):
            version = metadata["resourceVersion"]
            api.delete(_path(metadata), uid=metadata["uid"], resourceVersion=version)
        return "deleted Helm's records, the installation adopts the existing objects"

    return _repair(api, name, namespace, delete, clock, now)


def before_upgrade(
    api: Api, name: str, namespace: str, clock: Clock | None = None, now: Now = _now
) -> str | None:
    """Mark an interrupted operation as failed, so that the release can be upgraded. As `before_install`."""

    def mark_failed(records: list[JsonObject]) -> str | None:
        if _status(records[-1]) not in UNFINISHED:
            return None
        metadata, body = records[-1]["metadata"], decode(records[-1]["data"]["release"])
        body["info"] |= {"status": "failed", "description": "the update that started this was killed"}
        version = metadata["resourceVersion"]
        marked = {"resourceVersion": version, "labels": {"status": "failed"}}
        api.merge(_path(metadata), {"metadata": marked, "data": {"release": encode(body)}})
        return "marked that revision as failed"

    return _repair(api, name, namespace, mark_failed, clock, now)


def _repair(
    api: Api,
    name: str,
    namespace: str,
    repair: Callable[[list[JsonObject]], str | None],
    clock: Clock | None,
    now: Now,
) -> str | None:
    """Repair the records, oldest first, once no process can be working on the newest any more."""
    clock = clock or SystemClock()
    grace = Deadline(clock, GRACE_SECONDS)

    def look() -> str | Pending | None:
        path, selector = f"/api/v1/namespaces/{namespace}/secrets", f"owner=helm,name={name}"
        records = sorted(api.list(path, labelSelector=selector), key=_revision)
        if not records:
            return None
        newest, status = records[-1], _status(records[-1])
        begun = datetime.fromisoformat(newest["metadata"]["creationTimestamp"])
        is_young = (now() - begun).total_seconds() < GRACE_SECONDS and not grace.passed
        if status in UNFINISHED and is_young:
            return Pending(f"Helm release {name}: {status}")
        done = repair(records)
        if done is None:
            return None
        found = f"revision {_revision(newest)}, {status} since {begun:%Y-%m-%d %H:%M:%S} UTC"
        return f"Helm release {name}: found {found}, left by an interrupted update; {done}"

    def may_repeat(error: ApiError) -> bool:
        # Conflict or not found: another process still works on the records.
        return error.transient or error.conflict or error.not_found

    try:
        return wait_until(look, Deadline(clock, API_SECONDS), poll_seconds=POLL_SECONDS, retry_on=may_repeat)
    except TimedOut as timeout:
        raise timeout.error or timeout from None


def _path(metadata: JsonObject) -> str:
    return f"/api/v1/namespaces/{metadata['namespace']}/secrets/{metadata['name']}"


def _revision(record: JsonObject) -> int:
    return int(record["metadata"]["labels"]["version"])


def _status(record: JsonObject) -> str:
    return str(record["metadata"]["labels"]["status"])


def encode(body: JsonObject) -> str:
    """`data.release` for a release `body`."""
    text = json.dumps(body, separators=(",", ":"), ensure_ascii=False).encode()
    return base64.b64encode(base64.b64encode(gzip.compress(text, mtime=0))).decode()


def decode(data: str) -> JsonObject:
    """The release in `data.release`."""
    body: JsonObject = json.loads(gzip.decompress(base64.b64decode(base64.b64decode(data))))
    return body


def statuses(api: Api) -> dict[tuple[str, str], str]:
    """The status of the newest revision of each release: (namespace, name) -> status. Raises ApiError."""
    # A page of 20 Secrets has some MB, because each has its whole chart.
    records = api.list("/api/v1/secrets", labelSelector="owner=helm", limit="20")
    return {
        (record["metadata"]["namespace"], record["metadata"]["labels"]["name"]): _status(record)
        for record in sorted(records, key=_revision)
    }


Expected = Collection[tuple[str, str | None, int | None]]
"""(namespace, release, revision, if known) of each release, and (namespace, None, None) of each namespace."""


def ask(kubeconfig: str, expected: Expected) -> list[str]:
    """Name all that is not on the cluster, or not at its revision, each in a sentence with its fix.

    Raises ApiError or TimedOut without an answer after 20 s, and ValueError for an unusable kubeconfig.
    """
    return answer(kubeconfig, lambda api: missing(api, expected))


def missing(api: Api, expected: Expected) -> list[str]:
    """The answer of `ask`, with one request per release, and per namespace without one. Raises ApiError."""
    releases = sorted((space, name, revision) for space, name, revision in expected if name)
    others = {space for space, *_ in expected} - {space for space, *_ in releases}
    gone = [f"namespace {space}" for space in sorted(others) if not _exists(api, space)]
    changed: list[str] = []
    for space, name, revision in releases:
        records, what = deployed(api, space, name), f"Helm release {space}/{name}"
        if not records:
            gone.append(what)
        elif revision and (now := _revision(records[-1])) != revision:
            # A restored snapshot has an older revision, and Helm has no later one to go back to.
            back = f"helm rollback {name} {revision:g} -n {space}, then" if now > revision else ""
            what += f" is at revision {now}, expected {revision:g}: this stack has not installed it"
            changed.append(with_fix(what, Fix(back, ("up", STACK, "--refresh"))))
    again = Fix("it is installed again by", ("up", STACK, "--converge", "cluster"))
    return [*(with_fix(f"{each} is not on the cluster", again) for each in gone), *changed]


def deployed(api: Api, namespace: str, release: str) -> list[JsonObject]:
    """The deployed records of a release, the newest last. Raises ApiError."""
    selector = f"owner=helm,name={release},status=deployed"
    found = api.list(f"/api/v1/namespaces/{namespace}/secrets", labelSelector=selector)
    return sorted(found, key=_revision)


def deployed_version(api: Api, namespace: str, release: str) -> str:
    """The version of the deployed chart; "" without one. Raises ApiError."""
    records = deployed(api, namespace, release)
    return str(decode(records[-1]["data"]["release"])["chart"]["metadata"]["version"]) if records else ""


def _exists(api: Api, namespace: str) -> bool:
    found = find(api, f"/api/v1/namespaces/{namespace}")
    return found is not None and "deletionTimestamp" not in found["metadata"]

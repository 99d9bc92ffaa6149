"""Recovers Helm releases after an interrupted update, before the next install or upgrade.

Pulumi records a release in its state only when Helm has finished. If the update is killed before that, the
stack does not know a release that Helm knows ("cannot re-use a name that is still in use"), or Helm waits for
an operation that has no process any more ("another operation is in progress"). Helm leaves both to a manual
edit of its records. This module makes that edit, and only for records that this stack has made.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from itertools import islice
from typing import Any, TypeVar

from busbar.helm import records as helm_records
from busbar.helm.records import Record
from busbar.kube.client import Api, ApiError
from busbar.kube.wait import Clock, Deadline, Pending, SystemClock, TimedOut, wait_until

# Time in seconds for the plugin, which outlives a killed engine and may still finish the operation.
GRACE_SECONDS = 30.0
API_SECONDS = 60.0
POLL_SECONDS = 2.0
_NAMED_DIFFERENCES = 5
_INTERRUPTED = "interrupted: the update that started this was killed (recorded by busbar)"

Result = TypeVar("Result")
_now = partial(datetime.now, UTC)


class ForeignRelease(Exception):
    """A release of that name exists, but not the one that this stack would install; the text has the fix."""


@dataclass(frozen=True, kw_only=True)
class DesiredRelease:
    """A release about to be installed.

    `chart`: as configured (a name, an oci:// address, a folder, an archive). `disable_setting` is the setting
    that leaves the release out of the stack, for the error message.
    """

    name: str
    namespace: str
    chart: str
    values: Mapping[str, Any]
    disable_setting: str


def before_install(
    api: Api, desired: DesiredRelease, clock: Clock | None = None, now: Callable[[], datetime] = _now
) -> str | None:
    """Delete the Helm records of a release that the stack does not know but has started to install.

    That is the case if Helm's newest record has the same chart and values. The objects stay, and Helm adopts
    them (their annotations name the release). Returns a text about the repair, None if nothing was repaired.
    Raises ForeignRelease, without any change, if chart or values differ; UnreadableRecord; ApiError.
    """
    clock = clock or SystemClock()

    def delete_records() -> str | None:
        records = _read_settled(api, desired.name, desired.namespace, clock, now)
        if not records:
            return None
        if difference := _difference(records[-1], desired):
            raise ForeignRelease(_refusal(records[-1], desired, difference))
        # The newest record is deleted last: if this is interrupted too, the next run still compares with it.
        for record in records:
            helm_records.delete(api, record)
        return (
            f"Helm release {desired.name}: found {_described(records[-1])}, left by an interrupted update; "
            "deleted Helm's records, the installation adopts the existing objects"
        )

    return _with_retries(clock, delete_records)


def before_upgrade(
    api: Api,
    name: str,
    namespace: str,
    clock: Clock | None = None,
    now: Callable[[], datetime] = _now,
) -> str | None:
    """Mark an interrupted operation as failed, so that the release can be upgraded.

    The stack knows the release, so no comparison is needed. Helm then compares with the last deployed
    revision, or with this one if there is none. Returns a text about the repair, None if there was none.
    Raises UnreadableRecord, ApiError.
    """
    clock = clock or SystemClock()

    def mark_failed() -> str | None:
        records = _read_settled(api, name, namespace, clock, now)
        if not records or not records[-1].unfinished:
            return None
        helm_records.mark_failed(api, records[-1], _INTERRUPTED)
        return (
            f"Helm release {name}: found {_described(records[-1])}, left by an interrupted update; "
            "marked that revision as failed"
        )

    return _with_retries(clock, mark_failed)


def _read_settled(
    api: Api, name: str, namespace: str, clock: Clock, now: Callable[[], datetime]
) -> list[Record]:
    """The records, once the newest is finished or no process can be working on it any more."""
    deadline = Deadline(clock, GRACE_SECONDS)

    def read() -> list[Record] | Pending:
        records = helm_records.read(api, name, namespace)
        settled = not records or not records[-1].unfinished
        if settled or deadline.passed or (now() - records[-1].created).total_seconds() >= GRACE_SECONDS:
            return records
        return Pending(f"Helm release {name}: {records[-1].status}")

    # Errors of the API are retried by the caller, from the beginning.
    return wait_until(read, deadline, poll_seconds=POLL_SECONDS, retry_on=lambda _: False)


def _with_retries(clock: Clock, step: Callable[[], Result]) -> Result:
    """Run `step`, again from its beginning if the API fails or a record changes meanwhile."""
    try:
        return wait_until(step, Deadline(clock, API_SECONDS), poll_seconds=POLL_SECONDS, retry_on=_may_repeat)
    except TimedOut as timeout:
        raise timeout.error or timeout from None


def _may_repeat(error: ApiError) -> bool:
    # Conflict or not found: another process still works on the records.
    return error.transient or error.conflict or error.not_found


def _difference(record: Record, desired: DesiredRelease) -> str | None:
    if record.chart != (chart := helm_records.chart_name(desired.chart)):
        return f"its chart is {record.chart or 'unnamed'}, expected {chart}"
    # Helm got the values as JSON, in which tuples become lists, and every key becomes a string.
    expected = json.loads(json.dumps(dict(desired.values)))
    paths = helm_records.differences(record.values, expected)
    named = list(islice(paths, _NAMED_DIFFERENCES))
    more = sum(1 for _ in paths)
    if not named:
        return None
    return f"its values differ at {', '.join(named)}" + (f" and {more} more paths" if more else "")


def _described(record: Record) -> str:
    return f"revision {record.revision}, {record.status} since {record.created:%Y-%m-%d %H:%M:%S} UTC"


def _refusal(record: Record, desired: DesiredRelease, difference: str) -> str:
    chart = " ".join(part for part in (record.chart, record.chart_version) if part)
    return (
        f"Helm release {desired.name} (chart {chart}) already exists in namespace {desired.namespace}: "
        f"{_described(record)}. It is not in this stack's state, and {difference}. It belongs to another "
        "tool, or to this stack with other settings before an interrupted update. No changes made. Fix: "
        f"keep it and set {desired.disable_setting}; or, if nothing needs it, run "
        f"`helm uninstall {desired.name} --namespace {desired.namespace}`, which deletes it with the objects "
        "of its CRDs, and update again"
    )

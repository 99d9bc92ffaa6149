"""What an update that was killed left in Helm's records, put right before the next one.

Pulumi notes a release when Helm has finished. Killed in between, the stack does not know a release that Helm
knows ("cannot re-use a name that is still in use"), or Helm waits for an end that never comes ("another
operation is in progress"). Both last until somebody edits Helm's records: that is done here, for records that
are certainly ours.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice
from typing import Any, TypeVar

from busbar.helm import records as helm_records
from busbar.helm.records import Record
from busbar.kube.client import Api, ApiError
from busbar.kube.clock import Clock, Deadline, SystemClock

# The plugin outlives a killed engine and may still finish its work, which is better than half of it.
GRACE_SECONDS = 30.0
API_SECONDS = 60.0
POLL_SECONDS = 2.0
_NAMED_DIFFERENCES = 5
_INTERRUPTED = "interrupted: the update that began this was killed (noted by busbar)"

Result = TypeVar("Result")


class ForeignRelease(Exception):
    """A release of that name is there and is not what this stack would install; the text says what to do."""


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """A release about to be installed.

    `chart` is the name in its Chart.yaml; `without` is the setting that leaves the operator out of the stack.
    """

    name: str
    namespace: str
    chart: str
    values: Mapping[str, Any]
    without: str


def _today() -> datetime:
    return datetime.now(UTC)


def before_install(
    api: Api, wanted: Wanted, clock: Clock | None = None, today: Callable[[], datetime] = _today
) -> str | None:
    """Make way for the installation of a release that the stack does not know.

    Where Helm's newest record has the same chart and values, an interrupted update of this stack began it:
    the records go, the objects stay, and Helm adopts them (their annotations name the release). Returns what
    was found and done, None where nothing was. Raises ForeignRelease, with nothing touched, where the release
    is another; UnreadableRecord; ApiError.
    """
    clock = clock or SystemClock()

    def clear() -> str | None:
        records = _settled(api, wanted.name, wanted.namespace, clock, today)
        if not records:
            return None
        if difference := _difference(records[-1], wanted):
            raise ForeignRelease(_refusal(records[-1], wanted, difference))
        # The newest last: should this be interrupted too, what the next run compares is still there.
        for record in records:
            helm_records.delete(api, record)
        return (
            f"Helm's release {wanted.name} is {_described(records[-1])} from an update that was interrupted: "
            "the installation takes its objects over"
        )

    return _patiently(clock, clear)


def before_upgrade(
    api: Api,
    name: str,
    namespace: str,
    clock: Clock | None = None,
    today: Callable[[], datetime] = _today,
) -> str | None:
    """End an operation that nobody works on any more, so that the release can be upgraded.

    The stack knows the release, so it is ours. Its unfinished record is marked as failed, which it is: Helm
    then compares with the last revision that was deployed, or with this one where none was. Returns what was
    found, None where nothing was. Raises UnreadableRecord, ApiError.
    """
    clock = clock or SystemClock()

    def finish() -> str | None:
        records = _settled(api, name, namespace, clock, today)
        if not records or not records[-1].unfinished:
            return None
        helm_records.mark_failed(api, records[-1], _INTERRUPTED)
        return (
            f"Helm's release {name} is {_described(records[-1])} from an update that was interrupted: "
            "that revision is marked as failed"
        )

    return _patiently(clock, finish)


def _settled(
    api: Api, name: str, namespace: str, clock: Clock, today: Callable[[], datetime]
) -> list[Record]:
    """The records, once somebody who may still be at work on the newest has had the time to finish."""
    deadline = Deadline(clock, GRACE_SECONDS)
    while True:
        records = helm_records.read(api, name, namespace)
        if not records or not records[-1].unfinished or deadline.passed:
            return records
        if (today() - records[-1].created).total_seconds() >= GRACE_SECONDS:
            return records
        deadline.pause(POLL_SECONDS)


def _patiently(clock: Clock, step: Callable[[], Result]) -> Result:
    """`step`, from its beginning where the API hiccups or a record changes underneath it."""
    deadline = Deadline(clock, API_SECONDS)
    while True:
        try:
            return step()
        except ApiError as error:
            # A record that has gone meanwhile was somebody's who is still at work: look again.
            if not (error.transient or error.conflict or error.not_found) or deadline.passed:
                raise
        deadline.pause(POLL_SECONDS)


def _difference(record: Record, wanted: Wanted) -> str | None:
    if record.chart != wanted.chart:
        return f"its chart is {record.chart or 'unnamed'}, not {wanted.chart}"
    # Through JSON, as Helm got them: tuples are lists there, and every key is a text.
    asked = json.loads(json.dumps(dict(wanted.values)))
    places = helm_records.differences(record.values, asked)
    named = list(islice(places, _NAMED_DIFFERENCES))
    more = sum(1 for _ in places)
    if not named:
        return None
    return f"its values differ at {', '.join(named)}" + (f" and {more} more places" if more else "")


def _described(record: Record) -> str:
    return f"{record.status} since {record.created:%Y-%m-%d %H:%M:%S} UTC (revision {record.revision})"


def _refusal(record: Record, wanted: Wanted, difference: str) -> str:
    chart = " ".join(part for part in (record.chart, record.chart_version) if part)
    return (
        f"the Helm release {wanted.name} (chart {chart}) is already in the namespace {wanted.namespace}, "
        f"{_described(record)}, and this stack does not know it: {difference}. It is somebody else's, or of "
        "this stack with other settings before an interrupted update. Nothing was touched. What to do: "
        f"`helm uninstall {wanted.name} --namespace {wanted.namespace}` and update again, or keep it and "
        f"set {wanted.without}"
    )

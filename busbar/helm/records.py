"""Helm's own records of its releases: one Secret per revision, in the namespace of the release.

The format is Helm 3's (pkg/storage/driver): labels owner, name, status, version; `data.release` is the
Secret's base64 around Helm's base64 around gzip around JSON.
"""

from __future__ import annotations

import base64
import binascii
import gzip
import json
import re
import tarfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import yaml

from busbar.kube.client import Api, JsonObject

# Helm refuses any operation on a release whose newest record has one of the first three, and an upgrade with
# the fourth.
UNFINISHED = frozenset({"pending-install", "pending-upgrade", "pending-rollback", "uninstalling"})


class UnreadableRecord(Exception):
    """A Secret that is labelled as Helm's and does not hold a release; the text says which and why."""


@dataclass(frozen=True)
class Record:
    """One revision of a release: the Secret's metadata, and the release decoded from it."""

    metadata: JsonObject
    body: JsonObject

    @property
    def path(self) -> str:
        """The path of the Secret in the API."""
        return f"/api/v1/namespaces/{self.metadata['namespace']}/secrets/{self.metadata['name']}"

    @property
    def revision(self) -> int:
        """Number of the revision: 1 for the installation, plus one per upgrade or rollback."""
        return int(self.body.get("version") or 0)

    @property
    def status(self) -> str:
        """Helm's status, such as deployed, failed, pending-install."""
        return str((self.body.get("info") or {}).get("status") or "unknown")

    @property
    def unfinished(self) -> bool:
        """Whether an operation is running, or was killed before it recorded its end."""
        return self.status in UNFINISHED

    @property
    def chart(self) -> str:
        """The chart's name."""
        return str(self._chart.get("name") or "")

    @property
    def chart_version(self) -> str:
        return str(self._chart.get("version") or "")

    @property
    def values(self) -> JsonObject:
        """The values merged over the chart's own."""
        return dict(self.body.get("config") or {})

    @property
    def created(self) -> datetime:
        """Start time of the revision, by the cluster's clock."""
        return datetime.fromisoformat(str(self.metadata["creationTimestamp"])).astimezone(UTC)

    @property
    def _chart(self) -> JsonObject:
        return dict((self.body.get("chart") or {}).get("metadata") or {})


def read(api: Api, name: str, namespace: str) -> list[Record]:
    """The records of the release `name`, oldest first; empty if Helm has no such release.

    Raises ApiError, and UnreadableRecord.
    """
    secrets = api.list(f"/api/v1/namespaces/{namespace}/secrets", labelSelector=f"owner=helm,name={name}")
    return sorted((_record(secret) for secret in secrets), key=lambda record: record.revision)


def statuses(api: Api) -> dict[tuple[str, str], str]:
    """The status of the newest revision of each release: (namespace, name) -> status. Raises ApiError."""
    newest: dict[tuple[str, str], tuple[int, str]] = {}
    # A page of 20 Secrets has some MB, because each has its whole chart.
    for secret in api.list("/api/v1/secrets", labelSelector="owner=helm", limit="20"):
        labels = secret["metadata"]["labels"]
        key = secret["metadata"]["namespace"], labels["name"]
        newest[key] = max(newest.get(key, (0, "")), (int(labels["version"]), labels["status"]))
    return {key: status for key, (_, status) in newest.items()}


def delete(api: Api, record: Record) -> None:
    """Delete the record of a revision; its objects stay. Raises ApiError, a conflict if it has changed."""
    api.delete(record.path, uid=record.metadata["uid"], resourceVersion=record.metadata["resourceVersion"])


def mark_failed(api: Api, record: Record, why: str) -> None:
    """Record that the operation failed. Raises ApiError, a conflict if it has changed."""
    body = {**record.body, "info": {**record.body["info"], "status": "failed", "description": why}}
    api.merge(
        record.path,
        {
            "metadata": {
                "resourceVersion": record.metadata["resourceVersion"],
                "labels": {"status": "failed"},
            },
            "data": {"release": encode(body)},
        },
    )


def encode(body: JsonObject) -> str:
    """`data.release` for a release `body`."""
    text = json.dumps(body, separators=(",", ":"), ensure_ascii=False).encode()
    return base64.b64encode(base64.b64encode(gzip.compress(text, mtime=0))).decode()


def decode(data: str) -> JsonObject:
    """The release in `data.release`. Raises ValueError."""
    try:
        packed = base64.b64decode(base64.b64decode(data, validate=True), validate=True)
        body = json.loads(gzip.decompress(packed))
    except (binascii.Error, OSError, EOFError, zlib.error, ValueError) as error:
        raise ValueError(f"it is not base64 of gzipped JSON ({type(error).__name__})") from error
    if not isinstance(body, dict):
        raise ValueError(f"it holds {type(body).__name__}, expected a JSON object")
    return body


def _record(secret: JsonObject) -> Record:
    try:
        return Record(secret["metadata"], decode((secret.get("data") or {}).get("release") or ""))
    except ValueError as error:
        where = f"{secret['metadata']['namespace']}/{secret['metadata']['name']}"
        raise UnreadableRecord(f"the Secret {where} is labelled as Helm's, but {error}") from error


def chart_name(chart: str) -> str:
    """The name that Helm records for `chart`: a repository's, an oci:// address, a folder, an archive.

    Raises OSError or ValueError if a local chart cannot be read.
    """
    local = Path(chart).expanduser()
    if local.is_dir():
        return _name_in((local / "Chart.yaml").read_text())
    if local.is_file():
        with tarfile.open(local) as archive:
            inside = next((item for item in archive if re.fullmatch(r"[^/]+/Chart\.yaml", item.name)), None)
            found = archive.extractfile(inside) if inside else None
            if found is None:
                raise ValueError(f"{chart}: the archive has no Chart.yaml")
            return _name_in(found.read().decode())
    last = chart.rstrip("/").rpartition("/")[2]
    # `helm package` writes NAME-VERSION.tgz.
    return re.sub(r"-v?\d[^/]*\.tgz$", "", last).partition(":")[0]


def _name_in(text: str) -> str:
    parsed = yaml.safe_load(text)
    if not isinstance(parsed, dict) or not parsed.get("name"):
        raise ValueError("Chart.yaml has no name")
    return str(parsed["name"])


def differences(left: Any, right: Any, path: str = "") -> Iterator[str]:
    """Paths such as `driver.enabled` at which two sets of values differ; never the values themselves.

    A null equals an absent key, and 8 equals 8.0: Pulumi changes values in these two ways.
    """
    if isinstance(left, dict) and isinstance(right, dict):
        for key in sorted({*left, *right}):
            yield from differences(left.get(key), right.get(key), f"{path}.{key}" if path else str(key))
    elif isinstance(left, list) and isinstance(right, list) and len(left) == len(right):
        for index, pair in enumerate(zip(left, right, strict=True)):
            yield from differences(*pair, f"{path}[{index}]")
    elif left != right or isinstance(left, bool) != isinstance(right, bool):
        yield path

"""Writes extracts/: the parts of the published charts that the tests need, without the charts' own text.

`python -m tests.unit.charts.extract [CHARTS]` reads CHARTS/<chart>/<version>/ (default: the shared folder's
charts), as the public repositories publish them, and those with a Go module from its cache. The charts are
CORE, and the CHARTS of each `stacks/<name>/tests/unit/charts/extract.py`. It writes one JSON file per chart
and version:
- values: the tree of keys of values.yaml; a leaf is its type and a fingerprint of its default
- crds: the structure of the custom resources that we write, without descriptions
- rules: what the published ClusterRole of the controller allows
"""

import hashlib
import importlib
import json
import os
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml

PROJECT = Path(__file__).resolve().parents[3]


@dataclass(frozen=True)
class Published:
    """A published chart: its repository, the versions that are compared, and the files that are read.

    `module`: its Go module, which `go mod download MODULE@VERSION` puts there. `folder`: of the extracts.
    """

    source: str
    versions: tuple[str, ...]
    files: tuple[str, ...]
    module: str | None = None
    folder: Path = Path(__file__).parent / "extracts"


CORE = {
    "gpu-operator": Published(
        "https://github.com/NVIDIA/gpu-operator", ("v26.3.3", "v26.7.0"), ("values.yaml",)
    ),
    "network-operator": Published(
        "https://github.com/Mellanox/network-operator",
        ("v26.1.2", "v26.7.0-rc.2"),
        (
            "values.yaml",
            "crds/mellanox.com_nicclusterpolicies.yaml",
            "crds/k8s.cni.cncf.io_networkattachmentdefinitions_crd.yaml",
        ),
    ),
    "mpi-operator": Published(
        "https://github.com/kubeflow/mpi-operator", ("v0.8.2",), ("mpi-operator.yaml",)
    ),
}
TYPES = {bool: "boolean", str: "string", int: "integer", float: "number", list: "array", type(None): "null"}
# what says nothing on whether an object is valid
LEFT_OUT = (
    "description", "title", "default", "example", "format", "x-kubernetes-list-type", "x-kubernetes-map-type",
    "x-kubernetes-list-map-keys", "x-kubernetes-validations",
)  # fmt: skip


def text(chart: str, version: str, folder: Path) -> str:
    """The extract of the chart in FOLDER, as its file holds it. Raises OSError where FOLDER lacks a file."""
    contents = {name: (folder / name).read_bytes() for name in charts()[chart].files}
    made: dict[str, Any] = {
        "source": {
            "repository": charts()[chart].source,
            "version": version,
            "sha256": {name: hashlib.sha256(data).hexdigest() for name, data in contents.items()},
        }
    }
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    documents = [
        document for data in contents.values() for document in yaml.load_all(data, loader) if document
    ]
    if next(iter(contents)).endswith("values.yaml"):
        made["values"] = keys(documents[0])
    found = [d for d in documents if d.get("kind") == "CustomResourceDefinition"]
    if found:
        made["crds"] = [crd(d) for d in found]
    roles = [d for d in documents if d.get("kind") == "ClusterRole" and d["metadata"]["name"] == chart]
    if roles:
        made["rules"] = [rule for role in roles for rule in role["rules"]]
    return json.dumps(made, sort_keys=True, separators=(",", ":")) + "\n"


def keys(value: Any) -> Any:
    """The tree of keys of VALUE, a leaf as `type fingerprint`."""
    if isinstance(value, Mapping):
        return {key: keys(below) for key, below in value.items()}
    return leaf(value)


def leaf(value: Any) -> str:
    """Type and fingerprint of a default: `boolean 6b86b273`."""
    canonical = json.dumps(value, sort_keys=True)
    return f"{TYPES[type(value)]} {hashlib.sha256(canonical.encode()).hexdigest()[:8]}"


def crd(document: Mapping[str, Any]) -> dict[str, Any]:
    """What identifies a custom resource, and the structure of each of its versions."""
    spec = document["spec"]
    return {
        "spec": {
            "group": spec["group"],
            "names": {"kind": spec["names"]["kind"]},
            "versions": [
                {"name": v["name"], "schema": {"openAPIV3Schema": structure(v["schema"]["openAPIV3Schema"])}}
                for v in spec["versions"]
            ],
        }
    }


def structure(schema: Any) -> Any:
    """SCHEMA without descriptions, defaults and hints for merging."""
    if not isinstance(schema, Mapping):
        return schema
    kept = dict[str, Any]()
    for name, below in schema.items():
        if name == "properties":
            kept[name] = {key: structure(part) for key, part in below.items()}
        elif name in ("anyOf", "oneOf", "allOf"):
            kept[name] = [structure(part) for part in below]
        elif name not in LEFT_OUT:
            kept[name] = structure(below)
    return kept


def every() -> Iterator[tuple[str, str]]:
    """All (chart, version)."""
    for chart, about in charts().items():
        for version in about.versions:
            yield chart, version


@cache
def charts() -> dict[str, Published]:
    """The charts of the core and of all capabilities, by name."""
    found = dict(CORE)
    for file in sorted(PROJECT.glob("stacks/*/tests/unit/charts/extract.py")):
        found |= importlib.import_module(".".join(file.relative_to(PROJECT).with_suffix("").parts)).CHARTS
    return found


def published(chart: str, version: str, folder: Path) -> Path:
    """The folder with the published files: below FOLDER, or in the cache of Go modules."""
    module = charts()[chart].module
    if module is None:
        return folder / chart / version
    modules = os.environ.get("GOMODCACHE") or Path(os.environ.get("GOPATH", "~/go")) / "pkg" / "mod"
    return Path(modules).expanduser() / f"{module}@{version}"


def path(chart: str, version: str) -> Path:
    """Where the extract lies."""
    return charts()[chart].folder / f"{chart}-{version}.json"


def main() -> None:
    """Write all extracts."""
    from tests.support.shared import CHARTS

    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else CHARTS
    for chart, version in every():
        path(chart, version).write_text(text(chart, version, published(chart, version, folder)))


if __name__ == "__main__":
    main()

"""The published values and CRDs of the pinned operator versions, which lie beside the checkout."""

from __future__ import annotations

import os
import shutil
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

PROJECT = Path(__file__).resolve().parents[3]
CHARTS = PROJECT.parent / "shared" / "charts"
VERSIONS = {"gpu-operator": ("v26.3.3", "v26.7.0"), "network-operator": ("v26.1.2", "v26.7.0-rc.2")}
EVERY_VERSION = [(chart, version) for chart, versions in VERSIONS.items() for version in versions]


def documents(*path: str) -> list[Any]:
    """All documents of a published file. Skips the test where the files are not there."""
    file = CHARTS.joinpath(*path)
    if not file.is_file():
        pytest.skip(f"the published charts are not beside the checkout: {file} is missing")
    return _parsed(file)


@cache
def _parsed(file: Path) -> list[Any]:
    # 9,000 lines of CRD take seconds in pure Python; the C loader comes with PyYAML's wheels.
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    return [document for document in yaml.load_all(file.read_text(), Loader=loader) if document]


def published_values(chart: str, version: str) -> dict[str, Any]:
    (values,) = documents(chart, version, "values.yaml")
    assert isinstance(values, dict)
    return values


def strict(schema: Any) -> Any:
    """A CRD's schema in which an unknown field is an error: the API server drops such fields in silence."""
    if isinstance(schema, list):
        return [strict(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    made = {key: strict(value) for key, value in schema.items()}
    if "properties" in made and not made.get("x-kubernetes-preserve-unknown-fields"):
        made.setdefault("additionalProperties", False)
    if made.get("x-kubernetes-int-or-string"):
        made.pop("type", None)
    return made


def complaints(crd: dict[str, Any], version: str, manifest: dict[str, Any]) -> list[str]:
    """What the CRD's schema finds wrong with the manifest's spec, unknown fields included."""
    assert manifest["kind"] == crd["spec"]["names"]["kind"]
    assert manifest["apiVersion"] == f"{crd['spec']['group']}/{version}"
    (served,) = [entry for entry in crd["spec"]["versions"] if entry["name"] == version]
    spec = served["schema"]["openAPIV3Schema"]["properties"]["spec"]
    validator = jsonschema.Draft202012Validator(strict(spec))
    return [f"{error.json_path}: {error.message}" for error in validator.iter_errors(manifest["spec"])]


def helm() -> str:
    """The helm program: on PATH, or built by the lab. Skips the test where there is none."""
    cache = os.environ.get("BUSBAR_CACHE") or Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")) / "busbar"
    built = Path(cache).expanduser() / "bin" / "helm"
    found = shutil.which("helm") or (str(built) if built.is_file() else None)
    if not found:
        pytest.skip("helm is neither on PATH nor built by the lab (`python -m lab up` builds it)")
    return found

"""The published values and CRDs of the pinned operator versions, as extracts/ holds them."""

import json
import shutil
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from lab.build.go import build, up_to_date
from lab.offline import HELM
from tests.unit.charts import extract

PROJECT = Path(__file__).resolve().parents[3]
NVIDIA = ("gpu-operator", "network-operator")
EVERY_VERSION = [(chart, version) for chart, version in extract.every() if chart in NVIDIA]
MPI_OPERATOR_RELEASE = ("mpi-operator", "v0.8.2")


@cache
def extracted(chart: str, version: str) -> dict[str, Any]:
    """The extract of a published chart: values, crds and rules, as far as it has them."""
    found = json.loads(extract.path(chart, version).read_text())
    assert isinstance(found, dict)
    return found


def published_values(chart: str, version: str) -> dict[str, Any]:
    """The tree of keys of a chart's values.yaml; leaves as `extract.leaf` writes them."""
    values = extracted(chart, version)["values"]
    assert isinstance(values, dict)
    return values


def published_crd(chart: str, version: str, kind: str) -> dict[str, Any]:
    """The structure of a published CRD."""
    (found,) = [d for d in extracted(chart, version)["crds"] if d["spec"]["names"]["kind"] == kind]
    assert isinstance(found, dict)
    return found


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
    """The helm program: on PATH, or built, by `make unit` before the tests. Skips where there is no Go."""
    if found := shutil.which("helm"):
        return found
    if not up_to_date(HELM) and not shutil.which("go"):
        pytest.skip("helm is not on PATH, and there is no go to build it")
    build(HELM)
    return str(HELM.output)

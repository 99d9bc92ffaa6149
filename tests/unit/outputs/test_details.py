"""The output `details` and its JSON Schema."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from busbar.config import load
from busbar.outputs import build_outputs
from busbar.outputs.contract import details_schema, summarize
from tests.support.clusters import site
from tests.support.verdicts import passing, unknown

CHECKED_IN = Path(__file__).resolve().parents[3] / "schema" / "details.schema.json"


def details(verdict: dict[str, Any]) -> Any:
    """As a program without busbar reads it."""
    built = build_outputs(
        load(site(nfs_server={"host": "lb-1", "folder": "/srv/busbar"})),
        versions={},
        facts={"gpu-1": {"gpus": 8, "rails": 8}},
        results={"h100": {**summarize(verdict), "measured_at": "2026-11-23T01:02:03Z"}},
    )
    return json.loads(json.loads(built["details"]))


def test_the_schema_that_is_checked_in_is_current() -> None:
    assert json.loads(CHECKED_IN.read_text()) == details_schema(), "run `make schema`"


@pytest.mark.parametrize("verdict", [passing(), unknown()], ids=["pass", "unknown"])
def test_what_is_exported_fits_the_schema_that_is_checked_in(verdict: dict[str, Any]) -> None:
    jsonschema.validate(details(verdict), json.loads(CHECKED_IN.read_text()))


def test_every_key_of_the_schema_is_described() -> None:
    schema = details_schema()
    models = {**schema["$defs"], "Details": schema}
    keys = [(name, *each) for name, model in models.items() for each in model["properties"].items()]
    assert [f"{name}.{key}" for name, key, value in keys if not value.get("description")] == []

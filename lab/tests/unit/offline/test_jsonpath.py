"""JSONPath as wait conditions use it."""

from __future__ import annotations

from typing import Any

import pytest

from lab.offline.plugins.kubernetes.jsonpath import JsonPathError, parse
from lab.offline.plugins.kubernetes.wait_for import check_for
from lab.offline.plugins.sdk.resource import ProviderError

POD: dict[str, Any] = {
    "metadata": {"generation": 2, "labels": {"a.b/c": "x"}},
    "status": {
        "phase": "Running",
        "observedGeneration": 2,
        "conditions": [
            {"type": "Ready", "status": "True", "n": 3},
            {"type": "Failed", "status": "False"},
        ],
    },
}


@pytest.mark.parametrize(
    ("path", "found"),
    [
        ("$.status.phase", ["Running"]),
        ("$.metadata.labels['a.b/c']", ["x"]),
        ("$.status.conditions[0].type", ["Ready"]),
        ("$.status.conditions[-1].type", ["Failed"]),
        ("$.status.conditions[*].type", ["Ready", "Failed"]),
        ('$.status.conditions[?(@.type=="Ready")].status', ["True"]),
        ("$.status.conditions[?@.type=='Ready' && @.status=='True' || @.type=='None'].n", [3]),
        ("$.status.conditions[?(!(@.n))].type", ["Failed"]),
        ("$.status.conditions[?(@.n >= 3)].type", ["Ready"]),
        ("$.status.nothing.there", []),
    ],
)
def test_a_path_selects(path: str, found: list[Any]) -> None:
    assert parse(path)(POD) == found


@pytest.mark.parametrize("path", ["status", "$.a[", "$.a[?(@.b==]", "$..a", "$.a b"])
def test_a_path_that_is_not_understood_is_refused(path: str) -> None:
    with pytest.raises(JsonPathError):
        parse(path)


@pytest.mark.parametrize(
    ("annotation", "ready"),
    [
        ("jsonpath={.status.phase}=Running", True),
        ("jsonpath={.status.phase}=Done", False),
        ("jsonpath={.status.phase}", True),
        ("condition=Ready", True),
        ("condition=ready=true", True),
        ("condition=Failed", False),
        ('["condition=Ready", "jsonpath={.status.phase}=Done"]', False),
        ('jsonpath={.status.conditions[?(@.type=="Ready" || @.type=="Failed")].status}=True', True),
    ],
)
def test_a_condition_holds_or_not(annotation: str, ready: bool) -> None:
    assert check_for(annotation)(POD).ready is ready


def test_a_status_of_an_older_generation_proves_nothing() -> None:
    stale = {**POD, "metadata": {"generation": 3}}
    assert not check_for("jsonpath={.status.phase}=Running")(stale).ready
    assert not check_for("condition=Ready")(stale).ready


@pytest.mark.parametrize("annotation", ["phase=Running", "jsonpath=.status.phase=Running", "jsonpath={.a}="])
def test_a_condition_that_is_not_understood_is_refused(annotation: str) -> None:
    with pytest.raises(ProviderError):
        check_for(annotation)

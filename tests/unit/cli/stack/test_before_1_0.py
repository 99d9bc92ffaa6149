"""States that were written by a busbar before 1.0 are recognised."""

from __future__ import annotations

from typing import Any

import pytest

from busbar.cli.stack.engine import _is_before_1_0

REMOVE = "./.venv/bin/python -m busbar remove host"


@pytest.mark.parametrize(
    ("name", "inputs", "is_before"),
    [
        ("worker-gpu-1-removal", {"delete": REMOVE}, True),
        ("busbar-worker-removal@gpu-1", {"delete": REMOVE}, False),
        ("slurm-removal", {"delete": "./.venv/bin/python -m busbar slurm_k8s before-removal"}, False),
        ("cluster-id", {"input": "a1"}, True),
        ("cluster-id", {"input": {"id": "a1"}}, False),
        ("anything", {}, False),
    ],
)
def test_a_state_is_known_by_what_its_deletion_does(
    name: str, inputs: dict[str, Any], is_before: bool
) -> None:
    assert _is_before_1_0({"urn": f"urn:pulumi:dev::busbar::x::{name}", "inputs": inputs}) is is_before

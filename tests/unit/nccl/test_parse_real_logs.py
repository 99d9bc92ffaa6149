"""Every real log is read exactly as its sidecar says. What a sidecar cannot show is in the other files."""

from __future__ import annotations

import json
from typing import Any

import pytest

from busbar.nccl.log.export import as_object
from busbar.nccl.log.reader import read_lines
from tests.unit.nccl import logs

OURS_BESIDE = {"rows", "lines", "bytes", "sha256", "truncated"}


def differences(want: Any, got: Any, path: str = "") -> list[str]:
    """Where two JSON values differ; keys that only we add are left out."""
    if isinstance(want, dict) and isinstance(got, dict):
        extra = [f"{path}.{k} is not in the sidecar" for k in got if k not in {*want, *OURS_BESIDE}]
        missing = [f"{path}.{k} is missing" for k in want if k not in got]
        both = [k for k in want if k in got]
        return extra + missing + [d for k in both for d in differences(want[k], got[k], f"{path}.{k}")]
    if isinstance(want, list) and isinstance(got, list) and len(want) == len(got):
        pairs = enumerate(zip(want, got, strict=True))
        return [d for i, (w, g) in pairs for d in differences(w, g, f"{path}[{i}]")]
    return [] if want == got else [f"{path}: want {want!r}, got {got!r}"]


@pytest.mark.parametrize("name", logs.names() or ["missing"])
def test_a_real_log_is_read_as_its_sidecar_says(name: str) -> None:
    log = logs.path(name)
    expected = json.loads(log.with_suffix(".json").read_text())["expected"]
    assert differences(expected, as_object(read_lines(log.read_bytes().splitlines(keepends=True)))) == []


def test_every_row_carries_all_columns() -> None:
    run = as_object(read_lines(logs.lines("084")))["runs"][0]
    last = run["rows"][-1]
    assert (last["size"], last["count"], last["type"], last["redop"], last["root"]) == (
        2147483648, 536870912, "float", "sum", -1,
    )  # fmt: skip
    assert last["out_of_place"] == {"time": 10317.0, "algbw": 208.15, "busbw": 390.29, "errors": "0"}


def test_a_row_cut_by_a_message_gets_its_root_back() -> None:
    run = as_object(read_lines(logs.lines("001")))["runs"][0]
    cut = [r for r in run["rows"] if r["interleaved"]]
    assert [(r["size"], r["redop"], r["root"]) for r in cut] == [(2097152, "sum", -1)]

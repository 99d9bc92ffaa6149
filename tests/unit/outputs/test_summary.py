"""What the terminal shows of the outputs at the end of an update."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from busbar.config import load
from busbar.outputs import build_measured, build_outputs
from busbar.outputs.contract import summarize
from busbar.outputs.summary import summary
from tests.support.clusters import site
from tests.support.verdicts import failing, passing

CHECKS = [
    {"name": "gdrdma", "status": "pass", "reason": "/GDRDMA on 704 of 704 edges"},
    {"name": "sharp", "status": "not-required", "reason": "ring"},
]


def _outputs(
    verdict: dict[str, Any] | None = None,
    folder: str = "missing",
    stale: tuple[str, ...] = (),
    **changes: Any,
) -> dict[str, Any]:
    result = summarize(
        verdict or passing(),
        verdict_file=f"{folder}/h100/verdict.json",
        config_map="ns/nccl",
    )
    result["measured_at"] = "2026-11-23T01:02:03Z"
    built = build_outputs(
        load(site()),
        versions={"k3s": "v1.35.6+k3s1", "gpu_operator": None},
        facts={},
        results={"h100": {**result, **({"stale": stale} if stale else {})}},
    )
    return {**built, **changes}


def _keep(folder: Path, verdict: dict[str, Any]) -> None:
    (folder / "h100").mkdir()
    (folder / "h100" / "verdict.json").write_text(json.dumps(verdict))


def _text(outputs: dict[str, Any], folder: Path | None = None) -> str:
    console = Console(width=200, no_color=True)
    with console.capture() as capture:
        console.print(summary(outputs, folder=folder))
    return capture.get()


def _rows(text: str) -> list[list[str]]:
    return [line.split() for line in text.splitlines()]


def test_a_pass_shows_the_number_what_was_expected_and_when_it_was_measured() -> None:
    assert _text(_outputs()).startswith(
        "PASS  390.28 GB/s, expected 400 GB/s, measured 2026-11-23 01:02 UTC\n"
    )


def test_each_pool_shows_its_result_and_by_which_way_the_data_went() -> None:
    row = next(row for row in _rows(_text(_outputs())) if row[:2] == ["h100", "pass"])
    assert " ".join(row) == ("h100 pass 390.28 400.00 97.6 % gpudirect-rdma 704 of 704 8 on each of 2 hosts")


def test_each_collective_shows_its_bandwidth_at_the_largest_size() -> None:
    verdict = passing()
    [largest] = verdict["collectives"]["all_reduce"]["curve"]
    faster = {"out_of_place": {"busbw_gbps": 395.0}, "in_place": {"busbw_gbps": 395.0}}
    smaller = {**largest, "size_bytes": 4 << 30, **faster}
    verdict["collectives"]["all_reduce"]["curve"] = [smaller, largest]
    rows = _rows(_text(_outputs(verdict)))
    assert ["h100", "all_reduce", "8", "GiB", "390.28", "-", "-", "-"] in rows


def test_the_kept_verdict_adds_what_was_expected_of_each_collective_and_the_checks(tmp_path: Path) -> None:
    verdict = {**passing(), "checks": CHECKS}
    _keep(tmp_path, verdict)
    rows = _rows(_text(_outputs(verdict), tmp_path))
    assert ["h100", "all_reduce", "8", "GiB", "390.28", "400.00", "97.6", "%", "pass"] in rows
    assert ["h100", "gdrdma", "pass", "/GDRDMA", "on", "704", "of", "704", "edges"] in rows
    assert ["h100", "(not", "required)", "sharp"] in rows


def test_the_kept_verdict_is_found_by_the_path_in_the_outputs(tmp_path: Path) -> None:
    verdict = {**passing(), "checks": CHECKS}
    _keep(tmp_path, verdict)
    assert "704 of 704 edges" in _text(_outputs(verdict, folder=str(tmp_path)))


def test_a_kept_verdict_of_another_measurement_is_not_shown(tmp_path: Path) -> None:
    _keep(tmp_path, {**passing(380.0), "checks": CHECKS})
    assert "704 of 704 edges" not in _text(_outputs(), tmp_path)


def test_a_file_that_is_not_a_verdict_is_not_shown(tmp_path: Path) -> None:
    (tmp_path / "h100").mkdir()
    (tmp_path / "h100" / "verdict.json").write_text("[1]")
    assert _text(_outputs(), tmp_path).startswith("PASS")


def test_a_failure_says_every_reason() -> None:
    verdict = {**failing(), "reasons": ["rails: 7 of 8", "busbw: 196 of 400 GB/s"]}
    text = _text(_outputs(verdict))
    assert text.startswith("FAIL  NCCL validation failed\n")
    assert "rails: 7 of 8" in text and "busbw: 196 of 400 GB/s" in text


def test_an_update_that_never_measured_is_not_a_pass() -> None:
    assert _text({}).startswith("NOT MEASURED")


def test_a_validation_that_is_switched_off_is_no_failure() -> None:
    cluster = site()
    cluster["validation"] = {"enabled": False}
    text = _text(build_outputs(load(cluster), versions={}, facts={}, results={}))
    assert text.startswith("NOT MEASURED")
    assert "not measured: validation.enabled is false" in text and "FAIL" not in text


def test_outputs_of_another_contract_version_are_refused() -> None:
    with pytest.raises(ValueError, match=r"unsupported contract_version 1 \(supported: 3\)"):
        summary(_outputs(contract_version=1))


def test_the_time_of_the_measurement_is_shown() -> None:
    assert "measured  h100: 2026-11-23 01:02:03 UTC\n" in _text(_outputs())


def test_what_has_changed_since_a_verdict_that_stayed_is_shown() -> None:
    text = _text(_outputs(stale=("run 1 -> 2", "not measured: gpu-3")))
    assert "stale  h100: run 1 -> 2\n" in text and "stale  h100: not measured: gpu-3\n" in text
    assert "stale" not in _text(_outputs())


def test_a_simulation_is_named() -> None:
    verdict = {**passing(), "simulated": "nccl-tests on CPUs"}
    assert ["simulated", "h100:", "nccl-tests", "on", "CPUs"] in _rows(_text(_outputs(verdict)))


def test_versions_are_listed_with_k3s_and_without_those_that_are_unknown() -> None:
    text = _text(_outputs())
    assert "versions  k3s v1.35.6+k3s1, nccl 2.28.3, nccl_plugin IBext_v8\n" in text


def test_the_report_and_the_kubeconfig_are_named_where_they_were_kept() -> None:
    text = _text(_outputs(kubeconfig="secret"), Path(".busbar/prod"))
    assert ".busbar/prod/h100/report.html" in text and ".busbar/prod/kubeconfig" in text
    assert "secret" not in text


def test_without_a_folder_the_verdict_is_named_where_it_lies_and_in_the_cluster() -> None:
    text = _text(_outputs())
    assert "verdict  missing/h100/verdict.json\n" in text
    assert "in cluster  ConfigMap ns/nccl\n" in text


def test_a_pass_over_tcp_without_a_configured_expectation_shows_what_it_measured() -> None:
    outputs = _outputs(nccl_busbw_gbps=0.62)
    del outputs["nccl_expected_gbps"]
    assert "PASS  0.62 GB/s, measured" in _text(outputs)


def test_outputs_of_a_measurement_alone_say_that_hosts_and_kubeconfig_are_missing() -> None:
    text = _text(build_measured("research", {"h100": summarize(passing())}))
    assert "PASS" in text and "this stack only measured its cluster" in text
    assert "versions  nccl 2.28.3, nccl_plugin IBext_v8\n" in text
    assert "only measured" not in _text(_outputs())

"""What the terminal shows of the outputs at the end of an update."""

import json
from pathlib import Path
from typing import Any

import pytest

from busbar.config import load
from busbar.outputs import build_measured, build_outputs
from busbar.outputs.contract import summarize
from busbar.outputs.summary import summary
from tests.support.cli import shown
from tests.support.clusters import site
from tests.support.verdicts import failing, passing

CHECKS = [
    {"name": "gdrdma", "status": "pass", "reason": "/GDRDMA on 704 of 704 edges"},
    {"name": "sharp", "status": "not-required", "reason": "ring"},
]
CHECKED = {**passing(), "checks": CHECKS}
# In these texts a run of spaces is one.
PASS = """\
PASS 390.28 GB/s, expected 400 GB/s, measured 2026-11-23 01:02 UTC
pool verdict busbw GB/s expected of expected transport GDRDMA edges rails
h100 pass 390.28 400.00 97.6 % gpudirect-rdma 704 of 704 8 on each of 2 hosts
pool collective size busbw GB/s expected of expected verdict
h100 all_reduce 8 GiB 390.28 - - -
API https://192.0.2.1:6443
versions k3s v1.35.6+k3s1, nccl 2.28.3, nccl_plugin IBext_v8
verdict missing/h100/verdict.json
in cluster ConfigMap ns/nccl
measured h100: 2026-11-23 01:02:03 UTC
"""
EACH_CHECK = """\
h100 all_reduce 8 GiB 390.28 400.00 97.6 % pass
pool check status reason
h100 gdrdma pass /GDRDMA on 704 of 704 edges
h100 (not required) sharp
"""
STALE = """\
stale h100: run 1 -> 2
stale h100: not measured: gpu-3
simulated h100: nccl-tests on CPUs
"""
FAIL = """\
FAIL NCCL validation failed
rails: 7 of 8
busbw: 196 of 400 GB/s
"""


def _outputs(verdict: Any = None, folder: str = "missing", stale: Any = (), **changes: Any) -> dict[str, Any]:
    places: dict[str, Any] = {"verdict_file": f"{folder}/h100/verdict.json", "config_map": "ns/nccl"}
    result = {**summarize(verdict or passing(), **places), "measured_at": "2026-11-23T01:02:03Z"}
    built = build_outputs(
        load(site()),
        versions={"k3s": "v1.35.6+k3s1", "gpu_operator": None},
        facts={},
        results={"h100": {**result, **({"stale": stale} if stale else {})}},
    )
    return {**built, **changes}


def _keep(folder: Path, verdict: Any) -> None:
    (folder / "h100").mkdir()
    (folder / "h100" / "verdict.json").write_text(json.dumps(verdict))


def _text(outputs: dict[str, Any], folder: Path | None = None) -> str:
    text = shown(summary(outputs, folder=folder))
    return "".join(" ".join(line.split()) + "\n" for line in text.splitlines())


def test_a_pass_is_shown_with_all_that_the_outputs_say_of_it() -> None:
    assert _text(_outputs()) == PASS
    verdict, stale = {**passing(), "simulated": "nccl-tests on CPUs"}, ("run 1 -> 2", "not measured: gpu-3")
    assert _text(_outputs(verdict, stale=stale)) == PASS + STALE


def test_each_collective_shows_its_bandwidth_at_the_largest_size() -> None:
    verdict = passing()
    [largest] = verdict["collectives"]["all_reduce"]["curve"]
    faster = {"out_of_place": {"busbw_gbps": 395.0}, "in_place": {"busbw_gbps": 395.0}}
    smaller = {**largest, "size_bytes": 4 << 30, **faster}
    verdict["collectives"]["all_reduce"]["curve"] = [smaller, largest]
    assert _text(_outputs(verdict)) == PASS


def test_the_kept_verdict_adds_its_checks_and_where_files_are(tmp_path: Path) -> None:
    _keep(tmp_path, CHECKED)
    text = _text(_outputs(CHECKED, kubeconfig="secret"), tmp_path)
    assert EACH_CHECK in text and "secret" not in text
    assert f"kubeconfig {tmp_path}/kubeconfig\nreport {tmp_path}/h100/report.html\n" in text
    assert EACH_CHECK in _text(_outputs(CHECKED, folder=str(tmp_path))), "found by the path in the outputs"


@pytest.mark.parametrize("kept", [{**passing(380.0), "checks": CHECKS}, [1]])
def test_a_verdict_of_another_measurement_or_none_is_not_shown(tmp_path: Path, kept: Any) -> None:
    _keep(tmp_path, kept)
    text = _text(_outputs(), tmp_path)
    assert text.startswith("PASS") and "704 of 704 edges" not in text


def test_a_failure_says_every_reason() -> None:
    verdict = {**failing(), "reasons": ["rails: 7 of 8", "busbw: 196 of 400 GB/s"]}
    assert _text(_outputs(verdict)).startswith(FAIL)


def test_what_was_not_measured_is_no_pass_and_no_failure() -> None:
    assert _text({}) == "NOT MEASURED the update ended before the validation\n"
    off = load({**site(), "validation": {"enabled": False}})
    text = _text(build_outputs(off, versions={}, facts={}, results={}))
    assert text.startswith("NOT MEASURED\nnot measured: validation.enabled is false\n") and "FAIL" not in text


def test_a_pass_over_tcp_without_a_configured_expectation_shows_what_it_measured() -> None:
    outputs = _outputs(nccl_busbw_gbps=0.62)
    del outputs["nccl_expected_gbps"]
    assert "PASS 0.62 GB/s, measured" in _text(outputs)


def test_outputs_of_a_measurement_alone_say_that_hosts_and_kubeconfig_are_missing() -> None:
    text = _text(build_measured("research", {"h100": summarize(passing())}))
    assert text.startswith("PASS") and "this stack only measured its cluster" in text
    assert text.endswith("versions nccl 2.28.3, nccl_plugin IBext_v8\n")

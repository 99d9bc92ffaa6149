"""What a person sees of the outputs at the end of a bring-up."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from typer.testing import CliRunner

from busbar.cli import build
from busbar.outputs.summary import summary

CURVE = [{"size_bytes": size, "out_of_place": {}, "in_place": {}} for size in (2**20, 2**31)]


def _outputs(**changes: Any) -> dict[str, Any]:
    verdict = {
        "collectives": {
            "all_reduce": {
                "busbw_gbps": 390.28,
                "expected_gbps": 400.0,
                "fraction": 0.976,
                "passed": True,
                "curve": CURVE,
            }
        },
        "checks": [
            {"name": "gdrdma", "status": "pass", "reason": "704 of 704 edges"},
            {"name": "sharp", "status": "not-required", "reason": "ring"},
        ],
        "simulated": None,
    }
    good = {
        "nccl_passed": True,
        "nccl_busbw_gbps": 390.28,
        "nccl_expected_gbps": 400.0,
        "nccl_reasons": [],
        "api_endpoint": "https://10.0.0.10:6443",
        "versions": {"k3s": "v1.35.6+k3s1", "nccl": None},
        "nccl": {"pools": {"h100": verdict}},
    }
    return {**good, **changes}


def _text(outputs: dict[str, Any], folder: Path | None = None) -> str:
    console = Console(width=160, no_color=True)
    with console.capture() as capture:
        console.print(summary(outputs, folder=folder))
    return capture.get()


def test_a_pass_shows_the_number_its_size_and_what_was_expected() -> None:
    text = _text(_outputs())
    assert "PASS  390.28 GB/s, expected 400 GB/s" in text
    assert "all_reduce  2 GiB" in text


def test_checks_that_were_not_needed_share_one_line() -> None:
    lines = [line.split() for line in _text(_outputs()).splitlines()]
    assert ["h100", "(not", "required)", "sharp"] in lines


def test_a_failure_says_every_reason() -> None:
    text = _text(_outputs(nccl_passed=False, nccl_reasons=["rails: 7 of 8", "busbw: 196 of 400 GB/s"]))
    assert text.startswith("FAIL") and "rails: 7 of 8" in text and "busbw: 196 of 400 GB/s" in text


def test_a_bring_up_that_never_measured_is_no_pass() -> None:
    assert _text({}).startswith("NOT MEASURED")


def test_the_report_and_the_kubeconfig_are_named_where_they_were_kept() -> None:
    text = _text(_outputs(kubeconfig="secret"), Path(".busbar/prod"))
    assert ".busbar/prod/h100/report.html" in text and ".busbar/prod/kubeconfig" in text
    assert "secret" not in text


@pytest.mark.parametrize(("passed", "code"), [(True, 0), (False, 1)])
def test_show_ends_with_the_verdict_as_exit_code(passed: bool, code: int) -> None:
    done = CliRunner().invoke(build(), ["show"], input=json.dumps(_outputs(nccl_passed=passed)))
    assert done.exit_code == code


def test_show_refuses_what_is_no_stack_output() -> None:
    done = CliRunner().invoke(build(), ["show"], input="error: no stack selected")
    assert done.exit_code == 64 and "pulumi stack output --json" in done.output


def test_a_pass_over_tcp_that_nobody_expected_a_value_of_shows_what_it_measured() -> None:
    outputs = _outputs(nccl_busbw_gbps=0.62)
    del outputs["nccl_expected_gbps"]
    assert "PASS  0.62 GB/s\n" in _text(outputs)

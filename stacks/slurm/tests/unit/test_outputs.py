"""The outputs, the gate on them, and their tables."""

from pathlib import Path
from typing import Any

import pytest

from busbar.outputs.contract import summarize
from stacks.slurm.package import outputs
from stacks.slurm.package.config import Slurm
from stacks.slurm.package.outputs import summary
from stacks.slurm.tests.support import compute, configured, facts, slurm
from tests.support import cli
from tests.support.verdicts import failing, passing


def built(verdict: dict[str, Any] | None = None, made: Slurm | None = None) -> dict[str, Any]:
    made = made or slurm()
    results = {"h100": summarize(verdict)} if verdict else {}
    return outputs.build_outputs(made, facts(made), results)


def shown(values: dict[str, Any], folder: Path | None = None) -> str:
    return cli.shown(summary(values, folder=folder))


def test_a_pass_has_the_measured_bandwidth_and_the_versions_that_were_found() -> None:
    found = built(passing())
    assert tuple(found) == outputs.NAMES
    assert found["slurm_nccl_passed"] is True and found["slurm_nccl_reasons"] == []
    assert found["slurm_nccl_busbw_gbps"] == summarize(passing())["busbw_gbps"]
    assert found["slurm_versions"]["slurm"] == "24.11.5-4"
    assert found["slurm_partitions"] == {"h100": ["h100"]}
    assert outputs.gate(found, enforce=True) is None


def test_what_was_not_measured_did_not_pass() -> None:
    assert built()["slurm_nccl_reasons"] == ["nothing was measured"]
    off = built(made=slurm(validation={"enabled": False}))
    assert off["slurm_nccl_reasons"] == ["not measured: validation.enabled is false"]
    assert off["slurm_nccl_passed"] is False
    assert shown(off).startswith("NOT MEASURED") and "FAIL" not in shown(off)
    pools = {name: configured()["pools"]["h100"] for name in ("h100", "other")}
    one_of_two = built(passing(), slurm(pools=pools, hosts=compute({"pool": "h100"}, {"pool": "other"})))
    assert one_of_two["slurm_nccl_passed"] is False
    assert one_of_two["slurm_nccl_reasons"] == ["pool other: nothing was measured"]


NINE_OF_TEN = [f"gpu-{number}" for number in range(1, 11) if number != 4]


@pytest.mark.parametrize(
    ("hosts", "validation", "passed"),
    [({}, {}, False), ({}, {"min_nodes_fraction": 0.9}, True), ({3: {"quarantine": "bad cable"}}, {}, True)],
    ids=["nobody has left it out", "the stack file allows it", "quarantine"],
)
def test_a_host_that_was_not_measured_was_left_out_by_somebody_or_it_is_no_pass(
    hosts: dict[int, dict[str, str]], validation: dict[str, float], passed: bool
) -> None:
    made = slurm(hosts=compute(*(hosts.get(number, {}) for number in range(10))), validation=validation)
    result = {**summarize(passing()), "nodes_measured": NINE_OF_TEN}
    found = outputs.build_outputs(made, facts(made), {"h100": result})
    assert found["slurm_nccl_passed"] is passed
    assert (outputs.gate(found, enforce=True) is None) is passed
    if not passed:
        [reason] = found["slurm_nccl_reasons"]
        assert reason.startswith("9 of 10 hosts were measured; not measured: gpu-4. Fix: ")
        assert "validation.min_nodes_fraction" in reason and "quarantine" in reason


def test_the_tables_show_conclusion_pools_and_where_the_report_is() -> None:
    text = shown(built(passing()), Path(".busbar/site"))
    for part in ("PASS", "10.0.0.1", "h100", ".busbar/site/h100/report.html"):
        assert part in text
    failed = built(failing("no rail"))
    assert "NCCL validation failed" in shown(failed)
    assert outputs.gate(failed, enforce=False) is None
    with pytest.raises(ValueError, match="unsupported slurm_contract_version 9"):
        shown({**failed, "slurm_contract_version": 9})

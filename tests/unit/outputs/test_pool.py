"""What is exported of one pool's verdict, and what a reader makes of it."""

import json
from typing import Any

import pytest

from busbar import __version__
from busbar.judge.nccl.verdict import Verdict
from busbar.outputs.contract import PoolResult, read_result, summarize
from tests.support.verdicts import passing, unknown


def row(size: int, out_of_place: float | None, in_place: float | None) -> dict[str, Any]:
    busbw = {"out_of_place": out_of_place, "in_place": in_place}
    return {"size_bytes": size, **{name: {"busbw_gbps": value} for name, value in busbw.items()}}


def result(verdict: dict[str, Any], **more: Any) -> PoolResult:
    """What a program reads of a verdict that the collector printed."""
    return PoolResult.model_validate(read_result(json.dumps(summarize(verdict, **more))))


def test_the_verdicts_of_these_tests_have_keys_that_verdicts_have() -> None:
    assert {*passing()} <= {field.alias or name for name, field in Verdict.model_fields.items()}


def test_a_passing_verdict_is_read_back_with_its_numbers_rounded_to_four_decimals() -> None:
    more = {"fraction": 0.97570000000001, "simulated": "on CPUs", "rails_per_host": {"a": 8, "b": 8, "c": 6}}
    pool = result({**passing(), **more}, verdict_file=".busbar/h100/verdict.json", config_map="ns/name")
    numbers = (pool.busbw_gbps, pool.expected_gbps, pool.fraction)
    assert (pool.verdict, *numbers) == ("pass", 390.28, 400.0, 0.9757)
    assert (pool.transport, pool.gdrdma_edges, pool.network_edges) == ("gpudirect-rdma", 704, 704)
    assert pool.hosts_by_rails == {8: 2, 6: 1}
    assert pool.curve == {"all_reduce": ((8589934592, 390.28),)}
    assert (pool.verdict_file, pool.config_map) == (".busbar/h100/verdict.json", "ns/name")
    assert (pool.simulated, pool.busbar_version) == ("on CPUs", __version__)


def test_the_curve_is_the_smaller_of_out_of_place_and_in_place_at_each_size() -> None:
    rows = [row(2**29, 371.2, 380.0), row(1025, None, 0.0182), row(2**30, 390.0, 382.1)]
    found = result({**passing(), "collectives": {"all_reduce": {"curve": rows}}}).curve
    assert found == {"all_reduce": ((1025, 0.0182), (2**29, 371.2), (2**30, 382.1))}


@pytest.mark.parametrize(
    ("channels", "edges"),
    [
        ({"NET/IBext/N/GDRDMA": 700, "NET/IBext/N": 4, "P2P/CUMEM": 64}, (700, 704)),
        ({"NET/IB/N/GDRDMA(PCI)/Shared": 8, "COLLNET/SHARP/N": 2}, (8, 10)),
        ({"NET/Socket/N": 8}, (0, 8)),
        ({"P2P/CUMEM": 64, "SHM/direct": 2}, (None, None)),
    ],
)
def test_gdrdma_edges_are_counted_among_those_over_the_network(channels: Any, edges: Any) -> None:
    pool = result({**passing(), "channels": channels})
    assert (pool.gdrdma_edges, pool.network_edges) == edges


def test_what_was_not_measured_has_no_key() -> None:
    known = {"format", "verdict", "reasons", "transport", "hosts_by_rails", "curve"}
    assert set(summarize(unknown())) == known


def test_a_verdict_of_a_full_size_sweep_of_440_hosts_stays_below_4_kb() -> None:
    rows = [row(2**power, 390.28, 390.31) for power in range(10, 35)]
    verdict = {
        **passing(),
        "collectives": {name: {"curve": rows} for name in ("all_reduce", "all_gather")},
        "rails_per_host": {f"gpu-{i}": 8 for i in range(440)},
        "checks": [{"name": "gdrdma", "status": "pass", "reason": "x", "evidence": "y" * 400}] * 20,
    }
    assert len(json.dumps(summarize(verdict))) < 4096


@pytest.mark.parametrize(
    ("printed", "problem"),
    [
        (None, "unsupported format None, supported: 4"),
        ("Killed", "unsupported format None, supported: 4"),
        ("[]", "unsupported format None, supported: 4"),
        ('{"format": 4}', "verdict: Field required"),
        (
            '{"format": 4, "verdict": "good"}',
            "verdict: Input should be 'pass', 'fail' or 'unknown', got 'good'",
        ),
        ('{"format": 3, "verdict": "pass"}', "unsupported format 3, supported: 4"),
    ],
)
def test_a_text_that_is_not_a_result_is_no_evidence_and_says_so(printed: str | None, problem: str) -> None:
    found = PoolResult.model_validate(read_result(printed))
    assert found.verdict == "unknown"
    assert problem in found.reasons[0]
    assert "the output of `busbar nccl collect` cannot be read" in found.reasons[0]

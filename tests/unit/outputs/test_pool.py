"""What is exported of one pool's verdict, and what a reader makes of it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from busbar.nccl.verdict import Verdict
from busbar.outputs.pool import FIELDS, parse_pool, summarize
from tests.support.verdicts import passing, unknown


def row(size: int, out_of_place: float | None, in_place: float | None) -> dict[str, Any]:
    return {
        "size_bytes": size,
        "out_of_place": {"busbw_gbps": out_of_place},
        "in_place": {"busbw_gbps": in_place},
    }


def with_curve(*rows: dict[str, Any]) -> dict[str, Any]:
    return {**passing(), "collectives": {"all_reduce": {"curve": list(rows)}}}


def test_every_key_of_a_verdict_that_is_read_is_one_that_verdicts_have() -> None:
    keys_read: set[str] = set()

    class Recorded(dict[str, Any]):
        def get(self, key: str, default: Any = None) -> Any:
            keys_read.add(key)
            return super().get(key, default)

    summarize(Recorded(passing()))
    fields = {field.alias or name for name, field in Verdict.model_fields.items()}
    assert "simulated" in keys_read
    assert keys_read - fields == set()


def test_a_passing_verdict_is_read_back_with_its_numbers() -> None:
    pool = parse_pool(
        summarize(passing(), verdict_file=".busbar/prod/h100/verdict.json", config_map="ns/name")
    )
    assert (pool.verdict, pool.busbw_gbps, pool.expected_gbps, pool.fraction) == (
        "pass",
        390.28,
        400.0,
        0.9757,
    )
    assert (pool.transport, pool.gdrdma_edges, pool.rails) == (
        "gpudirect-rdma",
        (704, 704),
        "8 on each of 2 hosts",
    )
    assert pool.curve == {"all_reduce": ((8589934592, 390.28),)}
    assert (pool.verdict_file, pool.config_map) == (".busbar/prod/h100/verdict.json", "ns/name")
    assert pool.simulated is None


def test_the_curve_is_the_smaller_of_out_of_place_and_in_place_at_each_size() -> None:
    verdict = with_curve(row(1025, 0.0182, 0.02), row(2**29, 371.2, 380.0), row(2**30, 390.0, 382.1))
    short = summarize(verdict)
    assert short["curve"] == {"all_reduce": "1GiB=382.1 512MiB=371.2 1025B=0.0182"}
    assert parse_pool(short).curve == {"all_reduce": ((1025, 0.0182), (2**29, 371.2), (2**30, 382.1))}


def test_a_row_of_which_one_half_was_not_measured_has_the_value_of_the_other() -> None:
    assert summarize(with_curve(row(1024, None, 1.5)))["curve"] == {"all_reduce": "1KiB=1.5"}


@pytest.mark.parametrize("size", [1, 1000, 2**10, 2**20, 3 * 2**20, 2**33, 2**41])
def test_sizes_are_read_back_exactly(size: int) -> None:
    assert parse_pool(summarize(with_curve(row(size, 1.0, 1.0)))).curve == {"all_reduce": ((size, 1.0),)}


@pytest.mark.parametrize(
    ("channels", "edges"),
    [
        ({"NET/IBext/N/GDRDMA": 700, "NET/IBext/N": 4, "P2P/CUMEM": 64}, (700, 704)),
        ({"NET/IB/N/GDRDMA(PCI)/Shared": 8, "COLLNET/SHARP/N": 2}, (8, 10)),
        ({"NET/Socket/N": 8}, (0, 8)),
        ({"P2P/CUMEM": 64, "SHM/direct": 2}, None),
    ],
)
def test_gdrdma_edges_are_counted_among_those_over_the_network(
    channels: dict[str, int], edges: tuple[int, int] | None
) -> None:
    assert parse_pool(summarize({**passing(), "channels": channels})).gdrdma_edges == edges


@pytest.mark.parametrize(
    ("hosts", "text"),
    [
        ({"a": 8}, "8 on 1 host"),
        ({"a": 8, "b": 8, "c": 6}, "8 on 2 hosts, 6 on 1 host"),
        ({}, None),
    ],
)
def test_rails_are_told_for_groups_of_hosts(hosts: dict[str, int], text: str | None) -> None:
    assert parse_pool(summarize({**passing(), "rails_per_host": hosts})).rails == text


def test_a_simulation_is_noted_and_read_back() -> None:
    short = summarize({**passing(), "simulated": "nccl-tests on CPUs"})
    assert short["simulated"] == "nccl-tests on CPUs"
    assert parse_pool(short).simulated == "nccl-tests on CPUs"


def test_numbers_are_rounded_to_four_decimals() -> None:
    assert summarize({**passing(), "fraction": 0.97570000000001})["fraction"] == 0.9757


def test_what_was_not_measured_has_no_key() -> None:
    assert set(summarize(unknown())) & set(FIELDS) == {"verdict", "transport", "curve"}
    assert parse_pool(summarize(unknown())).busbw_gbps is None


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
    ("change", "message"),
    [
        ({"gdrdma_edges": "all"}, "gdrdma_edges is 'all'"),
        ({"curve": {"all_reduce": "512MiB"}}, "curve.all_reduce has '512MiB'"),
        ({"curve": {"all_reduce": "512MiB=nan"}}, "curve.all_reduce has '512MiB=nan'"),
        ({"curve": [1]}, "curve is"),
    ],
)
def test_an_entry_of_another_form_is_refused_by_key(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse_pool({**summarize(passing()), **change})

"""Checks across hosts, and the stored facts."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from busbar.finding import Finding
from busbar.hosts.inventory import Host
from busbar.hosts.scripts import packed
from busbar.preflight.cross_checks import check_across_hosts
from busbar.preflight.facts import HostRecord, pack, rail_addresses, read
from busbar.preflight.host_checks import host_facts
from busbar.preflight.output import lines, table
from busbar.preflight.report import Report
from busbar.preflight.spec import HostRequirements
from busbar.preflight.survey import Outcome
from tests.support.reports import hca, report
from tests.unit.preflight.samples import REQUIRED, a_host, spec

# Linux hands a program at most this much in one environment variable (MAX_ARG_STRLEN).
ENVIRONMENT_LIMIT = 128 * 1024


def passed(machine: str, **changes: object) -> HostRecord:
    return HostRecord("f" * 12, machine, host_facts(REQUIRED, report()) | changes)


THREE = spec(*(a_host(f"worker-{n}") for n in (1, 2, 3)))
ROWS = yaml.safe_load(Path(__file__).with_name("cross_findings.yaml").read_text())


def compared(row: dict[str, Any]) -> list[Finding]:
    """The findings across the hosts of a row."""
    required = HostRequirements.model_validate(REQUIRED.model_dump() | row.get("need", {}))
    hosts: list[Host] = []
    reports: dict[str, Report] = {}
    records: dict[str, HostRecord] = {}
    for number, changes in enumerate(row["hosts"], 1):
        role = changes.get("role", row.get("role", "worker"))
        name = changes.get("name", f"{role}-{number}")
        hosts.append(a_host(name, role))
        if not changes.get("known", True):
            continue
        ports = [hca(f"mlx5_{n}", **changes.get("ports", {})) for n in range(8)]
        found = report(**{"hostname": name, "hcas": ports, **changes.get("report", {})})
        facts = host_facts(required, found) | changes.get("facts", {})
        records[name] = HostRecord("f", changes.get("machine", name), facts)
        if changes.get("asked", True):
            reports[name] = found
    site = spec(*hosts, required=required).model_copy(update=row.get("spec", {}))
    return check_across_hosts(site, reports, records)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["case"])
def test_hosts_have_the_findings_of_what_differs_between_them(row: dict[str, Any]) -> None:
    found, expected = compared(row), row.get("found", [])
    assert [[each.host, each.kind] for each in found] == [each[:2] for each in expected], found
    for finding, (_, _, *texts) in zip(found, expected, strict=True):
        said = f"{finding.what}. Fix: {finding.fix}"
        assert all(text in said for text in texts), said


def test_a_worker_that_comes_into_quarantine_is_checked_again() -> None:
    repaired = THREE.model_copy(update={"quarantined": ("worker-2",)})
    assert repaired.fingerprint(THREE.hosts[1]) != THREE.fingerprint(THREE.hosts[1])


def test_the_fix_for_a_host_of_another_cluster_begins_with_the_likeliest_cause() -> None:
    [row] = [row for row in ROWS if row["case"] == "a host of another cluster"]
    [finding] = compared(row)
    steps = ["correct its address in this file", "busbar recover STACK", "remove it from that one's file"]
    # That cluster may have given up the host, which was off.
    steps.append("not listed any more: busbar docs hosts 'By hand'")
    places = [str(finding.fix).index(each) for each in steps]
    assert places == sorted(places)


def test_the_rails_of_all_hosts_are_offered() -> None:
    facts = {"worker-1": passed("m1").facts, "worker-2": passed("m2", rail_pci=["0000:99:00.0"]).facts}
    assert rail_addresses(facts) == [*(f"0000:{n:02x}:00.0" for n in range(0x20, 0x28)), "0000:99:00.0"]


def test_the_result_of_440_workers_with_different_pci_addresses_fits_too() -> None:
    hosts = {
        f"a-worker-with-a-long-name-{n:04}": passed(
            f"{n:08x}", rail_pci=[f"{n:04x}:{rail:02x}:00.0" for rail in range(8)], other_pci=[]
        )
        for n in range(440)
    }
    text = pack(hosts)
    assert len(text) < ENVIRONMENT_LIMIT
    assert read(text) == hosts


@pytest.mark.parametrize("text", ["", "[]", "H4sIAAAA", packed("[]"), packed('{"a":{"facts":{}}}')])
def test_a_text_that_is_not_a_result_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="result of preflight"):
        read(text)


def test_equal_findings_are_joined_and_errors_come_first() -> None:
    slow = [Finding((name,), "is slow", "wait", kind="warning") for name in ("a", "c")]
    found = [slow[0], Finding(("b",), "is down", "boot"), slow[1]]
    assert list(lines(found)) == [("error", "b: is down. Fix: boot"), ("warning", "a, c: is slow. Fix: wait")]


def test_the_table_has_a_column_for_roce_where_a_host_has_it() -> None:
    for facts, titles in (({"roce": ["priority 3, PFC on"]}, ["RoCE"]), ({}, [])):
        hosts = {"worker-1": passed("m1", **facts)}
        shown = table(THREE, Outcome([], hosts, queried=1))
        assert [str(column.header) for column in shown.columns if column.header == "RoCE"] == titles
        assert len({len(list(column.cells)) for column in shown.columns}) == 1

"""The hosts among themselves, and what is kept of them."""

from __future__ import annotations

import pytest

from busbar.preflight import fleet
from busbar.preflight.facts import Passed, pack, read, unpack
from busbar.preflight.findings import lines
from busbar.preflight.judge import facts
from busbar.preflight.spec import Finding
from tests.unit.preflight.samples import NEED, report, spec, target

# Linux hands a program at most this much in one environment variable (MAX_ARG_STRLEN).
ENVIRONMENT_LIMIT = 128 * 1024


def passed(machine: str, **changes: object) -> Passed:
    return Passed("f" * 12, machine, facts(NEED, report()) | changes)


THREE = spec(*(target(f"worker-{n}") for n in (1, 2, 3)))


def test_like_hosts_have_no_findings() -> None:
    hosts = {f"worker-{n}": passed(f"m{n}") for n in (1, 2, 3)}
    assert fleet.judge(THREE, {}, hosts) == []


def test_the_odd_driver_out_is_named() -> None:
    hosts = {f"worker-{n}": passed(f"m{n}") for n in (1, 2, 3)}
    hosts["worker-2"] = passed("m2", driver="535.54.03")
    (finding,) = fleet.judge(THREE, {}, hosts)
    assert (finding.host, finding.level) == ("worker-2", "error")
    assert "has driver 535.54.03, most of pool h100 have 570.124.06" in finding.what


def test_another_firmware_is_only_suspicious() -> None:
    hosts = {f"worker-{n}": passed(f"m{n}") for n in (1, 2, 3)}
    hosts["worker-3"] = passed("m3", hca_firmware=["28.39.1002"])
    (finding,) = fleet.judge(THREE, {}, hosts)
    assert (finding.host, finding.level) == ("worker-3", "warning")


def test_one_machine_listed_twice_is_found() -> None:
    hosts = {"worker-1": passed("same"), "worker-2": passed("same"), "worker-3": passed("m3")}
    (finding,) = fleet.judge(THREE, {}, hosts)
    assert (finding.host, finding.level) == ("worker-2", "error")
    assert "machine-id of worker-1" in finding.what


def test_two_hosts_of_one_name_collide() -> None:
    reports = {"worker-1": report(hostname="node"), "worker-2": report(hostname="node")}
    (finding,) = fleet.judge(THREE, reports, {})
    assert finding.host == "worker-2"
    assert "hostnamectl set-hostname worker-2" in finding.cure


def test_the_result_of_440_workers_fits_into_an_environment_variable() -> None:
    hosts = {f"a-worker-with-a-long-name-{n:04}": passed(f"{n:08x}") for n in range(440)}
    text = pack(hosts)
    assert len(text) < ENVIRONMENT_LIMIT / 4
    assert read(text) == hosts
    assert unpack(text)["a-worker-with-a-long-name-0439"]["gpus"] == 8


@pytest.mark.parametrize(
    "text", ["", "[]", '{"schema":2}', '{"schema":1,"groups":[],"hosts":{"a":["f","m",0]}}']
)
def test_what_is_no_result_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="result of preflight"):
        read(text)


def test_what_many_hosts_share_is_said_once_and_errors_come_first() -> None:
    found = [
        Finding("a", "warning", "is slow", "wait"),
        Finding("b", "error", "is down", "boot"),
        Finding("c", "warning", "is slow", "wait"),
    ]
    assert list(lines(found)) == [
        ("error", "b: is down. To do: boot"),
        ("warning", "a, c: is slow. To do: wait"),
    ]

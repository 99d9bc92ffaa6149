"""Every alert fires on series that it is for, and on no others: run by promtool."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from busbar.preflight.health_checks import FATAL_XIDS, XIDS_OF_PROGRAMS
from stacks.watch.package.render import PREFIX, groups, rules
from stacks.watch.tests.promtool import run
from stacks.watch.tests.support import watch
from stacks.watch.tests.unit.cases import CASES, EXPECTED, Case, Series, rail, rails, twin

RAIL_RULES = rules("rails", watch())
ROCE = {series for rule in RAIL_RULES if rule.link_layer for series in rule.series}
READ = {series for rule in RAIL_RULES for series in rule.series}
ALERTS = [rule["alert"] for group in groups(watch()) for rule in group["rules"]]
TWINS = {
    re.findall(r"\((node_infiniband_(\w+))", rule.expr)[0][1]: rule.alert
    for rule in RAIL_RULES
    if rule.alert.endswith("Absent")
}


# By severity and by how long they must hold.
SETTINGS = {
    ("critical", "0m"): {
        "BusbarFabricNotPassed", "BusbarBandwidthBelowFloor", "BusbarNodeCondition", "BusbarRailFlapped",
        "BusbarRailIntegrityErrors", "BusbarRailOverrun", "BusbarGpuXidCritical", "BusbarGpuRowRemapFailed",
        "BusbarGpuDoubleBitErrors", "BusbarGpuNvlinkRecovered",
    },
    ("critical", "1m"): {"BusbarRailDown", "BusbarRailLinkNotUp", "BusbarRailSlow"},
    ("critical", "5m"): {"BusbarDevicesMissing", "BusbarGpusMissing", TWINS["state_id"]},
    ("critical", "10m"): {"BusbarMetricsAbsent"},
    ("warning", "0m"): {
        "BusbarMeasurementOld", "BusbarRailSymbolErrors", "BusbarRailReceiverNotReady", "BusbarGpuXidWarning",
        "BusbarGpuRowsRemapped",
    },
    ("warning", "5m"): {
        "BusbarRailRecovering", "BusbarRailReceiveErrors", "BusbarRailDiscards", "BusbarRailAckTimeouts",
        "BusbarRailOutOfSequence", "BusbarRailSequenceErrors", "BusbarRailSlowRestarts",
        "BusbarRailOutOfBuffer", *(alert for series, alert in TWINS.items() if series != "state_id"),
    },
    ("warning", "10m"): {"BusbarGpuNvlinkReplays", "BusbarGpuPcieReplays", "BusbarGpuHot"},
    ("warning", "15m"): {"BusbarRailRemoteErrors", "BusbarRailCounterSaturated", "BusbarGpuCountersAbsent"},
    ("info", "0m"): {"BusbarGpuXidOfProgram"},
    ("info", "7d"): {"BusbarNodeQuarantined"},
}  # fmt: skip


def every_case() -> Iterator[tuple[str, Case]]:
    yield from CASES.items()
    for series, alert in TWINS.items():
        yield alert, twin(series, roce=series in ROCE)


def case_of(alert: str, series: Series, at: str, *, fires: bool, step: str = "1m") -> dict[str, Any]:
    """One test of promtool: whether the alert is firing at a time."""
    expr = f'count by (alertname) (ALERTS{{alertname="{alert}", alertstate="firing"}}) > bool 0'
    samples = [{"labels": f'{{alertname="{alert}"}}', "value": 1}] if fires else []
    # promtool stops at the last eval_time.
    return {
        "interval": step,
        "input_series": [{"series": name, "values": values} for name, values in series.items()],
        "promql_expr_test": [{"expr": expr, "eval_time": at, "exp_samples": samples}],
    }


@pytest.fixture(scope="module")
def rule_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("alerts") / "rules.yaml"
    file.write_text(yaml.safe_dump({"groups": groups(watch())}))
    return file


def passes(rule_file: Path, tests: list[dict[str, Any]], step: str = "1m") -> None:
    file = rule_file.with_name("test.yaml")
    file.write_text(
        yaml.safe_dump({"rule_files": [str(rule_file)], "evaluation_interval": step, "tests": tests})
    )
    done = run("test", "rules", file)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"


def test_the_rules_are_valid(rule_file: Path) -> None:
    done = run("check", "rules", rule_file)
    assert done.returncode == 0, done.stderr
    assert f"{len(ALERTS)} rules found" in done.stdout


def test_every_alert_has_a_name_of_its_own_and_a_case() -> None:
    assert len(ALERTS) == len(set(ALERTS))
    assert set(ALERTS) == {alert for alert, _ in every_case()}


def test_every_alert_has_its_severity_and_fires_after_its_time() -> None:
    found: dict[tuple[str, str], set[str]] = {}
    for rule in (rule for group in groups(watch()) for rule in group["rules"]):
        found.setdefault((rule["labels"]["severity"], rule["for"]), set()).add(rule["alert"])
    assert found == SETTINGS


def test_every_alert_says_what_to_do_and_names_only_labels_that_it_has() -> None:
    for rule in (rule for group in groups(watch()) for rule in group["rules"]):
        assert rule["annotations"]["description"].startswith("Fix: "), rule["alert"]
        named = set(re.findall(r"\$labels\.(\w+)", rule["annotations"]["summary"]))
        if kept := re.search(r"\bby \(([\w, ]+)\)", rule["expr"]):
            assert named <= set(kept[1].split(", ")), rule["alert"]


@pytest.mark.parametrize("alert", sorted(ALERTS))
def test_an_alert_fires_on_what_it_is_for_and_on_nothing_else(rule_file: Path, alert: str) -> None:
    case = dict(every_case())[alert]
    passes(
        rule_file,
        [
            case_of(alert, {**case.expected, **case.firing}, case.at, fires=True, step=case.step),
            case_of(alert, {**case.expected, **case.silent}, case.at, fires=False, step=case.step),
        ],
        case.step,
    )


def test_every_series_of_a_rail_that_an_alert_reads_has_an_alert_on_its_absence() -> None:
    assert set(TWINS) == READ
    for rule in RAIL_RULES:
        if rule.series and rule.alert != "BusbarRailCounterSaturated":
            assert set(re.findall(PREFIX + r"(\w+)", rule.expr)) == set(rule.series)
            # Another node_exporter may give the same series.
            assert not re.findall(PREFIX + r'\w+\b(?!\{job="busbar-rails"\})', rule.expr), rule.alert


@pytest.mark.parametrize("alert", ["BusbarRailDown", "BusbarRailLinkNotUp", "BusbarRailSlow"])
def test_a_rail_is_down_also_where_all_of_them_are(rule_file: Path, alert: str) -> None:
    [rule] = [rule for rule in RAIL_RULES if rule.alert == alert]
    both = rails(rule.series[0], "1x60", "1x60")
    passes(rule_file, [case_of(alert, {**CASES[alert].expected, **both}, "30m", fires=True)])


# What three alerts read of each port: the series, its value on a rail that works and on one that does not.
COUNTED = {
    "BusbarRailDown": ("state_id", "4x60", "1x60"),
    "BusbarRailLinkNotUp": ("physical_state_id", "5x60", "2x60"),
    "BusbarRailSlow": ("rate_bytes_per_second", "5e10x60", "2.5e10x60"),
}
# The rails of gpu-1 are named.
NAMED = {
    **EXPECTED,
    **{
        f'busbar_node_rail_info{{node="gpu-1",pool="h100",device="{device}",port="1"}}': "1x60"
        for device in ("mlx5_0", "mlx5_1")
    },
}
GOOD, BAD = True, False
# Which ports work, by device and port, and whether the alert fires.
HCAS = {
    "a rail is dead, two HCAs of storage are not": (
        {("mlx5_0", 1): GOOD, ("mlx5_1", 1): BAD, ("mlx5_4", 1): GOOD, ("mlx5_5", 1): GOOD}, True,
    ),
    "a rail is gone": ({("mlx5_0", 1): GOOD, ("mlx5_4", 1): GOOD, ("mlx5_5", 1): GOOD}, True),
    "all rails are gone": ({("mlx5_4", 1): GOOD, ("mlx5_5", 1): GOOD}, True),
    "a rail has another name": ({("mlx5_0", 1): GOOD, ("mlx5_7", 1): GOOD}, True),
    "the other port of a rail's HCA works": (
        {("mlx5_0", 1): GOOD, ("mlx5_1", 1): BAD, ("mlx5_1", 2): GOOD}, True,
    ),
    "the other port of a rail's HCA is not used": (
        {("mlx5_0", 1): GOOD, ("mlx5_1", 1): GOOD, ("mlx5_1", 2): BAD}, False,
    ),
    "an HCA of storage is unplugged": (
        {("mlx5_0", 1): GOOD, ("mlx5_1", 1): GOOD, ("mlx5_4", 1): BAD}, False,
    ),
    "nothing is read": ({}, False),
}  # fmt: skip


@pytest.mark.parametrize("alert", COUNTED)
def test_only_rails_are_counted_where_they_are_named(rule_file: Path, alert: str) -> None:
    series, good, bad = COUNTED[alert]
    tests = []
    for name, (ports, fires) in HCAS.items():
        found = dict(NAMED)
        for (device, port), works in ports.items():
            found |= rail(series, good if works else bad, device, port)
        tests.append({"name": name, **case_of(alert, found, "30m", fires=fires)})
    passes(rule_file, tests)


@pytest.mark.parametrize("alert", COUNTED)
def test_all_ports_of_a_node_are_counted_where_its_rails_are_not_named(rule_file: Path, alert: str) -> None:
    series, good, bad = COUNTED[alert]
    named = {**NAMED, **rails(series, good, good)}
    expected = {name.replace("gpu-1", "gpu-2"): values for name, values in EXPECTED.items()}

    def case(*ports: str, fires: bool) -> dict[str, Any]:
        found = {**named, **expected}
        for number, values in enumerate(ports):
            found |= rail(series, values, f"mlx5_{number}", node="gpu-2")
        return case_of(alert, found, "30m", fires=fires)

    passes(rule_file, [case(good, bad, fires=True), case(good, bad, good, fires=False)])


def test_a_node_without_any_series_of_a_rail_is_one_alert_not_one_per_counter(rule_file: Path) -> None:
    expected = twin("state_id").expected
    passes(
        rule_file,
        [case_of(alert, expected, "30m", fires=series == "state_id") for series, alert in TWINS.items()],
    )


def test_a_counter_that_stuck_at_its_maximum_is_named_because_nothing_else_fires(rule_file: Path) -> None:
    stuck = {**CASES["BusbarRailFlapped"].expected, **rail("link_downed_total", "255x60")}
    passes(
        rule_file,
        [
            case_of("BusbarRailFlapped", stuck, "30m", fires=False),
            case_of("BusbarRailCounterSaturated", stuck, "30m", fires=True),
        ],
    )


MAXIMA = {
    "link_downed_total": 255, "link_error_recovery_total": 255, "symbol_error_total": 65535,
    "port_errors_received_total": 65535, "port_discards_transmitted_total": 65535,
    "local_link_integrity_errors_total": 15, "excessive_buffer_overrun_errors_total": 15,
}  # fmt: skip


def test_every_counter_that_sticks_is_known_by_its_maximum(rule_file: Path) -> None:
    [rule] = [rule for rule in RAIL_RULES if rule.alert == "BusbarRailCounterSaturated"]
    assert set(rule.series) == set(MAXIMA)
    tests = [
        case_of(rule.alert, rail(series, f"{value}x60"), "30m", fires=value == maximum)
        for series, maximum in MAXIMA.items()
        for value in (maximum - 1, maximum)
    ]
    passes(rule_file, tests)


def test_series_of_roce_are_not_missing_where_the_rails_are_infiniband(rule_file: Path) -> None:
    assert sorted(ROCE) == ["out_of_buffer_drops_total", "roce_slow_restart_used_total"]
    infiniband = {**twin("state_id").expected, **twin("state_id").silent}
    passes(rule_file, [case_of(TWINS[series], infiniband, "30m", fires=False) for series in sorted(ROCE)])


def test_an_xid_is_as_critical_as_preflight_says() -> None:
    listed = {rule.alert: re.findall(r'xid=~"([\d|]+)"', rule.expr) for rule in rules("gpus", watch())}
    numbers = {alert: {int(each) for each in found[0].split("|")} for alert, found in listed.items() if found}
    assert numbers == {
        "BusbarGpuXidCritical": set(FATAL_XIDS),
        "BusbarGpuXidWarning": {63, 92, 94},
        "BusbarGpuXidOfProgram": XIDS_OF_PROGRAMS,
    }


def test_a_node_in_quarantine_from_which_nothing_is_expected_has_no_absent_rails(rule_file: Path) -> None:
    held = {
        'busbar_node_quarantined{node="gpu-1",reason="cable"}': "1x60",
        **rails("state_id", "1x60", "1x60"),
    }
    passes(rule_file, [case_of("BusbarRailDown", held, "30m", fires=False)])
    passes(rule_file, [case_of(TWINS["state_id"], held, "30m", fires=False)])


def test_counters_that_a_site_does_not_have_have_no_alert_on_their_absence() -> None:
    missing = watch(missing_counters=["node_infiniband_local_ack_timeout_errors_total"])
    names = {rule.alert for rule in rules("rails", missing)}
    assert set(ALERTS) - names - {rule["alert"] for rule in groups(missing)[0]["rules"]} >= {
        TWINS["local_ack_timeout_errors_total"]
    }
    assert "BusbarRailAckTimeouts" in names


def test_without_dcgm_there_are_no_rules_on_gpus() -> None:
    assert [group["name"] for group in groups(watch(dcgm=False))] == ["busbar-cluster", "busbar-rails"]

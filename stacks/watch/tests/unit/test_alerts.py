"""Every alert fires on series that it is for, and on no others: run by promtool."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from busbar.preflight.health_checks import FATAL_XIDS, XIDS_OF_PROGRAMS
from stacks.watch.package.render import PREFIX, groups, rules
from stacks.watch.tests.promtool import run
from stacks.watch.tests.support import watch
from stacks.watch.tests.unit.cases import CASES, EXPECTED, Case, Series, rail, rails, twin

RAIL_RULES = rules("rails", watch())
ROCE = {series for rule in RAIL_RULES if rule.link_layer for series in rule.series}
READ = {series for rule in RAIL_RULES for series in rule.series}
LISTED = [rule for group in groups(watch()) for rule in group["rules"]]
RULES = {rule["alert"]: rule for rule in LISTED}
ALERTS = [rule["alert"] for rule in LISTED]
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


class Firing(NamedTuple):
    """Whether an alert is firing at a time."""

    alert: str
    series: Series
    at: str
    fires: bool
    step: str = "1m"


def passes(folder: Path, *tests: Firing) -> None:
    """Run by promtool, each on a file with the one rule that it is about."""
    files: dict[str, dict[str, Any]] = {}
    for alert, series, at, fires, step in tests:
        rule_file = folder / f"{alert}.rules.yaml"
        rule_file.write_text(json.dumps({"groups": [{"name": alert, "rules": [RULES[alert]]}]}))
        head = {"rule_files": [str(rule_file)], "evaluation_interval": step, "tests": []}
        expr = f'count by (alertname) (ALERTS{{alertname="{alert}", alertstate="firing"}}) > bool 0'
        samples = [{"labels": f'{{alertname="{alert}"}}', "value": 1}] if fires else []
        # promtool stops at the last eval_time.
        files.setdefault(f"{alert}-{step}.yaml", head)["tests"].append(
            {
                "interval": step,
                "input_series": [{"series": name, "values": values} for name, values in series.items()],
                "promql_expr_test": [{"expr": expr, "eval_time": at, "exp_samples": samples}],
            }
        )
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content))
    done = run("test", "rules", *(folder / name for name in files))
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"


def test_the_rules_are_valid(tmp_path: Path) -> None:
    rule_file = tmp_path / "rules.yaml"
    rule_file.write_text(yaml.safe_dump({"groups": groups(watch())}))
    done = run("check", "rules", rule_file)
    assert done.returncode == 0, done.stderr
    assert f"{len(ALERTS)} rules found" in done.stdout


def test_every_alert_has_a_name_of_its_own_and_a_case() -> None:
    assert len(ALERTS) == len(set(ALERTS))
    assert set(ALERTS) == {alert for alert, _ in every_case()}


def test_every_alert_has_its_severity_and_fires_after_its_time() -> None:
    found: dict[tuple[str, str], set[str]] = {}
    for rule in LISTED:
        found.setdefault((rule["labels"]["severity"], rule["for"]), set()).add(rule["alert"])
    assert found == SETTINGS


def test_every_alert_says_what_to_do_and_names_only_labels_that_it_has() -> None:
    for rule in LISTED:
        assert rule["annotations"]["description"].startswith("Fix: "), rule["alert"]
        named = set(re.findall(r"\$labels\.(\w+)", rule["annotations"]["summary"]))
        if kept := re.search(r"\bby \(([\w, ]+)\)", rule["expr"]):
            assert named <= set(kept[1].split(", ")), rule["alert"]


def test_every_alert_fires_on_what_it_is_for_and_on_nothing_else(tmp_path: Path) -> None:
    tests = [
        Firing(alert, {**case.expected, **series}, case.at, fires, case.step)
        for alert, case in every_case()
        for series, fires in ((case.firing, True), (case.silent, False))
    ]
    passes(tmp_path, *tests)


def test_every_series_of_a_rail_that_an_alert_reads_has_an_alert_on_its_absence() -> None:
    assert set(TWINS) == READ
    for rule in RAIL_RULES:
        if rule.series and rule.alert != "BusbarRailCounterSaturated":
            assert set(re.findall(PREFIX + r"(\w+)", rule.expr)) == set(rule.series)
            # Another node_exporter may give the same series.
            assert not re.findall(PREFIX + r'\w+\b(?!\{job="busbar-rails"\})', rule.expr), rule.alert


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


def test_only_rails_are_counted_where_they_are_named(tmp_path: Path) -> None:
    tests = []
    for alert, (series, good, bad) in COUNTED.items():
        for ports, fires in HCAS.values():
            found = dict(NAMED)
            for (device, port), works in ports.items():
                found |= rail(series, good if works else bad, device, port)
            tests.append(Firing(alert, found, "30m", fires))
    passes(tmp_path, *tests)


def test_all_ports_of_a_node_are_counted_where_its_rails_are_not_named(tmp_path: Path) -> None:
    expected = {name.replace("gpu-1", "gpu-2"): values for name, values in EXPECTED.items()}
    tests = []
    for alert, (series, good, bad) in COUNTED.items():
        named = {**NAMED, **rails(series, good, good), **expected}
        for ports, fires in (((good, bad), True), ((good, bad, good), False), ((bad, bad), True)):
            found = dict(named)
            for number, values in enumerate(ports):
                found |= rail(series, values, f"mlx5_{number}", node="gpu-2")
            tests.append(Firing(alert, found, "30m", fires))
    passes(tmp_path, *tests)


def test_a_node_without_any_series_of_a_rail_is_one_alert_not_one_per_counter(tmp_path: Path) -> None:
    expected = twin("state_id").expected
    tests = [Firing(alert, expected, "30m", series == "state_id") for series, alert in TWINS.items()]
    passes(tmp_path, *tests)


def test_a_counter_that_stuck_at_its_maximum_is_named_because_nothing_else_fires(tmp_path: Path) -> None:
    stuck = {**CASES["BusbarRailFlapped"].expected, **rail("link_downed_total", "255x60")}
    flapped, saturated = ("BusbarRailFlapped", False), ("BusbarRailCounterSaturated", True)
    passes(tmp_path, *(Firing(alert, stuck, "30m", fires) for alert, fires in (flapped, saturated)))


MAXIMA = {
    "link_downed_total": 255, "link_error_recovery_total": 255, "symbol_error_total": 65535,
    "port_errors_received_total": 65535, "port_discards_transmitted_total": 65535,
    "local_link_integrity_errors_total": 15, "excessive_buffer_overrun_errors_total": 15,
}  # fmt: skip


def test_every_counter_that_sticks_is_known_by_its_maximum(tmp_path: Path) -> None:
    [rule] = [rule for rule in RAIL_RULES if rule.alert == "BusbarRailCounterSaturated"]
    assert set(rule.series) == set(MAXIMA)
    tests = [
        Firing(rule.alert, rail(series, f"{value}x60"), "30m", value == maximum)
        for series, maximum in MAXIMA.items()
        for value in (maximum - 1, maximum)
    ]
    passes(tmp_path, *tests)


def test_series_of_roce_are_not_missing_where_the_rails_are_infiniband(tmp_path: Path) -> None:
    assert sorted(ROCE) == ["out_of_buffer_drops_total", "roce_slow_restart_used_total"]
    infiniband = {**twin("state_id").expected, **twin("state_id").silent}
    passes(tmp_path, *(Firing(TWINS[series], infiniband, "30m", False) for series in sorted(ROCE)))


def test_an_xid_is_as_critical_as_preflight_says() -> None:
    listed = {rule.alert: re.findall(r'xid=~"([\d|]+)"', rule.expr) for rule in rules("gpus", watch())}
    numbers = {alert: {int(each) for each in found[0].split("|")} for alert, found in listed.items() if found}
    assert numbers == {
        "BusbarGpuXidCritical": set(FATAL_XIDS),
        "BusbarGpuXidWarning": {63, 92, 94},
        "BusbarGpuXidOfProgram": XIDS_OF_PROGRAMS,
    }


def test_a_node_in_quarantine_from_which_nothing_is_expected_has_no_absent_rails(tmp_path: Path) -> None:
    held = {
        'busbar_node_quarantined{node="gpu-1",reason="cable"}': "1x60",
        **rails("state_id", "1x60", "1x60"),
    }
    passes(tmp_path, *(Firing(each, held, "30m", False) for each in ("BusbarRailDown", TWINS["state_id"])))


def test_counters_that_a_site_does_not_have_have_no_alert_on_their_absence() -> None:
    missing = watch(missing_counters=["node_infiniband_local_ack_timeout_errors_total"])
    names = {rule.alert for rule in rules("rails", missing)}
    assert set(ALERTS) - names - {rule["alert"] for rule in groups(missing)[0]["rules"]} >= {
        TWINS["local_ack_timeout_errors_total"]
    }
    assert "BusbarRailAckTimeouts" in names


def test_without_dcgm_there_are_no_rules_on_gpus() -> None:
    assert [group["name"] for group in groups(watch(dcgm=False))] == ["busbar-cluster", "busbar-rails"]

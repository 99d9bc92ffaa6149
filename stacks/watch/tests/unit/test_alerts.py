"""Every alert fires on series that it is for, and on no others: run by promtool."""

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from busbar.preflight.health_checks import FATAL_XIDS, XIDS_OF_PROGRAMS
from stacks.watch.package.render import PAGE, PREFIX, groups
from stacks.watch.tests.page import FILE, page
from stacks.watch.tests.promtool import run
from stacks.watch.tests.support import EXISTING, watch
from stacks.watch.tests.unit.cases import (
    CASES,
    COUNTERS,
    EXPECTED,
    FLAT,
    KUBERNETES,
    MORE,
    ONE,
    RATE,
    ROCE,
    Series,
    gpu,
    of_all_rails,
    rail,
    rails,
)

# With all rules.
SITE = watch(stack=EXISTING)
LISTED = [rule for group in groups(SITE) for rule in group["rules"] if "alert" in rule]
RECORDED = [rule for group in groups(SITE) for rule in group["rules"] if "record" in rule]
RULES = {rule["alert"]: rule for rule in LISTED}
ON_RAILS = [rule for rule in LISTED if "node_infiniband_" in rule["expr"]]
ALERTS = [rule["alert"] for rule in LISTED]


class Firing(NamedTuple):
    """Whether an alert is firing at a time, or the nodes for which it is."""

    alert: str
    series: Series
    at: str
    fires: bool | Sequence[str]
    step: str = "1m"


def passes(folder: Path, *tests: Firing) -> None:
    """Run by promtool, each on a file with the one alert that it is about, and the recording rules."""
    files: dict[str, dict[str, Any]] = {}
    for alert, series, at, fires, step in tests:
        rule_file = folder / f"{alert}.rules.yaml"
        rule_file.write_text(json.dumps({"groups": [{"name": alert, "rules": [*RECORDED, RULES[alert]]}]}))
        head = {"rule_files": [str(rule_file)], "evaluation_interval": step, "tests": []}
        by, expected = "alertname", [f'{{alertname="{alert}"}}'] if fires else []
        if not isinstance(fires, bool):
            by, expected = "node", [f'{{node="{node}"}}' for node in fires]
        expr = f'count by ({by}) (ALERTS{{alertname="{alert}", alertstate="firing"}}) > bool 0'
        samples = [{"labels": labels, "value": 1} for labels in expected]
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


def test_every_alert_has_a_name_of_its_own_and_a_case() -> None:
    assert len(ALERTS) == len(set(ALERTS))
    assert set(ALERTS) == CASES.keys()


def test_what_is_critical_fires_within_ten_minutes() -> None:
    severities = {rule["alert"]: rule["labels"]["severity"] for rule in LISTED}
    assert {*severities.values()} == {"critical", "warning", "info", "none"}
    after = {rule.get("for", "0m") for rule in LISTED if severities[rule["alert"]] == "critical"}
    assert after <= {"0m", "1m", "5m", "10m"} and severities["BusbarRailDown"] == "critical"


def test_every_alert_says_what_to_do_and_names_only_labels_that_it_has() -> None:
    for rule in LISTED:
        assert rule["annotations"]["description"].startswith("Fix: "), rule["alert"]
        named = set(re.findall(r"\$labels\.(\w+)", rule["annotations"]["summary"]))
        if kept := re.search(r"\bby \(([\w, ]+)\)", rule["expr"]):
            assert named <= set(kept[1].split(", ")), rule["alert"]


def test_every_alert_fires_on_what_it_is_for_and_on_nothing_else(tmp_path: Path) -> None:
    tests = [
        Firing(alert, {**case.expected, **series}, case.at, fires, case.step)
        for alert, case in (*CASES.items(), *MORE)
        for series, fires in ((case.firing, True), (case.silent, alert == "BusbarWatchdog"))
    ]
    passes(tmp_path, *tests)


def test_each_series_of_a_rail_that_an_alert_reads_is_counted_and_of_busbar_rails() -> None:
    counted = {"node_infiniband_" + name for name in (*COUNTERS, *ROCE)}
    of_busbar = PREFIX + r'\w+\b(?=\{job="busbar-rails"\})'
    assert set(re.findall(of_busbar, RULES["BusbarRailsNotRead"]["expr"])) == counted
    for rule in [*ON_RAILS, *RECORDED]:
        if rule.get("alert") != "BusbarRailCounterSaturated":
            read = set(re.findall(PREFIX + r"\w+", rule["expr"]))
            # Another node_exporter may give the same series.
            assert read == set(re.findall(of_busbar, rule["expr"])) <= counted, rule


def elsewhere(series: Series, device: str) -> Series:
    """The same series of HCAs with other names."""
    return {name.replace('device="mlx5_', f'device="{device}_'): values for name, values in series.items()}


def test_an_hca_of_storage_fires_no_alert_on_rails_and_hides_none(tmp_path: Path) -> None:
    tests = []
    for alert in (rule["alert"] for rule in ON_RAILS if rule["alert"] in ON_HARDWARE):
        case = CASES[alert]
        healthy = {**case.expected, **of_all_rails(COUNTERS)}
        faulty, well = elsewhere(case.firing, "storage"), elsewhere(case.silent, "storage")
        tests += [
            Firing(alert, {**healthy, **case.silent, **faulty}, case.at, False),
            Firing(alert, {**case.expected, **case.firing, **well}, case.at, True),
        ]
    passes(tmp_path, *tests)


# What is read of each port: the series, its value on a rail that works and on one that does not.
COUNTED = {"state_id": ("4x60", "1x60"), "rate_bytes_per_second": ("5e10x60", "2.5e10x60")}
GOOD, BAD = True, False
# Which ports work, by device and port, and whether the alert fires.
HCAS = {
    "a rail is dead, two HCAs of storage are not": (
        {("mlx5_0", 1): GOOD, ("mlx5_1", 1): BAD, ("mlx5_4", 1): GOOD, ("mlx5_5", 1): GOOD}, True,
    ),
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


def port_series(faulty: str, works: bool, *place: Any) -> Series:
    """What is read of the port at this place; where it does not work, the series FAULTY is bad."""
    found: dict[str, str] = {}
    for name, (good, bad) in COUNTED.items():
        found |= rail(name, good if works or name != faulty else bad, *place)
    return found


def test_only_rails_are_counted(tmp_path: Path) -> None:
    tests = []
    for series in COUNTED:
        for ports, fires in HCAS.values():
            found = dict(EXPECTED)
            for place, works in ports.items():
                found |= port_series(series, works, *place)
            tests.append(Firing("BusbarRailDown", found, "30m", fires))
    passes(tmp_path, *tests)


def test_a_cable_that_is_pulled_is_one_critical_alert_until_it_is_back(tmp_path: Path) -> None:
    pulled = {
        **EXPECTED,
        **RATE,
        **rails("state_id", "4x60", "4x20 1x5 4x40"),
        **rails("link_downed_total", FLAT, ONE),
    }
    down, flapped = "BusbarRailDown", "BusbarRailFlapped"
    passes(
        tmp_path,
        *(Firing(down, pulled, at, fires) for at, fires in (("24m", True), ("27m", False))),
        *(Firing(flapped, pulled, at, fires) for at, fires in (("24m", False), ("27m", True))),
    )


def test_a_series_that_one_rail_lacks_is_an_alert_of_its_node(tmp_path: Path) -> None:
    """Whichever it is, and also where all are missing, as with one file that cannot be read."""
    tests = []
    for layer, names in (("infiniband", COUNTERS), ("ethernet", (*COUNTERS, *ROCE))):
        expected = {name.replace("infiniband", layer): values for name, values in EXPECTED.items()}
        well = {**expected, **of_all_rails(names)}
        tests += [
            Firing("BusbarRailsNotRead", series, "30m", False)
            for series in (well, {**well, **elsewhere(rails(names[0], "1x60", "1x60"), "storage")})
        ]
        others = {name.replace("gpu-1", "gpu-2"): values for name, values in of_all_rails(names).items()}
        tests.append(Firing("BusbarRailsNotRead", {**expected, **others}, "30m", True))
        for name in names:
            [of_a_rail] = rail(name, "4x60")
            less = {series: values for series, values in well.items() if series != of_a_rail}
            tests.append(Firing("BusbarRailsNotRead", less, "30m", True))
    passes(tmp_path, *tests)


def test_an_xid_is_as_critical_as_preflight_says() -> None:
    listed = {name: re.findall(r'xid=~"([\d|]+)"', rule["expr"]) for name, rule in RULES.items()}
    numbers = {alert: {int(each) for each in found[0].split("|")} for alert, found in listed.items() if found}
    assert numbers == {
        "BusbarGpuXidCritical": set(FATAL_XIDS),
        "BusbarGpuXidWarning": {63, 92, 94},
        "BusbarGpuXidOfProgram": XIDS_OF_PROGRAMS,
    }
    [others] = re.findall(r'xid!~"([\d|]+)"', RULES["BusbarGpuXidOther"]["expr"])
    assert {int(each) for each in others.split("|")} == set().union(*numbers.values())


# The site of one node in quarantine or drained: its rails keep their names, and nothing is expected.
OUT = {name: values for name, values in EXPECTED.items() if name.startswith("busbar_node_rail_info")}
ON_HARDWARE = [
    alert
    for alert, rule in RULES.items()
    if re.search(r"and on \([\w, ]+\) busbar:(node|rail)$", rule["expr"])
] + ["BusbarNodeNotReady"]


# The series of one node by its state. Those of `tainted` and `deleted` are of the last writing: Kubernetes
# has the taint since, or knows the node no more.
KNOWN = {'kube_node_info{node="gpu-1"}': "1x200"}
TAINT = {'kube_node_spec_taint{node="gpu-1",key="busbar/quarantine",effect="NoSchedule"}': "1x200"}
STATES = {
    "quarantined": {**OUT, **KNOWN, 'busbar_node_quarantined{node="gpu-1",reason="cable"}': "1x200"},
    "drained": {**OUT, **KNOWN, 'busbar_node_drained{node="gpu-1",reason="cable"}': "1x200"},
    "tainted": {**EXPECTED, **KNOWN, **TAINT},
    "deleted": EXPECTED,
    "in-service": {**EXPECTED, **KNOWN},
}


def test_only_a_node_in_service_has_alerts_on_its_hardware(tmp_path: Path) -> None:
    """All nodes have the same fault."""
    tests = []
    for alert in ON_HARDWARE:
        case, found = CASES[alert], dict[str, str]()
        for node, state in STATES.items():
            # Kubernetes gives no condition of a node that it knows no more.
            if (alert, node) != ("BusbarNodeNotReady", "deleted"):
                series = {**state, **case.firing}
                found |= {name.replace("gpu-1", node): values for name, values in series.items()}
        # A taint of busbar does not keep an alert on the node itself.
        fires = ["in-service", *(["tainted"] if alert == "BusbarNodeNotReady" else [])]
        tests.append(Firing(alert, found, case.at, fires))
    passes(tmp_path, *tests)


def test_a_source_that_is_not_read_is_one_alert_of_the_site(tmp_path: Path) -> None:
    devices = {'busbar_node_devices_expected{node="gpu-1",pool="h100",resource="nvidia_com_gpu"}': "8x60"}
    expected, gpus = {**EXPECTED, **devices}, gpu("DCGM_FI_DEV_GPU_TEMP", "40x60")
    others = {name.replace("gpu-1", "gpu-2"): values for name, values in {**gpus, **KUBERNETES}.items()}
    passes(
        tmp_path,
        Firing("BusbarNodesUnknown", expected, "30m", True),
        Firing("BusbarDevicesMissing", expected, "30m", False),
        Firing("BusbarDevicesMissing", {**expected, **others}, "30m", True),
        Firing("BusbarGpusUnknown", expected, "30m", True),
        Firing("BusbarGpusMissing", expected, "30m", False),
        Firing("BusbarGpusMissing", {**expected, **others}, "30m", True),
        Firing("BusbarGpuCountersAbsent", expected, "30m", False),
        Firing("BusbarRailsUnknown", expected, "30m", True),
        Firing("BusbarRailsNotRead", expected, "30m", False),
    )


def test_a_dead_man_s_switch_is_made_where_the_prometheus_is_not_ours() -> None:
    for stack, made in ((EXISTING, True), ({"mode": "install"}, False), ({}, False)):
        found = [rule.get("alert") for group in groups(watch(stack=stack)) for rule in group["rules"]]
        assert ("BusbarWatchdog" in found) is made


def test_every_alert_names_its_section_of_the_page_of_alerts() -> None:
    text = FILE.read_text(encoding="utf-8")
    assert text == page(text), "run `make docs`"
    sections = [each.lower() for each in re.findall(r"^### (\w+)$", text, re.MULTILINE)]
    urls = {rule["annotations"]["runbook_url"] for rule in LISTED}
    assert urls == {f"{PAGE}#{section}" for section in sections}


def test_counters_that_a_site_does_not_have_are_not_missing(tmp_path: Path) -> None:
    lacks = [PREFIX + name for name in ("local_ack_timeout_errors_total", "state_id", *ROCE)]
    found = groups(watch(stack=EXISTING, missing_counters=lacks))
    rules = {rule.get("alert"): rule["expr"] for group in found for rule in group["rules"]}
    for name in lacks:
        line = f"and on (node, device, port) {name}{{"
        assert line in RULES["BusbarRailsNotRead"]["expr"] and line not in rules["BusbarRailsNotRead"]
    assert lacks[0] in rules["BusbarRailAckTimeouts"]
    rule_file = tmp_path / "rules.yaml"
    rule_file.write_text(yaml.safe_dump({"groups": found}))
    assert run("check", "rules", rule_file).returncode == 0

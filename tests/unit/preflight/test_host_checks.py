"""One report against its requirements: each row of host_findings.yaml changes a good host."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from busbar.finding import Finding
from busbar.preflight.host_checks import check_host, host_facts
from tests.support.reports import CLOCK, hca, report
from tests.unit.preflight.samples import REQUIRED, a_host

ROWS = yaml.safe_load(Path(__file__).with_name("host_findings.yaml").read_text())
GPU = {"model": "NVIDIA H100 80GB HBM3", "driver": "570.124.06", "persistence_mode": True, "mig": False}
GOOD_PCI = {"MaxPayload": "256", "MaxReadReq": "4096", "RlxdOrd": "+", "ATSCtl": "+"}
NO_HARDWARE: dict[str, Any] = {"gpus": None, "fabric_manager": None, "gdr": None, "hcas": []}
Changes = dict[str, Any]


def findings(case: Changes) -> list[Finding]:
    """The findings on the host of a row."""
    role = case.pop("role", "worker")
    changed = {} if role == "worker" else dict(NO_HARDWARE)
    if "gpu" in case:
        changed["gpus"] = {"status": "ok", "error": "", "list": [GPU | case.pop("gpu")] * 8, "pci": 8}
    if "pci" in case:
        settings = GOOD_PCI | case.pop("pci")
        changed["pci_settings"] = {hca(f"mlx5_{n}")["pci"]: settings for n in range(8)}
    if "port" in case or "ports" in case:
        ports = [hca(f"mlx5_{n}", **case.get("ports", {})) for n in range(8)]
        ports[7] |= case.pop("port", {})
        changed["hcas"] = ports
        case.pop("ports", None)
    required = type(REQUIRED).model_validate(REQUIRED.model_dump() | case.pop("need", {}))
    changed |= case.pop("report", {})
    assert not case, "these keys of the row are unknown"
    return check_host(a_host(role=role), required, report(**changed), clock=CLOCK)


def texts(given: str | list[str]) -> list[str]:
    return [given] if isinstance(given, str) else given


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["case"])
def test_a_host_has_the_finding_of_its_one_fault_with_a_fix(row: Changes) -> None:
    expected: dict[str, list[str]] = {key: texts(row[key]) for key in ("error", "warning") if key in row}
    case = {key: value for key, value in row.items() if key not in ("case", "error", "warning", "fix")}
    found = findings(case)
    assert [each.kind for each in found] == [*expected], [each.what for each in found]
    for finding in found:
        assert finding.host == "worker-1"
        assert all(text in finding.what for text in expected[finding.kind]), finding.what
        assert str(finding.fix) and all(text in str(finding.fix) for text in texts(row.get("fix", [])))


def test_what_is_broken_on_a_worker_in_quarantine_is_a_warning_and_what_concerns_its_system_is_not() -> None:
    broken = report(hcas=[], tmp_is_writable=False)
    found = check_host(a_host(), REQUIRED, broken, clock=CLOCK, in_quarantine=True)
    [error] = [each for each in found if each.kind == "error"]
    assert "/tmp" in error.what
    assert [each.what.endswith(" (in quarantine)") for each in found if each.kind == "warning"] == [True]


@pytest.mark.parametrize(
    ("broken", "says"),
    [
        ({"inforom": "WARNING: infoROM is corrupted at gpu 0000:9D:00.0"}, "at gpu 0000:9D:00.0"),
        ({"empty_libraries": ["/lib/libnvidia-ml.so"]}, "/lib/libnvidia-ml.so of the NVIDIA driver has 0"),
        ({"list": [GPU] * 5 + [GPU | {"persistence_mode": False}] * 3}, "persistence mode is off on 3 GPUs"),
    ],
)
def test_a_fault_of_some_gpus_names_them_or_their_number(broken: Changes, says: str) -> None:
    gpus = {"status": "ok", "error": "", "list": [GPU] * 8, "pci": 8} | broken
    [found] = check_host(a_host(), REQUIRED, report(gpus=gpus), clock=CLOCK)
    assert says in found.what and found.kind == ("warning" if "list" in broken else "error")


def test_the_gpus_of_a_host_whose_driver_comes_as_a_container_are_those_on_its_pci_bus() -> None:
    no_driver = {"status": "missing", "error": "", "list": [], "pci": 8}
    required = REQUIRED.model_copy(update={"driver_on_host": False})
    assert host_facts(required, report(gpus=no_driver))["gpus"] == 8


def test_facts_hold_nothing_that_changes_on_its_own() -> None:
    disks = [{"path": "/var/lib/rancher", "free_bytes": 10**12}]
    later = report(epoch=2e9, disks=disks, hostname="other", machine="bbbbbbbb")
    assert host_facts(REQUIRED, later) == host_facts(REQUIRED, report())


def test_facts_list_the_rails_in_their_natural_order_as_nccl_spells_them() -> None:
    ports = [hca("mlx5_10"), hca("mlx5_1", port=2), hca("mlx5_1")]
    assert host_facts(REQUIRED, report(hcas=ports))["rails"] == ["mlx5_1", "mlx5_1:2", "mlx5_10"]


def test_facts_tell_the_pci_addresses_of_rails_from_those_of_other_hcas() -> None:
    ports = [hca("mlx5_0"), hca("mlx5_1", state="1: DOWN"), hca("mlx5_2", link_layer="Ethernet")]
    facts = host_facts(REQUIRED, report(hcas=ports))
    assert (facts["rail_pci"], facts["other_pci"]) == (["0000:20:00.0"], ["0000:21:00.0", "0000:22:00.0"])


def test_facts_name_the_interfaces_of_the_rails_in_the_order_of_their_pci_addresses() -> None:
    ports = [
        hca("mlx5_0", pci="0000:29:00.0", netdevs=["ens2"]),
        hca("mlx5_1", pci="0000:18:00.0", netdevs=["ens1"]),
        hca("mlx5_2", pci="0000:40:00.0"),
        hca("mlx5_3", link_layer="Ethernet", netdevs=["eth9"]),
    ]
    assert host_facts(REQUIRED, report(hcas=ports))["rail_interfaces"] == ["ens1", "ens2", ""]
    assert "rail_interfaces" not in host_facts(REQUIRED, report(hcas=[hca("mlx5_0")]))

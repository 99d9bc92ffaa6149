"""What a worker's hardware has counted: each case changes one thing of a healthy host."""

from __future__ import annotations

from typing import Any

import pytest

from busbar.preflight.health_checks import check_health
from tests.support.reports import HEALTHY, report
from tests.unit.preflight.samples import REQUIRED


def found(**changes: Any) -> list[tuple[str, str]]:
    """Level and text of every finding."""
    checks = check_health(REQUIRED, report(health=HEALTHY | changes))
    return [(each.kind, each.what) for each in checks if each.fix]


def xid(number: int, gpu: str = "0000:1b:00") -> str:
    return f"NVRM: Xid (PCI:{gpu}): {number}, pid='<unknown>', name=<unknown>"


def test_nothing_is_found_on_a_healthy_worker_and_a_report_without_health_is_none() -> None:
    assert found() == []
    [missing] = check_health(REQUIRED, report(health=None))
    assert (missing.kind, missing.what) == ("error", "report has no health")


@pytest.mark.parametrize("number", [48, 64, 74, 79, 95, 119, 120])
def test_an_xid_after_which_a_gpu_must_be_reset_is_an_error(number: int) -> None:
    [(level, what)] = found(xids=[xid(31), xid(number), xid(number)])
    assert level == "error"
    assert what.startswith(f"Xid {number} of GPU 0000:1b:00 in the kernel's log of this boot: ")


ACTION = "NVRM: Xid (PCI:0000:1b:00): 154, GPU recovery action changed from"
NVLINK = "NVRM: Xid (PCI:0000:1b:00): 149, NETIR_LINK_EVT Fatal XC0 i0 Link 08 (0x004505c6 0x00000000)"


@pytest.mark.parametrize(
    ("changed", "asked"),
    [
        ("0x0 (None) to 0x1 (GPU Reset Required)", "GPU Reset Required"),
        ("0x0 (None) to 0x2 (OS Reboot)", "OS Reboot"),
        ("0x1 (GPU Reset Required) to 0x0 (None)", ""),
    ],
)
def test_a_gpu_that_its_driver_wants_to_be_reset_is_an_error_whatever_the_cause(
    changed: str, asked: str
) -> None:
    what = "Xid {} of GPU 0000:1b:00 in the kernel's log of this boot"
    errors = [("error", f"{what.format(154)}: the driver asks for: {asked}")] if asked else []
    assert found(xids=[NVLINK, f"{ACTION} {changed}"]) == [("warning", what.format(149)), *errors]


def test_an_xid_of_a_user_s_program_is_none_of_the_hardware() -> None:
    assert found(xids=[xid(number) for number in (13, 31, 43, 45)]) == []


def test_any_other_xid_is_a_warning_for_each_gpu() -> None:
    texts = found(xids=[xid(92), xid(94), xid(63, "0000:43:00"), "NVRM: Xid 63 without a GPU"])
    assert [(level, what[:27]) for level, what in texts] == [
        ("warning", "Xid 63 of GPU 0000:43:00 in"),
        ("warning", "Xid 92 of GPU 0000:1b:00 in"),
        ("warning", "Xid 94 of GPU 0000:1b:00 in"),
    ]


def test_uncorrected_ecc_errors_name_the_gpu() -> None:
    text = "00000000:1B:00.0, 0\n00000000:43:00.0, 2\n00000000:52:00.0, [N/A]\n"
    what = "GPU 00000000:43:00.0 has 2 uncorrected ECC errors since its driver was loaded"
    assert found(ecc=text) == [("error", what)]


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ("No, No", []),
        ("0, 0", []),
        ("[N/A], [N/A]", []),
        ("Yes, No", [("warning", "GPU 00000000:1B:00.0 waits for a reset to remap rows of its memory")]),
        ("1, 0", [("warning", "GPU 00000000:1B:00.0 waits for a reset to remap rows of its memory")]),
        ("No, Yes", [("error", "GPU 00000000:1B:00.0 could not remap rows of its memory")]),
        ("1, 1", [("error", "GPU 00000000:1B:00.0 could not remap rows of its memory")]),
    ],
)
def test_memory_that_cannot_be_remapped_is_an_error_and_a_due_reset_is_not(row: str, expected: Any) -> None:
    assert found(remapped_rows=f"00000000:1B:00.0, {row}\n") == expected


def test_errors_of_nvlinks_are_warnings_with_their_gpu() -> None:
    text = "GPU 1: NVIDIA H100\n\t Link 3: Replay Errors: 12\nGPU 5: NVIDIA H100\n\t Link 0: CRC Errors: 1\n"
    assert found(nvlink=text) == [
        ("warning", "NVLink of GPU 1: Link 3: Replay Errors: 12"),
        ("warning", "NVLink of GPU 5: Link 0: CRC Errors: 1"),
    ]


def test_what_could_not_be_read_is_named_once_and_not_where_the_driver_is_no_host_s() -> None:
    [(level, what)] = found(xids=None, nvlink=None)
    assert level == "warning"
    assert what.endswith("this failed: journalctl -k -b; nvidia-smi nvlink -e")
    container = REQUIRED.model_copy(update={"driver_on_host": False})
    assert list(check_health(container, report(health=HEALTHY | {"nvlink": None}))) == []


def test_a_gpu_whose_driver_does_not_answer_has_its_finding_elsewhere() -> None:
    gpus = {"status": "failed", "error": "", "list": [], "pci": 8}
    assert list(check_health(REQUIRED, report(gpus=gpus, health=HEALTHY | {"ecc": None}))) == []


@pytest.mark.parametrize("name", ["0000:1b:00.0", "mlx5_0"])
def test_a_link_with_fewer_lanes_than_the_card_has_is_a_warning(name: str) -> None:
    link = {"name": name, "width": "8", "max_width": "16", "speed": "x", "max_speed": "x"}
    assert found(links=[link]) == [("warning", f"the PCIe link of {name} has 8 lanes of 16")]


def test_a_slower_link_is_a_warning_of_an_hca_and_normal_for_an_idle_gpu() -> None:
    link = {"width": "16", "max_width": "16", "speed": "16.0 GT/s PCIe", "max_speed": "32.0 GT/s PCIe"}
    assert found(links=[{"name": "0000:1b:00.0", **link}]) == []
    assert found(links=[{"name": "mlx5_0", **link}]) == [
        ("warning", "the PCIe link of mlx5_0 runs at 16.0 GT/s PCIe, it can do 32.0 GT/s PCIe")
    ]


def counter(name: str, value: int) -> dict[str, Any]:
    return {"hca": "mlx5_0", "port": 1, "counter": name, "value": value}


# drivers/infiniband/core/sysfs.c, PORT_PMA_ATTR: counters of 4, 8 and 16 bits.
WIDTHS = {
    4: ["local_link_integrity_errors", "excessive_buffer_overrun_errors"],
    8: ["link_downed", "link_error_recovery"],
    16: ["symbol_error", "port_rcv_errors", "port_xmit_discards"],
}


@pytest.mark.parametrize(("bits", "name"), [(bits, name) for bits in WIDTHS for name in WIDTHS[bits]])
def test_a_counter_at_its_maximum_counts_no_more(bits: int, name: str) -> None:
    maximum = 2**bits - 1
    assert found(counters=[counter(name, maximum)]) == [
        ("warning", f"{name} of mlx5_0 port 1 is {maximum}, its maximum: further errors are not counted")
    ]


@pytest.mark.parametrize(
    ("name", "value", "hours", "is_found"),
    [
        ("link_downed", 2, 100, False),
        ("local_link_integrity_errors", 1, 100, True),
        ("excessive_buffer_overrun_errors", 1, 100, True),
        ("symbol_error", 12_000, 100, False),
        ("symbol_error", 12_001, 100, True),
        ("symbol_error", 121, 1, True),
        ("symbol_error", 70_000, 24 * 50, False),
    ],
)
def test_errors_of_a_bad_cable_are_a_warning(name: str, value: int, hours: int, is_found: bool) -> None:
    texts = found(counters=[counter(name, value)], uptime_seconds=hours * 3600)
    expected = [("warning", f"{name} of mlx5_0 port 1 is {value}, {hours} h after the host's start")]
    assert texts == (expected if is_found else [])

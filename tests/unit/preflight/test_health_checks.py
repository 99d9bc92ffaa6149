"""What a worker's hardware has counted: each case changes one thing of a healthy host."""

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


ACTION = "NVRM: Xid (PCI:0000:1b:00): 154, GPU recovery action changed from"
XID = "Xid {} of GPU 0000:1b:00 in the kernel's log of this boot"


@pytest.mark.parametrize(
    ("xids", "expected"),
    [
        *(
            pytest.param(
                [xid(31), xid(number), xid(number)], [("error", XID.format(number))], id=f"Xid {number}"
            )
            for number in (48, 64, 74, 79, 95, 119, 120)
        ),
        pytest.param([xid(number) for number in (13, 31, 43, 45)], [], id="of a program of a user"),
        pytest.param(
            [xid(92), xid(94), xid(63, "0000:43:00"), "NVRM: Xid 63 without a GPU"],
            [
                ("warning", "Xid 63 of GPU 0000:43:00"),
                ("warning", XID.format(92)),
                ("warning", XID.format(94)),
            ],
            id="any other, for each GPU",
        ),
        pytest.param(
            [xid(149), f"{ACTION} 0x0 (None) to 0x1 (GPU Reset Required)"],
            [
                ("warning", XID.format(149)),
                ("error", f"{XID.format(154)}: the driver asks for: GPU Reset Required"),
            ],
            id="the driver asks for a reset, whatever the cause",
        ),
        pytest.param(
            [f"{ACTION} 0x0 (None) to 0x2 (OS Reboot)"],
            [("error", f"{XID.format(154)}: the driver asks for: OS Reboot")],
            id="the driver asks for a reboot",
        ),
        pytest.param([f"{ACTION} 0x1 (GPU Reset Required) to 0x0 (None)"], [], id="the driver asks no more"),
    ],
)
def test_xids_are_judged_by_what_the_gpu_needs(xids: list[str], expected: list[tuple[str, str]]) -> None:
    texts = found(xids=xids)
    assert [level for level, _ in texts] == [level for level, _ in expected]
    assert all(what.startswith(start) for (_, what), (_, start) in zip(texts, expected, strict=True)), texts


def test_nothing_is_found_on_a_healthy_worker_and_a_report_without_health_is_none() -> None:
    assert found() == []
    [missing] = check_health(REQUIRED, report(health=None))
    assert (missing.kind, missing.what) == ("error", "report has no health")


GPU = "00000000:1B:00.0"
PENDING = [("warning", f"GPU {GPU} waits for a reset to remap rows of its memory")]
FAILED = [("error", f"GPU {GPU} could not remap rows of its memory")]
HCA = {"name": "mlx5_0", "width": "16", "max_width": "16", "speed": "16 GT/s", "max_speed": "32 GT/s"}
NARROW = {"width": "8", "max_width": "16", "speed": "x", "max_speed": "x"}


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        (
            {"ecc": f"{GPU}, 0\n00000000:43:00.0, 2\n00000000:52:00.0, [N/A]\n"},
            [("error", "GPU 00000000:43:00.0 has 2 uncorrected ECC errors since its driver was loaded")],
        ),
        *(({"remapped_rows": f"{GPU}, {none}\n"}, []) for none in ("No, No", "0, 0", "[N/A], [N/A]")),
        *(({"remapped_rows": f"{GPU}, {pending}\n"}, PENDING) for pending in ("Yes, No", "1, 0")),
        *(({"remapped_rows": f"{GPU}, {failed}\n"}, FAILED) for failed in ("No, Yes", "1, 1")),
        (
            {"nvlink": "GPU 1: H100\n\t Link 3: Replay Errors: 12\nGPU 5: H100\n\t Link 0: CRC Errors: 1\n"},
            [
                ("warning", "NVLink of GPU 1: Link 3: Replay Errors: 12"),
                ("warning", "NVLink of GPU 5: Link 0: CRC Errors: 1"),
            ],
        ),
        *(
            (
                {"links": [{"name": name, **NARROW}]},
                [("warning", f"the PCIe link of {name} has 8 lanes of 16")],
            )
            for name in ("0000:1b:00.0", "mlx5_0")
        ),
        ({"links": [HCA]}, [("warning", "the PCIe link of mlx5_0 runs at 16 GT/s, it can do 32 GT/s")]),
        # An idle GPU lowers the speed of its link.
        ({"links": [HCA | {"name": "0000:1b:00.0"}]}, []),
    ],
)
def test_what_the_hardware_has_counted_has_its_finding(changes: dict[str, Any], expected: Any) -> None:
    assert found(**changes) == expected


def test_what_could_not_be_read_is_named_once_and_not_where_the_driver_is_no_host_s() -> None:
    [(level, what)] = found(xids=None, nvlink=None)
    assert level == "warning"
    assert what.endswith("this failed: journalctl -k -b; nvidia-smi nvlink -e")
    container = REQUIRED.model_copy(update={"driver_on_host": False})
    assert list(check_health(container, report(health=HEALTHY | {"nvlink": None}))) == []


def test_a_gpu_whose_driver_does_not_answer_has_its_finding_elsewhere() -> None:
    gpus = {"status": "failed", "error": "", "list": [], "pci": 8}
    assert list(check_health(REQUIRED, report(gpus=gpus, health=HEALTHY | {"ecc": None}))) == []


FULL = ", its maximum: further errors are not counted"


@pytest.mark.parametrize(
    ("name", "value", "hours", "says"),
    [
        # drivers/infiniband/core/sysfs.c, PORT_PMA_ATTR: counters of 4, 8 and 16 bits.
        ("local_link_integrity_errors", 15, 100, FULL),
        ("excessive_buffer_overrun_errors", 15, 100, FULL),
        ("link_downed", 255, 100, FULL),
        ("link_error_recovery", 255, 100, FULL),
        ("symbol_error", 65535, 100, FULL),
        ("port_rcv_errors", 65535, 100, FULL),
        ("port_xmit_discards", 65535, 100, FULL),
        ("link_downed", 2, 100, None),
        ("local_link_integrity_errors", 1, 100, ", 100 h after the host's start"),
        ("excessive_buffer_overrun_errors", 1, 100, ", 100 h after the host's start"),
        ("symbol_error", 12_000, 100, None),
        ("symbol_error", 12_001, 100, ", 100 h after the host's start"),
        ("symbol_error", 121, 1, ", 1 h after the host's start"),
        ("symbol_error", 70_000, 24 * 50, None),
    ],
)
def test_a_bad_cable_or_a_full_counter_is_a_warning(
    name: str, value: int, hours: int, says: str | None
) -> None:
    counter = {"hca": "mlx5_0", "port": 1, "counter": name, "value": value}
    expected = [("warning", f"{name} of mlx5_0 port 1 is {value}{says}")] if says else []
    assert found(counters=[counter], uptime_seconds=hours * 3600) == expected

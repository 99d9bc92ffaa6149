"""Checks the error counters of a worker's GPUs, PCIe links and HCA ports.

Counters begin with the host or its driver, so most are only indications: they are warnings, and the
measurement decides. Errors are the ones for which NVIDIA recommends to reset or replace a GPU.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from busbar.finding import Finding, error, warning
from busbar.preflight.report import Health, PcieLink, Report
from busbar.preflight.spec import HostRequirements

XID = re.compile(r"NVRM: Xid \((?:PCI:)?(?P<gpu>[0-9a-fA-F:.]+)\): (?P<number>\d+)")
# Xid 154: what the driver asks for since 570, whatever the cause. The report has the last one of each GPU.
_RECOVERY = re.compile(r"recovery action changed from .* to 0x(?P<code>\w+) \((?P<action>.*)\)")
# docs.nvidia.com/deploy/xid-errors: the GPU has to be reset, or is broken.
FATAL_XIDS = {
    48: "a double bit ECC error",
    64: "rows of memory could not be remapped",
    74: "an NVLink error",
    79: "the GPU fell off the bus",
    95: "an ECC error that could not be contained",
    119: "the GPU's system processor timed out",
    120: "the GPU's system processor failed",
}
# Xids that usually come from a user's program, which has a fault or was ended.
XIDS_OF_PROGRAMS = {13, 31, 43, 45}
# The widths of the standard's counters (linux drivers/infiniband/core/sysfs.c, PORT_PMA_ATTR).
SATURATED = {
    "link_downed": 255,
    "link_error_recovery": 255,
    "symbol_error": 65535,
    "port_rcv_errors": 65535,
    "port_xmit_discards": 65535,
    "local_link_integrity_errors": 15,
    "excessive_buffer_overrun_errors": 15,
}
# NVSentinel's monitor of NICs considers this rate fatal.
SYMBOL_ERRORS_PER_HOUR = 120
NEVER = ("local_link_integrity_errors", "excessive_buffer_overrun_errors")
NOTHING = ("0", "No", "[N/A]", "N/A")


def check_health(required: HostRequirements, report: Report) -> Iterator[Finding]:
    """The findings about a worker's counters."""
    health = report.health
    if health is None:
        yield error("report has no health", "run preflight again: the report is incomplete")
        return
    if required.driver_on_host and report.gpus is not None and report.gpus.status == "ok":
        yield from _unreadable(health)
        yield from _xids(health)
        yield from _memory(health)
        yield from _nvlink(health)
    yield from _links(health)
    yield from _ports(health)


def _unreadable(health: Health) -> Iterator[Finding]:
    commands = {
        "journalctl -k -b": health.xids,
        "nvidia-smi --query-gpu=ecc.errors.uncorrected.volatile.total": health.ecc,
        "nvidia-smi --query-remapped-rows": health.remapped_rows,
        "nvidia-smi nvlink -e": health.nvlink,
    }
    if failed := [command for command, printed in commands.items() if printed is None]:
        yield warning(
            f"errors of GPUs were not read, this failed: {'; '.join(failed)}", "run it by hand on the host"
        )


def _xids(health: Health) -> Iterator[Finding]:
    found = {(int(m["number"]), m["gpu"]): line for line in health.xids or () if (m := XID.search(line))}
    for (number, gpu), line in sorted(found.items()):
        asked = _RECOVERY.search(line)
        if number in XIDS_OF_PROGRAMS or (asked and asked["code"] == "0"):
            continue
        what = f"Xid {number} of GPU {gpu} in the kernel's log of this boot"
        if why := f"the driver asks for: {asked['action']}" if asked else FATAL_XIDS.get(number):
            fix = "reboot the host; if it comes again, have the GPU replaced (journalctl -k -b | grep Xid)"
            yield error(f"{what}: {why}", fix)
        else:
            yield warning(what, "see docs.nvidia.com/deploy/xid-errors for what it means")


def _rows(text: str | None) -> list[list[str]]:
    return [line.split(", ") for line in (text or "").splitlines() if ", " in line]


def _memory(health: Health) -> Iterator[Finding]:
    for gpu, errors in _rows(health.ecc):
        if errors not in NOTHING:
            fix = f"nvidia-smi --gpu-reset -i {gpu}, or reboot; if they come again, have the GPU replaced"
            yield error(f"GPU {gpu} has {errors} uncorrected ECC errors since its driver was loaded", fix)
    for gpu, pending, failure in _rows(health.remapped_rows):
        if failure not in NOTHING:
            yield error(f"GPU {gpu} could not remap rows of its memory", "have the GPU replaced")
        elif pending not in NOTHING:
            what = f"GPU {gpu} waits for a reset to remap rows of its memory"
            yield warning(what, f"nvidia-smi --gpu-reset -i {gpu}, or reboot")


def _nvlink(health: Health) -> Iterator[Finding]:
    gpu = ""
    for line in (health.nvlink or "").splitlines():
        if line.startswith("GPU"):
            gpu = line.partition(":")[0]
        else:
            fix = "nvidia-smi nvlink -e twice: where it grows, reseat the GPU or have it replaced"
            yield warning(f"NVLink of {gpu}: {line.strip()}", fix)


def _links(health: Health) -> Iterator[Finding]:
    for link in health.links:
        if link.width != link.max_width:
            ask = f"lspci -vv -s {link.name}" if _is_gpu(link) else f"mlxlink -d {link.name} --port_type PCIE"
            yield warning(
                f"the PCIe link of {link.name} has {link.width} lanes of {link.max_width}",
                f"reseat the card; a slot that has no more: {ask}",
            )
        elif link.speed != link.max_speed and not _is_gpu(link):  # an idle GPU lowers it
            yield warning(
                f"the PCIe link of {link.name} runs at {link.speed}, it can do {link.max_speed}",
                "reseat the card, and look for a limit in the firmware's settings of the slot",
            )


def _is_gpu(link: PcieLink) -> bool:
    return ":" in link.name


def _ports(health: Health) -> Iterator[Finding]:
    hours = max(health.uptime_seconds / 3600, 1)
    for each in health.counters:
        name = f"{each.counter} of {each.hca} port {each.port}"
        if each.value == SATURATED.get(each.counter):
            fix = f"perfquery -R -C {each.hca} -P {each.port} sets the counters of the port to 0"
            yield warning(f"{name} is {each.value}, its maximum: further errors are not counted", fix)
        elif each.counter in NEVER or (
            each.counter == "symbol_error" and each.value > SYMBOL_ERRORS_PER_HOUR * hours
        ):
            what = f"{name} is {each.value}, {hours:.0f} h after the host's start"
            yield warning(what, "clean or replace the cable and its optics: ibdiagnet, mlxlink -d DEVICE -c")

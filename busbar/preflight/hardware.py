"""A worker's GPUs, HCAs and what GPUDirect RDMA needs, against what its pool must have."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from busbar import versions
from busbar.preflight.rails import choose
from busbar.preflight.report import Report
from busbar.preflight.spec import Need

Check = tuple[Any, str, str]

# DMA-BUF: open kernel modules, CUDA 11.7 (driver 515) and kernel 5.12 (NVIDIA/cloud-native-docs
# gpu-operator/gpu-operator-rdma.rst).
DMA_BUF_KERNEL = (5, 12)
DMA_BUF_DRIVER = (515,)


def judge(need: Need, report: Report) -> Iterator[Check]:
    """The findings about a worker's hardware: level, what, cure."""
    if need.driver_on_host:
        yield from _gpus(need, report)
        yield from _fabric_manager(report)
    else:
        yield from _gpus_without_driver(need, report)
    yield from _rails(need, report)
    if need.transport != "socket":
        yield from _memlock(report)
    elif report.memlock != "unlimited":
        yield "warning", *_memlock_words(report)
    if need.transport == "gpudirect-rdma" and need.driver_on_host:
        yield from _gdr(report)


def _gpus(need: Need, report: Report) -> Iterator[Check]:
    gpus = report.gpus
    if gpus is None:
        yield "error", "was not asked for its GPUs", "Run preflight again: its report is incomplete"
    elif gpus.status == "missing":
        yield (
            "error",
            "has no nvidia-smi",
            "Install the NVIDIA driver; the GPU Operator uses that of the host",
        )
    elif gpus.status == "failed":
        yield (
            "error",
            f"has an nvidia-smi that fails: {gpus.error or 'no answer within 15 s'}",
            "Look at dmesg for NVRM and Xid lines; a reboot loads a driver that was updated",
        )
    else:
        yield from _gpu_list(need, report)


def _gpu_list(need: Need, report: Report) -> Iterator[Check]:
    found = report.gpus.list if report.gpus else ()
    if len(found) != need.gpus:
        yield (
            "error",
            f"shows {len(found)} GPUs ({report.gpus.pci if report.gpus else 0} on the PCI bus), its pool has "
            f"{need.gpus}",
            "Has one fallen off the bus (dmesg | grep -i xid; lspci -d 10de:)? Or correct pools.*.gpus",
        )
    models = sorted({gpu.model for gpu in found})
    if need.gpu_model and any(need.gpu_model.lower() not in model.lower() for model in models):
        yield (
            "error",
            f"has GPUs of the model {', '.join(models)}, its pool has {need.gpu_model}",
            "Move the host to another pool, or correct pools.*.gpu_model",
        )
    elif len(models) > 1:
        yield (
            "error",
            f"mixes GPUs: {', '.join(models)}",
            "NCCL runs at the pace of the slowest: use like GPUs",
        )


def _gpus_without_driver(need: Need, report: Report) -> Iterator[Check]:
    found = report.gpus.pci if report.gpus else 0
    if found != need.gpus:
        yield (
            "error",
            f"has {found} GPUs on the PCI bus, its pool has {need.gpus}",
            "Has one fallen off the bus (dmesg | grep -i xid; lspci -d 10de:)? Or correct pools.*.gpus",
        )


def _fabric_manager(report: Report) -> Iterator[Check]:
    manager = report.fabric_manager
    driver = report.gpus.list[0].driver if report.gpus and report.gpus.list else ""
    if manager is None or not manager.version or not driver:
        return
    if manager.version != driver:
        yield (
            "error",
            f"has Fabric Manager {manager.version} and driver {driver}, which must be the same",
            f"apt-get install nvidia-fabricmanager-{driver.partition('.')[0]}={driver}-1 and restart it",
        )
    elif not manager.active:
        yield (
            "error",
            "does not run its Fabric Manager: without it the GPUs do not reach each other over NVSwitch",
            "systemctl enable --now nvidia-fabricmanager",
        )


def _rails(need: Need, report: Report) -> Iterator[Check]:
    if not report.hcas:
        yield (
            "error",
            "shows no HCA in /sys/class/infiniband",
            "modprobe mlx5_ib, and check that the HCAs are there: lspci -d 15b3:",
        )
        return
    rails = choose(report.hcas, need)
    if len(rails.names) == need.rails:
        return
    what = (
        f"has {len(rails.names)} rails ({', '.join(rails.names) or 'none'}) of {need.link_layer} at "
        f"{need.rate_gbps:g} Gb/s, its pool has {need.rails}"
    )
    if rails.ignored:
        what += "; not rails: " + ", ".join(f"{name} ({why})" for name, why in rails.ignored.items())
    if len(rails.names) > need.rails:
        cure = "Correct pools.*.rails, or name the HCAs that are none in pools.*.ignore_hcas"
    else:
        cure = "Look at their cables and switch (ibstat; ibdiagnet), or correct pools.*.rails and rate_gbps"
    yield "error", what, cure


def _memlock(report: Report) -> Iterator[Check]:
    if report.memlock != "unlimited":
        yield "error", *_memlock_words(report)


def _memlock_words(report: Report) -> tuple[str, str]:
    return (
        f"locks no more than {report.memlock} bytes of memory in a unit with LimitMEMLOCK=infinity",
        "RDMA would fail with ENOMEM: give the container or VM the right to raise limits (CAP_SYS_RESOURCE)",
    )


def _gdr(report: Report) -> Iterator[Check]:
    gdr, gpus = report.gdr, report.gpus
    if gdr is None or gdr.peermem:
        return
    driver = gpus.list[0].driver if gpus and gpus.list else ""
    lacks = []
    if not gdr.open_modules:
        lacks.append("the open kernel modules of the driver")
    if (versions.number(report.kernel) or ()) < DMA_BUF_KERNEL:
        lacks.append(f"a kernel of 5.12 or later (it runs {report.kernel})")
    if (versions.number(driver) or ()) < DMA_BUF_DRIVER:
        lacks.append(f"a driver of 515 or later (it has {driver or 'none'})")
    if lacks:
        yield (
            "error",
            "can do no GPUDirect RDMA: nvidia-peermem is not loaded, and for DMA-BUF it lacks "
            + "; ".join(lacks),
            "modprobe nvidia-peermem and put it into /etc/modules-load.d/, or install what DMA-BUF lacks",
        )

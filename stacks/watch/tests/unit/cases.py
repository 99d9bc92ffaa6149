"""For every alert series that make it fire and series that do not, in promtool's notation, by the minute."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

Series = Mapping[str, str]

# A node with two rails at 400 Gb/s and two GPUs.
EXPECTED: Series = {
    'busbar_node_rails_expected{node="gpu-1",pool="h100",link_layer="infiniband"}': "2x200",
    'busbar_node_rail_rate_bytes_per_second{node="gpu-1",pool="h100"}': "5e10x200",
    'busbar_node_gpus_expected{node="gpu-1",pool="h100"}': "2x200",
    **{
        f'busbar_node_rail_info{{node="gpu-1",pool="h100",device="{device}",port="1"}}': "1x200"
        for device in ("mlx5_0", "mlx5_1")
    },
}


@dataclass(frozen=True)
class Case:
    """`at`: when the alert must fire, or must not. `expected`: series in both. `step` of values."""

    firing: Series
    silent: Series
    at: str = "30m"
    expected: Series = field(default_factory=lambda: EXPECTED)
    step: str = "1m"


def rail(name: str, values: str, device: str = "mlx5_0", port: int = 1, node: str = "gpu-1") -> Series:
    """A series of one port, which is a rail unless the test says otherwise."""
    labels = f'job="busbar-rails",node="{node}",device="{device}",port="{port}"'
    return {f"node_infiniband_{name}{{{labels}}}": values}


def rails(name: str, first: str, second: str) -> Series:
    return {**rail(name, first), **rail(name, second, "mlx5_1")}


def gpu(name: str, values: str, labels: str = "", number: int = 0) -> Series:
    """A series of one GPU of gpu-1."""
    return {f'{name}{{node="gpu-1",gpu="{number}"{labels}}}': values}


def xid(number: int, values: str) -> Series:
    return gpu("DCGM_EXP_XID_ERRORS_COUNT", values, f',xid="{number}",window_size_in_ms="300000"')


def health(watch: str, code: str, values: str) -> Series:
    return gpu("DCGM_EXP_GPU_HEALTH_STATUS", values, f',health_watch="{watch}",health_error_code="{code}"')


def busy(util: str, watts: str, number: int = 0, pod: str = "train-1") -> Series:
    """Utilization, power and power limit of a GPU that a pod holds."""
    labels = f',exported_namespace="jobs",exported_pod="{pod}"' if pod else ""
    return {
        **gpu("DCGM_FI_DEV_GPU_UTIL", util, labels, number),
        **gpu("DCGM_FI_DEV_POWER_USAGE", watts, labels, number),
        **gpu("DCGM_FI_DEV_ENFORCED_POWER_LIMIT", "700x60", labels, number),
    }


def sxid(kind: str, values: str) -> Series:
    return {f'DCGM_FI_DEV_NVSWITCH_{kind}_ERRORS{{node="gpu-1",nvswitch="2"}}': values}


def counter(name: str, firing: str, silent: str, at: str = "30m") -> Case:
    return Case(rail(name, firing), rail(name, silent), at)


def of_gpu(name: str, firing: str, silent: str, at: str = "30m") -> Case:
    """A series of a GPU, by its name after DCGM_FI_DEV_."""
    return Case(gpu(f"DCGM_FI_DEV_{name}", firing), gpu(f"DCGM_FI_DEV_{name}", silent), at)


def ready(values: str, node: str = "gpu-1") -> Series:
    return {f'kube_node_status_condition{{node="{node}",condition="Ready",status="true"}}': values}


def of_all_rails(names: Sequence[str]) -> Series:
    """Each of these series, of both rails of gpu-1."""
    return {series: values for name in names for series, values in rails(name, "4x60", "4x60").items()}


# The series that rules read of every rail, whatever its link layer is.
COUNTERS = (
    "state_id", "rate_bytes_per_second", "link_downed_total",
    "link_error_recovery_total", "symbol_error_total", "port_errors_received_total",
    "port_receive_remote_physical_errors_total", "local_link_integrity_errors_total",
    "excessive_buffer_overrun_errors_total",
    "port_discards_transmitted_total", "local_ack_timeout_errors_total",
    "rnr_nak_retry_packets_received_total", "out_of_sequence_packets_received_total",
    "packet_sequence_errors_total",
)  # fmt: skip
ROCE = ("roce_slow_restart_used_total", "out_of_buffer_drops_total")
# kube-state-metrics is read.
KUBERNETES: Series = {
    'kube_node_status_allocatable{node="gpu-1",resource="cpu",unit="core"}': "64x200",
    'kube_node_status_condition{node="gpu-1",condition="Ready",status="true"}': "1x200",
}
WRITTEN = "busbar_metrics_written_timestamp_seconds"
FRACTION = {"busbar_gpu_hung_power_fraction": "0.3x60"}
LAST_RUN = 'busbar_nccl_last_run_timestamp_seconds{pool="h100"}'
RATE = rails("rate_bytes_per_second", "5e10x60", "5e10x60")
FLAT, ONE = "7x60", "7x20 8x40"
# A reload of the driver sets it to 0.
RESET = "900000x20 0x40"

CASES: Mapping[str, Case] = {
    "BusbarRailDown": Case(
        {**RATE, **rails("state_id", "4x60", "4x20 1x40")}, {**RATE, **rails("state_id", "4x60", "4x60")}
    ),
    "BusbarRailFlapped": counter("link_downed_total", ONE, RESET, "25m"),
    "BusbarRailRecovering": counter("link_error_recovery_total", "0+6x60", "0+4x60"),
    "BusbarRailSymbolErrors": counter("symbol_error_total", "0+3x80", "0+1x80", "70m"),
    "BusbarRailReceiveErrors": counter("port_errors_received_total", "0+660x60", "0+540x60"),
    "BusbarRailRemoteErrors": counter("port_receive_remote_physical_errors_total", "0+1x60", ONE),
    "BusbarRailIntegrityErrors": counter("local_link_integrity_errors_total", "0x20 1x40", "1x60", "25m"),
    "BusbarRailOverrun": counter("excessive_buffer_overrun_errors_total", "0x20 1x40", "1x60", "25m"),
    "BusbarRailDiscards": counter("port_discards_transmitted_total", "0+6600x60", "0+5400x60"),
    "BusbarRailAckTimeouts": counter("local_ack_timeout_errors_total", "0+66x60", "0+54x60"),
    "BusbarRailReceiverNotReady": counter("rnr_nak_retry_packets_received_total", ONE, FLAT, "25m"),
    "BusbarRailPacketsLost": counter("out_of_sequence_packets_received_total", "0+66x60", "0+54x60"),
    "BusbarRailSlowRestarts": counter("roce_slow_restart_used_total", "0+660x60", "0+540x60"),
    "BusbarRailOutOfBuffer": counter("out_of_buffer_drops_total", "0+66x60", "0+54x60"),
    "BusbarRailCounterSaturated": counter("link_downed_total", "255x60", "250+5x60"),
    "BusbarRailsNotRead": Case(of_all_rails(COUNTERS[:-1]), of_all_rails(COUNTERS)),
    "BusbarRailsUnknown": Case({}, rail("state_id", "1x60")),
    "BusbarGpusUnknown": Case({}, gpu("DCGM_FI_DEV_GPU_TEMP", "40x60")),
    "BusbarGpusMissing": Case(
        gpu("DCGM_FI_DEV_GPU_TEMP", "40x60"),
        {**gpu("DCGM_FI_DEV_GPU_TEMP", "40x60"), **gpu("DCGM_FI_DEV_GPU_TEMP", "40x60", number=1)},
    ),
    "BusbarGpuCountersAbsent": Case(
        gpu("DCGM_FI_DEV_GPU_TEMP", "40x60"),
        {**gpu("DCGM_FI_DEV_GPU_TEMP", "40x60"), **gpu("DCGM_FI_DEV_ECC_DBE_VOL_TOTAL", "0x60")},
    ),
    "BusbarGpuXidCritical": Case(xid(79, "0x25 1x40"), xid(31, "1x60")),
    "BusbarGpuXidWarning": Case(xid(94, "0x25 1x40"), xid(79, "1x60")),
    "BusbarGpuXidOfProgram": Case(xid(31, "0x25 1x40"), xid(31, "0x60")),
    "BusbarGpuXidOther": Case(
        xid(154, "0x25 1x40"), {**xid(79, "1x60"), **xid(31, "1x60"), **xid(94, "1x60")}
    ),
    "BusbarGpuRecoveryAction": of_gpu("GET_GPU_RECOVERY_ACTION", "0x20 2x40", "0x60"),
    "BusbarGpuNvlinkInactive": Case(
        health("NVLINK", "DCGM_FR_NVLINK_DOWN", "20x60"),
        {**health("NVLINK", "DCGM_FR_OK", "0x60"), **health("PCIE", "DCGM_FR_PCI_REPLAY_RATE", "10x60")},
    ),
    "BusbarGpuFabricManager": Case(
        gpu("DCGM_FI_DEV_FABRIC_MANAGER_STATUS", "3x20 4x40"),
        {
            **gpu("DCGM_FI_DEV_FABRIC_MANAGER_STATUS", "3x60"),
            **gpu("DCGM_FI_DEV_FABRIC_MANAGER_STATUS", "0x60", number=1),
        },
    ),
    "BusbarNvswitchFatal": Case(sxid("FATAL", "20034x60"), sxid("NON_FATAL", "12028x60")),
    "BusbarNvswitchError": Case(sxid("NON_FATAL", "12028x60"), sxid("FATAL", "20034x60")),
    # 6 s of a minute are 10 %, in nanoseconds; the limit is 1 %.
    "BusbarGpuPowerBrake": of_gpu(
        "CLOCKS_EVENT_REASON_HW_POWER_BRAKE_SLOWDOWN_NS", "0+6000000000x60", "0+540000000x60"
    ),
    # One of two busy GPUs of a pod draws less than 30 % of its limit. A GPU without a pod is not counted, nor
    # one whose utilization was below 100 % eight minutes ago.
    "BusbarGpuHung": Case(
        {**FRACTION, **busy("100x60", "180x60"), **busy("100x60", "650x60", number=1)},
        {
            **FRACTION,
            **busy("100x60", "650x60"),
            **busy("100x60", "180x60", number=1, pod=""),
            **busy("100x20 97x1 100x39", "180x60", number=2),
        },
    ),
    "BusbarGpuRowRemapFailed": of_gpu("ROW_REMAP_FAILURE", "1x60", "0x60"),
    "BusbarGpuRowsRemapped": of_gpu("UNCORRECTABLE_REMAPPED_ROWS", ONE, FLAT),
    "BusbarGpuDoubleBitErrors": of_gpu("ECC_DBE_VOL_TOTAL", ONE, RESET),
    "BusbarGpuNvlinkReplays": of_gpu("NVLINK_REPLAY_ERROR_COUNT_TOTAL", "0+1x60", ONE),
    "BusbarGpuNvlinkRecovered": of_gpu("NVLINK_RECOVERY_ERROR_COUNT_TOTAL", ONE, FLAT, "25m"),
    "BusbarGpuPcieReplays": of_gpu("PCIE_REPLAY_COUNTER", "0+66x60", "0+54x60"),
    "BusbarGpuHot": of_gpu("THERMAL_VIOLATION", "0+660000000x60", "0+540000000x60"),
    "BusbarMetricsAbsent": Case({}, {WRITTEN: "0x60"}, expected={}),
    "BusbarMetricsOld": Case(
        {WRITTEN: "0x60", "busbar_nccl_max_age_seconds": "600x60"},
        {WRITTEN: "0x60", "busbar_nccl_max_age_seconds": "3600x60"},
    ),
    "BusbarFabricNotPassed": Case(
        {'busbar_nccl_passed{pool="h100"}': "0x60"}, {'busbar_nccl_passed{pool="h100"}': "1x60"}
    ),
    # The clock of a test starts at 0.
    "BusbarMeasurementOld": Case(
        {LAST_RUN: "0x60", "busbar_nccl_max_age_seconds": "600x60"},
        {LAST_RUN: "0x60", "busbar_nccl_max_age_seconds": "3600x60"},
    ),
    "BusbarDevicesMissing": Case(
        {
            'busbar_node_devices_expected{node="gpu-1",pool="h100",resource="nvidia_com_hostdev"}': "8x60",
            'kube_node_status_allocatable{node="gpu-1",resource="nvidia_com_hostdev",unit="integer"}': "7x60",
        },
        {
            'busbar_node_devices_expected{node="gpu-1",pool="h100",resource="nvidia_com_hostdev"}': "8x60",
            'kube_node_status_allocatable{node="gpu-1",resource="nvidia_com_hostdev",unit="integer"}': "8x60",
        },
    ),
    "BusbarNodesUnknown": Case({}, KUBERNETES),
    "BusbarNodeNotReady": Case(ready("1x20 0x40"), ready("1x60")),
    "BusbarWatchdog": Case({}, {}),
    "BusbarNodeCondition": Case(
        {'kube_node_status_condition{node="gpu-1",condition="BusbarGPU",status="true"}': "1x60"},
        {
            'kube_node_status_condition{node="gpu-1",condition="BusbarGPU",status="false"}': "1x60",
            'kube_node_status_condition{node="gpu-1",condition="Ready",status="true"}': "1x60",
        },
    ),
    "BusbarNodeQuarantined": Case(
        {'busbar_node_quarantined{node="gpu-1",reason="cable"}': "1x200"},
        {'busbar_node_quarantined{node="gpu-1",reason="cable"}': "_x100 1x100"},
        at="190h",
        step="1h",
    ),
}  # fmt: skip

# The values at which counters of a port stay.
MAXIMA = {
    "link_downed_total": 255, "link_error_recovery_total": 255, "symbol_error_total": 65535,
    "port_errors_received_total": 65535, "port_discards_transmitted_total": 65535,
    "local_link_integrity_errors_total": 15, "excessive_buffer_overrun_errors_total": 15,
}  # fmt: skip
DRAINED = {'busbar_node_drained{node="gpu-1",reason="cable"}': "1x200"}
# More cases of alerts that fire on either of several series. Series that were written a month ago are old
# where no age is configured.
MORE: Sequence[tuple[str, Case]] = (
    ("BusbarGpuRecoveryAction", of_gpu("GPU_RECOVERY_ACTION", "2x60", "0x60")),
    ("BusbarRailPacketsLost", counter("packet_sequence_errors_total", "0+66x60", "0+54x60")),
    ("BusbarNodeQuarantined", Case(DRAINED, {}, at="190h", expected={}, step="1h")),
    ("BusbarMetricsOld", Case({WRITTEN: "0x800"}, {WRITTEN: "7200x800"}, "721h", {}, "1h")),
    *(
        ("BusbarRailCounterSaturated", counter(name, f"{most}x60", f"{most - 1}x60"))
        for name, most in MAXIMA.items()
    ),
)

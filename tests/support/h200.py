"""nvidia-smi as it printed on real hardware, and a program that answers with it.

One NVIDIA H200 (SXM), passed through to a VM: driver 580.159.04 with open kernel modules, CUDA 13.0, Ubuntu
24.04, no HCA, no NVSwitch. Serial number and UUID are replaced; of `-q` it is what busbar reads.
"""

from collections.abc import Mapping
from pathlib import Path
from shlex import quote

from tests.support.bash import programs

_REASONS = "clocks_throttle_reasons.active"
SAMPLE = (
    "--format=csv,noheader,nounits "
    f"--query-gpu=pci.bus_id,ecc.errors.uncorrected.volatile.total,{_REASONS},temperature.gpu,clocks.sm"
)
# Every question of host/ and stacks/*/host, with the answer of an idle GPU. Without arguments only
# the exit status is read.
NVIDIA_SMI = {
    "--query-gpu=name,driver_version,persistence_mode,mig.mode.current --format=csv,noheader": (
        "NVIDIA H200, 580.159.04, Enabled, Disabled\n"
    ),
    "--query-gpu=pci.bus_id,ecc.errors.uncorrected.volatile.total --format=csv,noheader,nounits": (
        "00000000:00:06.0, 0\n"
    ),
    "--query-remapped-rows=gpu_bus_id,remapped_rows.pending,remapped_rows.failure --format=csv,noheader": (
        "00000000:00:06.0, No, No\n"
    ),
    "--query-gpu=uuid,serial,vbios_version,ecc.mode.current --format=csv,noheader": (
        "GPU-b05ba200-0000-4000-8000-000000000001, 1650000000001, 96.00.A5.00.1A, Enabled\n"
    ),
    "nvlink -e": "",
    "nvlink -s": "",
    "-L": "GPU 0: NVIDIA H200 (UUID: GPU-b05ba200-0000-4000-8000-000000000001)\n",
    "--version": """\
NVIDIA-SMI version  : 580.159.04
NVML version        : 580.159
DRIVER version      : 580.159.04
CUDA Version        : 13.0
""",
    "-q": """
==============NVSMI LOG==============

Driver Version                                         : 580.159.04
CUDA Version                                           : 13.0

Attached GPUs                                          : 1
GPU 00000000:00:06.0
    Product Name                                       : NVIDIA H200
    Fabric
        State                                          : N/A
        Status                                         : N/A
""",
    f"--query-gpu=pci.bus_id,{_REASONS} --format=csv,noheader": "00000000:00:06.0, 0x0000000000000001\n",
    SAMPLE: "00000000:00:06.0, 0, 0x0000000000000001, 32, 345\n",
}
# At the power limit (688 W of 700), under a matrix product.
UNDER_LOAD = {**NVIDIA_SMI, SAMPLE: "00000000:00:06.0, 0, 0x0000000000000004, 55, 1515\n"}


def install(folder: Path, answers: Mapping[str, str] = NVIDIA_SMI) -> str:
    """Write the program into a new folder, and return the bash that puts it on PATH.

    It refuses a question that has no recorded answer.
    """
    cases = "".join(f"  {quote(asked)}) printf %s {quote(text)} ;;\n" for asked, text in answers.items())
    programs(folder, {"nvidia-smi": f'case "$*" in\n{cases}  "") ;;\n  *) exit 2 ;;\nesac'})
    return f"PATH={folder}:$PATH; "

"""What a made log consists of, as cases/*.yaml states it. Unknown keys are errors.

A case names the real shape that it stands for, what is printed, and by hand what must be read and judged.
"""

import re
from functools import cache
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, field_validator

CASES = Path(__file__).parent / "cases"
UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30}

Layout = Literal["2.0", "2.10", "2.13", "2.17.8"]


class Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Hosts(Model):
    """Who takes part. `bus` is how the device list writes a GPU's address."""

    names: list[str] = ["worker-0", "worker-1"]
    gpus: int = 8
    model: str = "NVIDIA H100 80GB HBM3"
    bus: Literal["pci", "hex"] = "pci"
    pid: int = 40

    @property
    def ranks(self) -> int:
        return len(self.names) * self.gpus


class Proof(Model):
    """A line as it is, and the one fact that it states to a reader of the whole log."""

    text: str
    test_failure: str | None = None
    topology_file: str | None = None
    version: str | None = None
    warning: str | None = None
    network: str | None = None
    program: str | None = Field(default=None, description="the program that a shell line starts")


class Program(Model):
    """One run of an nccl-tests program: arguments, speed, and which parts of its output are in the log.

    `busbw` (GB/s) is what very large messages approach; a message takes `latency_us` longer. `ranks` is what
    the program computes busbw with, where the device list does not show all.
    """

    name: str = "all_reduce"
    layout: Layout = "2.13"
    version: str | None = None
    announced: str | None = None
    banner: Literal["current", "short", "fork", "none"] = "current"
    gpus_a_process: int = 1
    on: list[int] | None = Field(default=None, description="positions of its hosts; None: all")
    sizes: tuple[int, int] = (2**29, 2**33)
    step: int = 2
    step_by: Literal["factor", "bytes"] = "factor"
    type: Literal["float", "double", "bfloat16"] = "float"
    ranks: int | None = None
    busbw: float = 390.0
    algbw: float | None = None
    scaled: bool = Field(default=False, description="nccl-tests 2.0.0: algbw is printed as busbw")
    latency_us: float = 20.0
    iterations: int = 20
    warmup: int = 5
    in_place: float = Field(default=0.998, description="time of the in-place half, as a multiple")
    compared: Literal["yes", "no"] = "yes"
    wrong_share: float = Field(default=0.0, description="part of the elements that are wrong")
    wrong: str | None = Field(default=None, description="the column as it stands; the summary says OK")
    error: float = 5e-07
    reduced_max: int | None = None
    listed: Literal["all", "none", "last", "ends"] = "all"
    header: bool = True
    rows: list[int] | None = Field(default=None, description="positions of the rows shown; None: all")
    placeholders: bool = False
    cut_row: int | None = Field(default=None, description="position of the row that a message interrupts")
    orphan: bool = Field(default=False, description="a row's numbers stand alone before the first row")
    summary: Literal["both", "average", "bounds", "none"] = "both"
    average: str | None = Field(default=None, description="printed in place of the true one")
    concluded: bool = False
    before: list[str | Proof] = []
    listing: list[str | Proof] = Field(default=[], description="lines behind the device list")
    inside: list[str | Proof] = Field(default=[], description="lines between the header and the rows")
    unknown: bool = Field(default=False, description="no reader can tell the collective")

    @field_validator("sizes", "reduced_max", "step", mode="before")
    @classmethod
    def _in_bytes(cls, value: Any) -> Any:
        if isinstance(value, list | tuple):
            return tuple(in_bytes(v) for v in value)
        return value if value is None else in_bytes(value)


class Nccl(Model):
    """What NCCL itself prints. Without `on`, `says` is printed by the first process of each host."""

    version: str | None = None
    versions: Literal["bare", "process"] = "bare"
    network: str | None = None
    net: str | None = Field(default=None, description="name in `via NET/<name>/<device>`")
    devices: int = 8
    gdr: bool = True
    proxy: bool = False
    old_edges: bool = Field(default=False, description="`Channel 00 :` in place of `Channel 00/0 :`")
    local: str | None = Field(default=None, description="P2P/CUMEM, SHM: what joins GPUs of a host")
    hcas: list[str] = []
    topology_file: str | None = None
    plugin: str | None = None
    plugin_path: str | None = None
    communicator: bool = False
    mnnvl: bool = False
    destroyed: bool = False
    says: list[str] = []
    on: list[int] | None = Field(default=None, description="positions of the hosts that print")
    late: bool = Field(default=False, description="behind the header of the table, not before")


class Judged(Model):
    """An expectation and what must come of it; gates that are not named passed or were not required."""

    want: dict[str, Any]
    verdict: Literal["pass", "fail", "unknown"]
    fail: list[str] = []
    unknown: list[str] = []
    diagnoses: list[str] = []
    transport: str
    ranks: int | None = None
    nodes: int | None = None


class Case(Model):
    """One made log."""

    name: str
    shape: str
    kind: Literal["full", "excerpt", "failed", "template"] = "full"
    usable: bool = True
    launcher: list[str] = []
    hosts: Hosts = Hosts()
    before: list[str | Proof] = []
    nccl: Nccl | None = None
    programs: list[Program] = [Program()]
    mixed: bool = Field(default=False, description="the programs write at the same time, line by line")
    after: list[str | Proof] = []
    judged: list[Judged] = []


def in_bytes(value: Any) -> int:
    """2M -> 2097152; plain numbers are bytes."""
    match = re.fullmatch(r"(\d+)([KMG]?)", str(value))
    if match is None:
        raise ValueError(f"{value!r} is not a size such as 512, 64K, 2M or 8G")
    return int(match[1]) * UNITS[match[2]]


@cache
def cases() -> dict[str, Case]:
    """All cases by name, in file order. Raises ValueError for a name that is there twice."""
    found: dict[str, Case] = {}
    for file in sorted(CASES.glob("*.yaml")):
        for entry in yaml.safe_load(file.read_text()):
            case = Case(**entry)
            if case.name in found:
                raise ValueError(f"{file.name}: case {case.name} is there twice")
            found[case.name] = case
    return found

"""The expectation of a run: its ranks, transport and bandwidths. Built from plain values."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field, field_validator, model_validator

from busbar.judge.nccl.expected import profiles
from busbar.judge.nccl.expected.bounds import Bounds, bounds
from busbar.judge.nccl.expected.profiles import Algorithm, Fabric, Transport
from busbar.judge.nccl.expected.system import BOARD_GPUS, NVLINK, System, gpu_name
from busbar.judge.nccl.units import gbps
from busbar.models import StrictModel

FROM_PROFILE = (
    "gpu", "gpus_per_node", "rails", "rate_gbps", "transport", "algorithm", "nvlink_gbps", "nodes_per_domain",
    "topology_file", "require_plugin", "min_nccl", "net_devices", "networks", "fabric",
)  # fmt: skip


class Expectation(StrictModel):
    """The expectation against which a log is judged. Missing values come from `profile`. A value in neither
    is unknown, and a gate that needs it does not pass.

    Rates in Gb/s per rail, bandwidths in GB/s (1e9 B/s), sizes in bytes. With `expected_busbw_gbps` the first
    collective's floor is (1 - tolerance) x that; `expected_by_collective` does it for others.
    """

    profile: str | None = None
    nodes: int | None = Field(default=None, ge=1)
    gpus_per_node: int | None = Field(default=None, ge=1)
    rails: int | None = Field(default=None, ge=0)
    rate_gbps: float | None = Field(default=None, ge=0)
    net_devices: int | None = Field(default=None, ge=0, description="per host, where NCCL merges rails")
    gpu: str | None = None
    nvlink_gbps: float | None = Field(default=None, ge=0)
    nodes_per_domain: int = Field(default=1, ge=1)
    transport: Transport | None = None
    networks: list[str] = Field(default=[], description="allowed in `via NET/<name>`; empty: by kind")
    fabric: Fabric | None = Field(default=None, description="link layer of the HCAs that carry data")
    algorithm: Algorithm = "auto"
    collectives: list[str] = Field(default=[], description="first is the headline; empty: what is there")
    min_bytes: int | None = Field(default=None, ge=0)
    max_bytes: int | None = Field(default=None, ge=1)
    step_factor: int | None = Field(default=None, ge=2)
    expected_busbw_gbps: float | None = Field(default=None, gt=0)
    expected_by_collective: dict[str, float] = Field(default={})
    tolerance: float = Field(default=0.1, ge=0, lt=1)
    topology_file: str | None = None
    require_plugin: str | None = None
    hcas: list[str] = Field(default=[])
    min_nccl: str | None = None
    # parts of lines that may be there although no rule knows them
    accept_warnings: list[Annotated[str, Field(min_length=8)]] = Field(default=[])
    hosts: list[str] = Field(default=[], description="worker names that must be in the device list")

    @model_validator(mode="before")
    @classmethod
    def _fill_from_profile(cls, data: Any) -> Any:
        if not isinstance(data, dict) or not isinstance(data.get("profile"), str) or not data["profile"]:
            return data
        profile = profiles.load(data["profile"])
        filled = dict(data)
        for name in FROM_PROFILE:
            if filled.get(name) in (None, []):
                filled[name] = getattr(profile, name)
        return filled

    @field_validator("gpu")
    @classmethod
    def _model_only(cls, gpu: str | None) -> str | None:
        """Shorten H100-SXM5-80GB to H100, the name used in system.py and published.yaml."""
        return gpu_name(gpu) if gpu else gpu

    def with_nodes(self, nodes: int, gpus_per_node: int, gpu: str | None = None) -> Expectation:
        """The expectation with the number of nodes and the GPUs that the device list of the log shows.

        `gpu` is only used for hosts with 8 GPUs, which NVLink then joins.
        """
        known = self.gpu or (gpu if gpus_per_node == BOARD_GPUS else None)
        shape = {"nodes": self.nodes or nodes, "gpus_per_node": self.gpus_per_node or gpus_per_node}
        return self.model_copy(update={**shape, "gpu": known})

    @property
    def system(self) -> System | None:
        """The system, or None where nodes or GPUs per node are not known."""
        if self.nodes is None or self.gpus_per_node is None:
            return None
        gpu = self.gpu or ""
        link = self.nvlink_gbps if self.nvlink_gbps is not None else NVLINK.get(gpu, 0.0)
        rails, rate = self.rails or 0, self.rate_gbps or 0.0
        return System(gpu, self.nodes, self.gpus_per_node, rails, rate, link, self.nodes_per_domain)

    def given(self, collective: str) -> float | None:
        """The value that the user expects for COLLECTIVE, if any."""
        if collective in self.expected_by_collective:
            return self.expected_by_collective[collective]
        headline = not self.collectives or self.collectives[0] == collective
        return self.expected_busbw_gbps if headline else None

    def bounds(self, collective: str) -> Bounds:
        """Expected value, floor, ceiling and reasoning for COLLECTIVE."""
        system = self.system
        given = self.given(collective)
        if system is None:
            computed = Bounds(None, None, None, 0, ("nodes or GPUs per node are not known",))
        elif self.transport == "socket" and system.domains > 1:
            why = "TCP between nodes: no line rate of InfiniBand rails applies"
            computed = Bounds(None, None, None, 0, (why,))
        else:
            computed = bounds(system, collective, self.algorithm, self.tolerance)
        if given is None:
            return computed
        floor = (1 - self.tolerance) * given
        why = f"expected {gbps(given)}, configured; floor {1 - self.tolerance:g} x = {gbps(floor)}"
        ceiling = computed.ceiling if computed.ceiling is None or computed.ceiling >= given else None
        return Bounds(given, floor, ceiling, 0, (*computed.reasoning[:1], why))

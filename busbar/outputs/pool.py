"""What the stack exports of one pool's verdict: the part that is read often.

`summarize` is what `busbar nccl collect` prints, and that is all of a measurement that the engine keeps in
its state. It outlives the busbar that measured. The whole verdict (every check with its evidence, both
halves of every row) stays in verdict.json and in the cluster.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, Literal

from pydantic import AwareDatetime, Field, FiniteFloat, ValidationError

from busbar import __version__
from busbar.models import OutputModel
from busbar.outputs.values import number, problems

Curve = tuple[tuple[int, float], ...]
"""(message size in bytes, busbw in GB/s), the smallest size first."""

FORMAT = 3
"""The form of what is printed. Raised when a field changes; the former one must still be read."""

DIGITS = 4  # decimals of an exported number


class PoolResult(OutputModel):
    """The result of one pool. Bandwidths are in GB/s (10^9 bytes); what was not found is absent."""

    verdict: Literal["pass", "fail", "unknown"]
    """unknown: there is no evidence."""
    reasons: tuple[str, ...] = ()
    """Why it is not a pass."""
    measured_at: AwareDatetime | None = None
    """When the measurement was started, in UTC."""
    busbar_version: str | None = None
    """The busbar that judged it."""
    nodes_measured: tuple[str, ...] | None = None
    """The Nodes that were measured. Absent where nothing was."""
    stale: tuple[str, ...] | None = None
    """Of a verdict that stays because the GPUs were held (validation.when_busy: keep): what has changed since
    the measurement, such as `k3s v1.35.6+k3s1 -> v1.35.7+k3s1`. Absent for any other one."""
    busbw_gbps: FiniteFloat | None = None
    """Of the first collective at its largest size: the smaller of out-of-place and in-place."""
    expected_gbps: FiniteFloat | None = None
    """What the hardware should reach, or what is configured."""
    fraction: FiniteFloat | None = None
    """Measured / expected."""
    transport: str = "unknown"
    """What NCCL used between hosts, such as gpudirect-rdma, rdma, socket."""
    gdrdma_edges: int | None = None
    """Channel edges over the network that use GPUDirect RDMA."""
    network_edges: int | None = None
    """All channel edges over the network."""
    hosts_by_rails: dict[int, int] = Field(default={})
    """Number of network devices in use on a host -> number of such hosts."""
    curve: dict[str, Curve] = Field(default={})
    """Collective -> pairs of message size in bytes and busbw, the smallest size first."""
    nccl_version: str | None = None
    """As NCCL printed it."""
    plugin: str | None = None
    """The network plugin of NCCL."""
    simulated: str | None = None
    """What in the measurement was simulated; absent on real hardware."""
    verdict_file: str | None = None
    """The whole verdict on the machine that ran Pulumi, relative to the project."""
    config_map: str | None = None
    """The whole verdict in the cluster: NAMESPACE/NAME, key verdict.json."""

    @property
    def not_passed(self) -> tuple[str, ...]:
        """Why this is not a pass, with at least one reason; empty only for a pass in every respect."""
        if self.verdict != "pass":
            return self.reasons or (f"the verdict is {self.verdict!r} and gives no reason",)
        if self.busbw_gbps is None:
            return (*self.reasons, "the verdict is a pass without a bandwidth")
        return ()


def summarize(
    verdict: Mapping[str, Any],
    *,
    verdict_file: str | None = None,
    config_map: str | None = None,
    measured_at: str | None = None,
) -> dict[str, Any]:
    """A PoolResult as JSON values, with `format`, from the JSON object of busbar.judge.nccl.verdict.

    Takes any mapping: what a verdict lacks is missing here too. Numbers have 4 decimals, those of a curve 6
    digits. Raises ValidationError for a verdict that is none of the three.
    """
    channels: Mapping[str, int] = verdict.get("channels") or {}
    network = {label: n for label, n in channels.items() if label.startswith(("NET/", "COLLNET/"))}
    consistent = (verdict.get("passed") is True) == (verdict.get("verdict") == "pass")
    found = {
        "verdict": verdict.get("verdict") if consistent else "unknown",
        "reasons": verdict.get("reasons") or (),
        "measured_at": measured_at,
        "busbar_version": __version__,
        **{
            key: number(verdict.get(key), digits=DIGITS)
            for key in ("busbw_gbps", "expected_gbps", "fraction")
        },
        "transport": verdict.get("transport") or "unknown",
        "hosts_by_rails": Counter((verdict.get("rails_per_host") or {}).values()),
        "curve": {
            name: sorted(points)
            for name, result in (verdict.get("collectives") or {}).items()
            if (points := list(_points(result)))
        },
        **{key: verdict.get(key) or None for key in ("nccl_version", "plugin", "simulated")},
        "verdict_file": verdict_file,
        "config_map": config_map,
    }
    if network:
        found["gdrdma_edges"] = sum(n for label, n in network.items() if "/GDRDMA" in label)
        found["network_edges"] = sum(network.values())
    return {"format": FORMAT, **PoolResult.model_validate(found).model_dump(mode="json", exclude_none=True)}


def read_result(stdout: str | None) -> dict[str, Any]:
    """The PoolResult that `busbar nccl collect` printed, as JSON values.

    Never raises: any other text is a verdict "unknown".
    """
    try:
        return PoolResult.model_validate(_printed(stdout or "")).model_dump(mode="json", exclude_none=True)
    except ValidationError as error:
        problem = problems(error)
    except (AttributeError, TypeError, ValueError) as error:
        problem = f"it is not a verdict ({error})"
    reason = f"the output of `busbar nccl collect` cannot be read: {problem}. Fix: raise validation.run"
    return {"verdict": "unknown", "reasons": [reason]}


def _printed(text: str) -> dict[str, Any]:
    printed = json.loads(text)
    if printed.get("format") != FORMAT:
        form = printed.get("format", printed.get("schema"))  # 0.1.0 called it schema
        raise ValueError(f"unsupported format {form!r}, supported: {FORMAT}")
    return dict(printed)


def _points(result: Mapping[str, Any]) -> Iterator[tuple[int, float]]:
    """Size and busbw of each row: the smaller of out-of-place and in-place, as the headline."""
    for row in result.get("curve") or []:
        halves = [number((row.get(half) or {}).get("busbw_gbps")) for half in ("out_of_place", "in_place")]
        known = [busbw for busbw in halves if busbw is not None]
        if known:
            yield int(row["size_bytes"]), float(f"{min(known):g}")

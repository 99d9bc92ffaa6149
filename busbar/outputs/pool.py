"""The part of one pool's verdict that the stack exports, because it is read often.

`busbar nccl collect` prints the result of `summarize`. The engine keeps nothing else of a measurement in its
state, and later releases read it. The whole verdict (every check with its evidence, both halves of every
row) stays in verdict.json and in the cluster.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, Literal

from pydantic import AwareDatetime, Field, FiniteFloat, ValidationError

from busbar.judge.record import JOB, VERDICT, Record, Settings, changes
from busbar.models import OutputModel, number, problems
from busbar.text import listed

Curve = tuple[tuple[int, float], ...]
"""(message size in bytes, busbw in GB/s), the smallest size first."""

FORMAT = 4
"""Version of the printed form, from 1.0 on. Raised when a field changes; former ones must then be read."""

DIGITS = 4  # decimals of an exported number


class PoolResult(OutputModel):
    """The result of one pool. Bandwidths are in GB/s (10^9 bytes); values that were not found are absent."""

    verdict: Literal["pass", "fail", "unknown"]
    """unknown: there is no evidence."""
    reasons: tuple[str, ...] = ()
    """The reasons why it is not a pass."""
    measured_at: AwareDatetime | None = None
    """Start of the measurement, in UTC."""
    judge: int | None = None
    """The version of the judge."""
    busbar_version: str | None = None
    """The busbar that judged it."""
    nodes_measured: tuple[str, ...] | None = None
    """The Nodes that were measured. Absent where nothing was."""
    stale: tuple[str, ...] | None = None
    """Changes since the measurement, such as `k3s v1.35.6+k3s1 -> v1.35.7+k3s1`, of a verdict that stays
    because the GPUs were held (validation.when_busy: keep). Absent for any other verdict."""
    busbw_gbps: FiniteFloat | None = None
    """busbw of the first collective at its largest size: the smaller of out-of-place and in-place."""
    expected_gbps: FiniteFloat | None = None
    """Expected busbw: computed for the hardware, or configured."""
    fraction: FiniteFloat | None = None
    """Measured / expected."""
    transport: str = "unknown"
    """Transport that NCCL used between hosts, such as gpudirect-rdma, rdma, socket."""
    gdrdma_edges: int | None = None
    """Channel edges over the network that use GPUDirect RDMA."""
    network_edges: int | None = None
    """All channel edges over the network."""
    hosts_by_rails: dict[int, int] = Field(default={})
    """Number of network devices in use on a host -> number of such hosts."""
    curve: dict[str, Curve] = Field(default={})
    """Collective -> pairs of message size in bytes and busbw, the smallest size first."""
    nccl_version: str | None = None
    """NCCL's version as NCCL printed it."""
    plugin: str | None = None
    """The network plugin of NCCL."""
    simulated: str | None = None
    """The simulated parts of the measurement; absent on real hardware."""
    verdict_file: str | None = None
    """The whole verdict on the machine that ran Pulumi, relative to the project."""
    config_map: str | None = None
    """The whole verdict in the cluster: NAMESPACE/NAME, key verdict.json."""

    @property
    def not_passed(self) -> tuple[str, ...]:
        """The reasons why this is not a pass; empty only for a pass in every respect."""
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
    record: Record | None = None,
) -> dict[str, Any]:
    """A PoolResult as JSON values, with `format`, from the JSON object of busbar.judge.nccl.verdict.

    A RECORD is included. Any mapping is accepted; fields that a verdict lacks are missing in the result too.
    Numbers have 4 decimals, those of a curve 6 digits. Raises ValidationError for a verdict other than pass,
    fail and unknown.
    """
    channels: Mapping[str, int] = verdict.get("channels") or {}
    network = {label: n for label, n in channels.items() if label.startswith(("NET/", "COLLNET/"))}
    consistent = (verdict.get("passed") is True) == (verdict.get("verdict") == "pass")
    found = {
        "verdict": verdict.get("verdict") if consistent else "unknown",
        "reasons": verdict.get("reasons") or (),
        "measured_at": record.measured_at if record else measured_at,
        "nodes_measured": record.nodes if record and verdict.get("busbw_gbps") is not None else None,
        "judge": verdict.get("judge"),
        "busbar_version": verdict.get("busbar_version"),
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
        "verdict_file": f"{record.folder}/{VERDICT}" if record else verdict_file,
        "config_map": config_map,
    }
    if network:
        found["gdrdma_edges"] = sum(n for label, n in network.items() if "/GDRDMA" in label)
        found["network_edges"] = sum(network.values())
    result = PoolResult.model_validate(found).model_dump(mode="json", exclude_none=True)
    about = {"record": record.model_dump(mode="json")} if record else {}
    return {"format": FORMAT, **result, **about}


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


def previous_result(printed: str | None) -> dict[str, Any] | None:
    """What the collector PRINTED in a former run, with its record; None if that is neither pass nor fail."""
    return None if read_result(printed)["verdict"] == "unknown" else _object(printed)


def current_result(printed: str | None, settings: Settings, nodes: Sequence[str]) -> dict[str, Any]:
    """The result of a pool whose collector PRINTED it, with the Nodes that were measured.

    SETTINGS and NODES are those of the measurement that is wanted now; a result that stays because the GPUs
    were held lists how they differ from its own.
    """
    result, found = read_result(printed), _object(printed)
    if found.get("kept"):
        measured = result.get("nodes_measured") or ()
        return {**result, "stale": _stale(found["record"]["settings"], settings, measured, nodes)}
    if result.get("busbw_gbps") is not None:
        return {**result, "nodes_measured": list(nodes)}
    return result


def _stale(
    former: Settings, wanted: Settings, measured: Collection[str], nodes: Collection[str]
) -> list[str]:
    texts = changes(former, wanted)
    for text, names in (
        ("not measured", [node for node in nodes if node not in measured]),
        ("no longer in the pool", [node for node in measured if node not in nodes]),
    ):
        if names:
            texts[text] = f"{text}: {listed(names)}"
    # The job's name depends on all other settings, so it is reported only if none of these has changed.
    return [text for key, text in texts.items() if key != JOB] or list(texts.values())


def _object(text: str | None) -> dict[str, Any]:
    """The JSON object in a text; empty for any other text."""
    try:
        found = json.loads(text or "")
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _printed(text: str) -> dict[str, Any]:
    printed = json.loads(text)
    if printed.get("format") != FORMAT:
        raise ValueError(f"unsupported format {printed.get('format')!r}, supported: {FORMAT}")
    return dict(printed)


def _points(result: Mapping[str, Any]) -> Iterator[tuple[int, float]]:
    """Message size and busbw of each row: the smaller of out-of-place and in-place, as in the headline."""
    for row in result.get("curve") or []:
        halves = [number((row.get(half) or {}).get("busbw_gbps")) for half in ("out_of_place", "in_place")]
        known = [busbw for busbw in halves if busbw is not None]
        if known:
            yield int(row["size_bytes"]), float(f"{min(known):g}")

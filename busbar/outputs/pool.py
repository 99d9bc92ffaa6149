"""What the stack exports of one pool's verdict: the part that is read often, short enough to be printed.

`summarize` is what `busbar nccl collect` prints, so this is also all that the engine keeps in its state.
The whole verdict (every check with its evidence, both halves of every row) stays in verdict.json and in the
cluster.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from busbar.nccl.schema import SCHEMA
from busbar.outputs.values import number

Curve = tuple[tuple[int, float], ...]
"""(message size in bytes, busbw in GB/s), the smallest size first."""

VERDICT_SCHEMA: int = SCHEMA
"""The schema of the verdicts that are understood: those of this version of busbar."""

FIELDS = (
    "verdict",
    "busbw_gbps",
    "expected_gbps",
    "fraction",
    "transport",
    "gdrdma_edges",
    "rails",
    "curve",
    "simulated",
    "verdict_file",
    "config_map",
)
"""The keys of `nccl[pool]`; what was not found has no key."""

DIGITS = 4  # decimals of an exported number

_UNITS = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}
_POINT = re.compile(r"(?P<size>\d+)(?P<unit>[KMGT]iB|B)=(?P<busbw>\d+(\.\d+)?(e[+-]\d+)?)")
_EDGES = re.compile(r"(?P<direct>\d+) of (?P<all>\d+)")


@dataclass(frozen=True)
class PoolResult:
    """The result of one pool as exported. Bandwidths are in GB/s (10^9 bytes).

    `gdrdma_edges`: (channel edges over the network that use GPUDirect RDMA, all of them). `rails`: how many
    network devices each host used, as a text. `simulated`: what in the measurement was simulated; None for
    real hardware. `verdict_file` is relative to the project of the stack, `config_map` is NAMESPACE/NAME.
    """

    verdict: str
    transport: str
    busbw_gbps: float | None
    expected_gbps: float | None
    fraction: float | None
    gdrdma_edges: tuple[int, int] | None
    rails: str | None
    curve: Mapping[str, Curve]
    simulated: str | None
    verdict_file: str | None
    config_map: str | None


def summarize(
    verdict: Mapping[str, Any], *, verdict_file: str | None = None, config_map: str | None = None
) -> dict[str, Any]:
    """A verdict (the JSON object of busbar/nccl/verdict.py) in a few hundred bytes.

    Holds FIELDS, and what the outputs of the whole stack need: `schema`, `passed`, `reasons`,
    `nccl_version`, `plugin`. A number is rounded to 4 decimals. Takes any mapping: what a verdict lacks is
    missing here too.
    """
    collectives: Mapping[str, Any] = verdict.get("collectives") or {}
    curves = {name: _format_curve(_busbw(result)) for name, result in collectives.items()}
    short = {
        **{key: verdict.get(key) for key in ("schema", "passed", "reasons", "nccl_version", "plugin")},
        "verdict": verdict.get("verdict"),
        "busbw_gbps": number(verdict.get("busbw_gbps"), digits=DIGITS),
        "expected_gbps": number(verdict.get("expected_gbps"), digits=DIGITS),
        "fraction": number(verdict.get("fraction"), digits=DIGITS),
        "transport": verdict.get("transport"),
        "gdrdma_edges": _gdrdma_edges(verdict.get("channels") or {}),
        "rails": _rails(verdict.get("rails_per_host") or {}),
        "curve": {name: text for name, text in curves.items() if text},
        "simulated": verdict.get("simulated") or None,
        "verdict_file": verdict_file,
        "config_map": config_map,
    }
    return {key: value for key, value in short.items() if value is not None}


def parse_pool(output: Mapping[str, Any]) -> PoolResult:
    """One entry of the output `nccl`. Raises ValueError, with the key, for what is no such entry."""
    curve = output.get("curve") or {}
    if not isinstance(curve, Mapping):
        raise ValueError(f"curve is {curve!r}, a mapping is expected")
    return PoolResult(
        verdict=str(output.get("verdict", "unknown")),
        transport=str(output.get("transport", "unknown")),
        busbw_gbps=number(output.get("busbw_gbps")),
        expected_gbps=number(output.get("expected_gbps")),
        fraction=number(output.get("fraction")),
        gdrdma_edges=_parse_edges(output.get("gdrdma_edges")),
        rails=output.get("rails"),
        curve={str(name): _parse_curve(name, text) for name, text in curve.items()},
        simulated=output.get("simulated"),
        verdict_file=output.get("verdict_file"),
        config_map=output.get("config_map"),
    )


def _busbw(result: Mapping[str, Any]) -> Iterable[tuple[int, float]]:
    """Size and busbw of each row: the smaller of out-of-place and in-place, as the headline."""
    for row in result.get("curve") or []:
        halves = [number((row.get(half) or {}).get("busbw_gbps")) for half in ("out_of_place", "in_place")]
        known = [busbw for busbw in halves if busbw is not None]
        if known:
            yield int(row["size_bytes"]), min(known)


def _format_curve(points: Iterable[tuple[int, float]]) -> str:
    """Such as `1GiB=382.1 512MiB=371.2`: sizes exactly, in the largest unit that divides them.

    The largest size comes first, because Pulumi's CLI cuts a text after 150 characters.
    """
    return " ".join(f"{_format_size(size)}={busbw:g}" for size, busbw in sorted(points, reverse=True))


def _format_size(size: int) -> str:
    unit = next(unit for unit in reversed(_UNITS) if size % _UNITS[unit] == 0) if size else "B"
    return f"{size // _UNITS[unit]}{unit}"


def _parse_curve(name: str, text: Any) -> Curve:
    points = []
    for word in str(text).split():
        match = _POINT.fullmatch(word)
        if match is None:
            raise ValueError(f"curve.{name} has {word!r}, SIZE=GBPS such as 512MiB=371.2 is expected")
        points.append((int(match["size"]) * _UNITS[match["unit"]], float(match["busbw"])))
    return tuple(sorted(points))


def _gdrdma_edges(channels: Mapping[str, int]) -> str | None:
    """Such as `704 of 704`, from the channels by kind ({"NET/IBext/N/GDRDMA": 704, "P2P/CUMEM": 64})."""
    network = {label: count for label, count in channels.items() if label.startswith(("NET/", "COLLNET/"))}
    direct = sum(count for label, count in network.items() if "/GDRDMA" in label)
    return f"{direct} of {sum(network.values())}" if network else None


def _parse_edges(text: Any) -> tuple[int, int] | None:
    if text is None:
        return None
    match = _EDGES.fullmatch(str(text))
    if match is None:
        raise ValueError(f"gdrdma_edges is {text!r}, such as '704 of 704' is expected")
    return int(match["direct"]), int(match["all"])


def _rails(per_host: Mapping[str, int]) -> str | None:
    """Such as `8 on each of 2 hosts`, or `8 on 7 hosts, 6 on 1 host`."""
    counts = Counter(per_host.values())
    if len(counts) == 1:
        [(rails, hosts)] = counts.items()
        return f"{rails} on each of {hosts} hosts" if hosts > 1 else f"{rails} on 1 host"
    parts = (f"{rails} on {n} host{'s' * (n > 1)}" for rails, n in sorted(counts.items(), reverse=True))
    return ", ".join(parts) or None

"""The criteria, `acceptance.yaml`: the contract of both sides, one row per thing that is measured."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import Field, ValidationError

from busbar.config.values import Float, Text
from busbar.exits import Misuse
from busbar.models import ConfigModel, problems
from stacks.accept.package.site import COLLECTIVES, Pool, Site

VERSION: Literal[1] = 1
MAX_BYTES = 1 << 20
# Of ten runs of a healthy rack the spread was 0.05 % (NVIDIA/aicr#2573); a wobble of 5 % is a fault.
SPREAD_PERCENT = 5.0


class Row(ConfigModel):
    """One criterion."""

    id: Annotated[str, Field(pattern=r"^[a-z0-9_-]+(\.[a-z0-9_-]+){2,3}$", max_length=200)] = Field(
        description="STAGE.POOL.KIND, or STAGE.POOL.COLLECTIVE.KIND."
    )
    measured: Text = Field(default="", description="The meaning of the row, for people.")
    threshold: Float | None = Field(
        default=None, description="Limit of the measured value; its side follows from the kind."
    )
    unit: Text = Field(default="", description="Unit of the threshold.")
    source: Text = Field(default="", description="The origin of the threshold.")
    required: bool = Field(default=True, description="If false, the row does not decide on the acceptance.")

    @property
    def stage(self) -> str:
        """The stage that writes its evidence."""
        return self.id.split(".")[0]

    @property
    def pool(self) -> str:
        """The pool that it is about."""
        return self.id.split(".")[1]

    @property
    def collective(self) -> str:
        """Its collective; empty for a row of the whole stage."""
        parts = self.id.split(".")
        return parts[2] if len(parts) == 4 else ""

    @property
    def kind(self) -> str:
        """STAGE.KIND, a key of KINDS."""
        return f"{self.stage}.{self.id.split('.')[-1]}"


class Criteria(ConfigModel):
    """All criteria. A row that the default has and this has not was taken out, and is listed as such."""

    version: Literal[1]
    rows: Annotated[list[Row], Field(min_length=1, max_length=10_000)]


@dataclass(frozen=True)
class Kind:
    """A kind of row. `least`: the value must reach the threshold; else it must not exceed it.

    `limit`: the default threshold of a pool, with its source, and the highest one that makes sense; None: the
    kind has no threshold.
    """

    measured: str
    unit: str = ""
    least: bool = True
    per_collective: bool = False
    required: bool = True
    limit: Any = None


def _workers(pool: Pool) -> tuple[float, str, float]:
    return len(pool.workers), "hosts.workers, without those in quarantine", len(pool.workers)


def _gpus(pool: Pool) -> tuple[float, str, float]:
    return pool.required.gpus, "pools.gpus", pool.required.gpus


def _rails(pool: Pool) -> tuple[float, str, float]:
    return pool.required.rails, "pools.rails", pool.required.rails


def _share(pool: Pool) -> tuple[float, str, float]:
    return round(100 * (1 - pool.tolerance), 3), f"validation.tolerance; expected value: {pool.source}", 100


def _spread(pool: Pool) -> tuple[float, str, float]:
    return SPREAD_PERCENT, "a healthy rack: 0.05 % (NVIDIA/aicr#2573)", 100


KINDS: Mapping[str, Kind] = {
    "inventory.nodes": Kind("nodes that answer, with machine id and boot id", "nodes", limit=_workers),
    "inventory.gpus": Kind("GPUs of each node, with serial and UUID", "GPUs per node", limit=_gpus),
    "inventory.hcas": Kind("rails of each node at their rate, with GUID", "rails per node", limit=_rails),
    "inventory.hardware": Kind("GPUs, HCAs and PCIe topology as configured"),
    "inventory.same": Kind("the same driver, VBIOS and HCA firmware on all nodes"),
    "inventory.ecc": Kind("ECC is on for every GPU"),
    "inventory.nvlinks": Kind("every NVLink is up, all at one speed"),
    "inventory.health": Kind("no Xid, ECC error, remapped row, NVLink error, narrow PCIe link or port error"),
    "collectives.proof": Kind("the first run of each collective passes every gate, transport included"),
    "collectives.nodes": Kind("nodes that took part", "nodes", limit=_workers),
    "collectives.diagnostics": Kind("NCCL's own diagnostics (NCCL 2.31 and newer)", required=False),
    "repeats.log": Kind("the repeated runs are whole, and their data is correct"),
    "repeats.busbw": Kind(
        "median busbw of all runs", "% of the expected busbw", per_collective=True, limit=_share
    ),
    "repeats.spread": Kind(
        "highest minus lowest busbw of all runs, by their median",
        "% of the median",
        least=False,
        per_collective=True,
        limit=_spread,
    ),
}  # fmt: skip


def default(site: Site) -> Criteria:
    """The default criteria of a site, from its pools and profiles."""
    return Criteria(
        version=VERSION, rows=[row for name, pool in site.pools.items() for row in _rows(name, pool)]
    )


def _rows(name: str, pool: Pool) -> Iterator[Row]:
    for key, kind in KINDS.items():
        if key == "inventory.hcas" and not pool.required.rails:
            continue
        stage, _, what = key.partition(".")
        threshold, source, _ = kind.limit(pool) if kind.limit else (None, "", None)
        for collective in COLLECTIVES if kind.per_collective else ("",):
            known = not collective or pool.expected_gbps.get(collective) is not None
            yield Row(
                id=".".join(filter(None, (stage, name, collective, what))),
                measured=kind.measured,
                threshold=threshold,
                unit=kind.unit,
                source=source if known else f"{source}; no expected value exists, as over TCP",
                required=kind.required and known,
            )


def taken_out(criteria: Criteria, site: Site) -> list[str]:
    """The rows of the default that these criteria do not have."""
    kept = {row.id for row in criteria.rows}
    return [row.id for row in default(site).rows if row.id not in kept]


def read(path: Path, site: Site) -> Criteria:
    """Criteria from a file, checked against the site. Raises Misuse, with the first fault as a sentence."""
    try:
        if path.stat().st_size > MAX_BYTES:
            raise Misuse(f"{path}: is larger than {MAX_BYTES >> 20} MiB")
        text = path.read_text(encoding="utf-8")
        # An alias may stand for more objects than fit the memory.
        if any(isinstance(token, yaml.AliasToken | yaml.AnchorToken) for token in yaml.scan(text)):
            raise Misuse(f"{path}: has an anchor or an alias. Fix: write each row out")
        criteria = Criteria.model_validate(yaml.safe_load(text))
    except OSError as error:
        raise Misuse(f"{path}: {error.strerror}") from None
    except ValidationError as error:
        raise Misuse(f"{path}: {problems(error)[:500]}") from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise Misuse(f"{path}: not YAML: {' '.join(str(error).split())[:200]}") from None
    for fault in faults(criteria, site):
        raise Misuse(f"{path}: {fault}")
    return criteria


def faults(criteria: Criteria, site: Site) -> Iterator[str]:
    """The faults of criteria, each as a sentence with its fix."""
    known, seen = {row.id for row in default(site).rows}, set()
    for row in criteria.rows:
        if row.id not in known:
            yield f"{row.id}: unknown row. Fix: busbar accept criteria --for {site.stack} lists all"
            continue
        if row.id in seen:
            yield f"{row.id}: is there twice. Fix: remove one"
        seen.add(row.id)
        kind = KINDS[row.kind]
        if kind.limit is None:
            if row.threshold is not None or row.unit:
                yield f"{row.id}: has a threshold or a unit, expected none. Fix: remove them"
            continue
        ceiling = kind.limit(site.pools[row.pool])[2]
        if row.unit != kind.unit:
            yield f"{row.id}: unit is {row.unit!r}, expected {kind.unit!r}. Fix: write this unit"
        if row.threshold is None or not 0 < row.threshold <= ceiling:
            got = "missing" if row.threshold is None else f"{row.threshold:g}"
            yield f"{row.id}: threshold is {got}, expected more than 0 and at most {ceiling:g} {kind.unit}"


def text(criteria: Criteria) -> str:
    """The file."""
    rows = [
        row.model_dump(exclude={"required"} if row.required else set(), exclude_defaults=True)
        for row in criteria.rows
    ]
    body = yaml.safe_dump({"version": criteria.version, "rows": rows}, sort_keys=False, width=110)
    return re.sub(r"^- id:", "\n- id:", body, flags=re.MULTILINE)


def schema() -> dict[str, Any]:
    """The JSON Schema of the file."""
    made = Criteria.model_json_schema()
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **made, "title": "acceptance.yaml"}

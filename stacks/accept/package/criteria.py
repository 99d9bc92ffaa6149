"""The criteria, `acceptance.yaml`: the contract of both sides, one row per thing that is measured."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import Field, ValidationError

from busbar.exits import Misuse
from busbar.models import ConfigModel, problems
from stacks.accept.package.kinds import Kind, Row
from stacks.accept.package.site import COLLECTIVES, Pool, Site
from stacks.accept.package.subjects import KINDS

VERSION: Literal[1] = 1
MAX_BYTES, MAX_DEPTH = 1 << 20, 8


class Criteria(ConfigModel):
    """All criteria. A row that the default has and this has not was taken out, and is listed as such."""

    version: Literal[1]
    rows: Annotated[list[Row], Field(min_length=1, max_length=10_000)]


def default(site: Site) -> Criteria:
    """The default criteria of a site, from its pools and profiles."""
    rows = []
    for name, pool in site.pools.items():
        for key, kind in KINDS.items():
            stage, _, what = key.partition(".")
            threshold = kind.limit(pool) if kind.limit else None
            for collective in COLLECTIVES if kind.per_collective else ("",):
                expected = pool.expected_gbps.get(collective) if collective else 0.0
                origin = pool.origin(collective or COLLECTIVES[0])
                row = Row(
                    id=".".join(filter(None, (stage, name, collective, what))),
                    measured=kind.measured,
                    threshold=threshold,
                    unit=kind.unit,
                    source=kind.source.format(origin=origin),
                    expected=expected_of(kind, pool, collective),
                    required=expected is not None
                    and (kind.required(pool) if callable(kind.required) else kind.required),
                )
                # A pool without rails has no row about them.
                rows += [row] if threshold != 0 and kind.when(pool) else []
    return Criteria(version=VERSION, rows=rows)


def expected_of(kind: Kind, pool: Pool, collective: str) -> dict[str, float | str]:
    """What a row says of the yardstick of its pool, without what is not known."""
    return {name: value for name, value in kind.expects(pool, collective).items() if value}


def offered(site: Site) -> tuple[str, ...]:
    """The ids of the default rows of this release."""
    return tuple(row.id for row in default(site).rows)


def read(path: Path, site: Site) -> Criteria:
    """Criteria from a file, checked against the site. Raises Misuse, with the first fault as a sentence."""
    try:
        if path.stat().st_size > MAX_BYTES:
            raise Misuse(f"{path}: is larger than {MAX_BYTES >> 20} MiB")
        text = path.read_text(encoding="utf-8")
        depth = 0
        for token in yaml.scan(text):
            # An alias may stand for more objects than fit the memory.
            if isinstance(token, yaml.AliasToken | yaml.AnchorToken):
                raise Misuse(f"{path}: has an anchor or an alias. Fix: write each row out")
            # The scanner's time grows with the square of the depth.
            depth += isinstance(token, yaml.FlowSequenceStartToken | yaml.FlowMappingStartToken)
            depth -= isinstance(token, yaml.FlowSequenceEndToken | yaml.FlowMappingEndToken)
            if depth > MAX_DEPTH:
                raise Misuse(f"{path}: has more than {MAX_DEPTH} brackets inside each other")
        criteria = Criteria.model_validate(yaml.safe_load(text))
    except OSError as error:
        raise Misuse(f"{path}: {error.strerror}") from None
    except ValidationError as error:
        raise Misuse(f"{path}: {problems(error)[:500]}") from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise Misuse(f"{path}: not YAML: {' '.join(str(error).split())[:200]}") from None
    for fault in _faults(criteria, site):
        raise Misuse(f"{path}: {fault}")
    return criteria


def _faults(criteria: Criteria, site: Site) -> Iterator[str]:
    """The faults of criteria, each as a sentence with its fix."""
    known, seen = {row.id for row in default(site).rows}, set()
    for row in criteria.rows:
        if row.id not in known or row.id in seen:
            what = "is there twice" if row.id in seen else "unknown row"
            what += ", without --soak" if row.id.startswith("soak.") else ""
            yield f"{row.id}: {what}. Fix: busbar accept criteria --for {site.stack} lists all, each once"
            continue
        seen.add(row.id)
        _, pool, collective, key = row.parts
        kind = KINDS[key]
        wanted = expected_of(kind, site.pools[pool], collective)
        for name in sorted({*wanted, *row.expected}):
            got, of_run = row.expected.get(name), wanted.get(name)
            if got != of_run:
                fix = "Fix: agree on one of them"
                yield f"{row.id}: expected.{name} is {got}, the stack of the run has {of_run}. {fix}"
        if kind.limit is None and (row.threshold is not None or row.unit):
            yield f"{row.id}: has a threshold or a unit, expected none. Fix: remove them"
        if kind.limit is None:
            continue
        ceiling = kind.ceiling or kind.limit(site.pools[pool])
        if row.unit != kind.unit:
            yield f"{row.id}: unit is {row.unit!r}, expected {kind.unit!r}. Fix: write this unit"
        if row.threshold is None or not 0 < row.threshold <= ceiling:
            got = "missing" if row.threshold is None else f"{row.threshold:g}"
            yield f"{row.id}: threshold is {got}, expected more than 0 and at most {ceiling:g} {kind.unit}"


def stages_of(rows: Iterable[Row]) -> set[str]:
    """The stages of rows, and those whose evidence they need."""
    return {stage for row in rows for stage in (row.parts[0], *KINDS[row.parts[3]].uses)}


def text(criteria: Criteria) -> str:
    """The file."""
    rows = [row.model_dump(exclude_defaults=True) for row in criteria.rows]
    body = yaml.safe_dump({"version": criteria.version, "rows": rows}, sort_keys=False, width=110)
    return re.sub(r"^- id:", "\n- id:", body, flags=re.MULTILINE)


def schema() -> dict[str, Any]:
    """The JSON Schema of the file."""
    made = Criteria.model_json_schema()
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **made, "title": "acceptance.yaml"}

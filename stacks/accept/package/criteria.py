"""The criteria, `acceptance.yaml`: the contract of both sides, one row per thing that is measured."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import Field, ValidationError

from busbar.config import engine_yaml
from busbar.exits import Misuse
from busbar.models import ConfigModel, problems
from stacks.accept.package.kinds import Row
from stacks.accept.package.site import COLLECTIVES, Site
from stacks.accept.package.subjects import KINDS

VERSION: Literal[1] = 1
MAX_BYTES = 1 << 20


class Criteria(ConfigModel):
    """All criteria. A row that the default has and this has not was taken out, and is listed as such."""

    version: Literal[1]
    rows: Annotated[list[Row], Field(min_length=1, max_length=10_000)]


def possible(site: Site) -> dict[str, Row]:
    """Id -> the row as this release would write it, of every row that criteria of the site may have."""
    found: dict[str, Row] = {}
    for name, pool in site.pools.items():
        for key, kind in KINDS.items() if pool.workers or pool.quarantined else ():
            stage, _, what = key.partition(".")
            for collective in COLLECTIVES if kind.per_collective else ("",):
                expected = kind.expects(pool, collective).items()
                is_required = kind.required(pool) if callable(kind.required) else kind.required
                row = Row(
                    id=".".join(filter(None, (stage, name, collective, what))),
                    measured=kind.measured,
                    threshold=kind.limit(pool) if kind.limit else None,
                    unit=kind.unit,
                    source=kind.source.format(origin=pool.origin(collective or COLLECTIVES[0])),
                    # Without what is not known.
                    expected={key: value for key, value in expected if value},
                    required=is_required and (not collective or pool.expected_gbps[collective] is not None),
                )
                found |= {row.id: row} if kind.when(pool) else {}
    return found


def default(site: Site) -> Criteria:
    """The default criteria of a site, from its pools and profiles. Raises Misuse where no worker is left."""
    rows = [
        row
        for row in possible(site).values()
        # A pool without rails has no row about them.
        if len(site.pools[row.parts[1]].workers) >= row.kind.nodes and row.threshold != 0
    ]
    if not rows:
        raise Misuse(f"every worker of {site.stack} is in quarantine. Fix: end a quarantine")
    return Criteria(version=VERSION, rows=rows)


def offered(site: Site) -> tuple[str, ...]:
    """The ids of the default rows of this release."""
    return tuple(row.id for row in default(site).rows)


@lru_cache(maxsize=2)
def _parsed(text: str) -> Criteria:
    """Criteria from a text; those of both sides are mostly the same."""
    # A few aliases make a value of many GB. libyaml is faster, and ends the process on deep nesting.
    if any(isinstance(event, yaml.AliasEvent) for event in yaml.parse(text)):
        raise ValueError("it has an alias (*NAME). Fix: write the value")
    return Criteria.model_validate(engine_yaml.construct(engine_yaml.compose(text)))


def parse(path: Path) -> Criteria:
    """Criteria from a file. Raises Misuse, with the first fault as a sentence."""
    try:
        if path.stat().st_size > MAX_BYTES:
            raise Misuse(f"{path}: is larger than {MAX_BYTES >> 20} MiB")
        return _parsed(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise Misuse(f"{path}: {error.strerror}") from None
    except ValidationError as error:
        raise Misuse(f"{path}: {problems(error)[:500]}") from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise Misuse(f"{path}: not YAML: {' '.join(str(error).split())[:200]}") from None


def read(path: Path, site: Site) -> Criteria:
    """Criteria from a file, checked against the site. Raises Misuse, with the first fault as a sentence."""
    criteria = parse(path)
    for fault in _faults(criteria, site):
        raise Misuse(f"{path}: {fault}")
    return criteria


def differences(agreed: Criteria, own: Criteria) -> Iterator[str]:
    """Rows for what both sides agreed on and the criteria of a folder do not say."""
    before, now = ({row.id: row for row in each.rows} for each in (agreed, own))
    for name in dict.fromkeys([*before, *now]):
        if name not in now or name not in before:
            yield f"{name}: {'agreed on, not in the folder' if name in before else 'nobody has agreed on it'}"
            continue
        for key in Row.model_fields:
            was, is_ = getattr(before[name], key), getattr(now[name], key)
            if was != is_:
                yield f"{name}: {key} is {is_!r}, agreed on was {was!r}"


def _faults(criteria: Criteria, site: Site) -> Iterator[str]:
    """The faults of criteria, each as a sentence with its fix."""
    known, seen = possible(site), set[str]()
    for row in criteria.rows:
        usual = known.get(row.id)
        if usual is None or row.id in seen:
            what = "is there twice" if row.id in seen else "unknown row"
            what += ", without --soak" if row.id.startswith("soak.") else ""
            yield f"{row.id}: {what}. Fix: busbar accept criteria --for {site.stack} lists all, each once"
            continue
        seen.add(row.id)
        for name in sorted({*usual.expected, *row.expected}):
            got, of_run = row.expected.get(name), usual.expected.get(name)
            if got != of_run:
                what = f"expected.{name} is {got}, the stack of the run has {of_run}"
                yield f"{row.id}: {what}. Fix: agree on one of them"
        ceiling = row.kind.ceiling or usual.threshold
        if ceiling is None:
            if row.threshold is not None or row.unit:
                yield f"{row.id}: has a threshold or a unit, expected none. Fix: remove them"
        elif row.unit != usual.unit:
            yield f"{row.id}: unit is {row.unit!r}, expected {usual.unit!r}. Fix: write this unit"
        elif row.threshold is None or not 0 < row.threshold <= ceiling:
            got = "missing" if row.threshold is None else f"{row.threshold:g}"
            yield f"{row.id}: threshold is {got}, expected more than 0 and at most {ceiling:g} {usual.unit}"


def stages_of(rows: Iterable[Row]) -> set[str]:
    """The stages of rows, and those whose evidence they need."""
    return {stage for row in rows for stage in (row.parts[0], *row.kind.uses)}


def text(criteria: Criteria) -> str:
    """The file."""
    rows = [row.model_dump(exclude_defaults=True) for row in criteria.rows]
    body = yaml.safe_dump({"version": criteria.version, "rows": rows}, sort_keys=False, width=110)
    return re.sub(r"^- id:", "\n- id:", body, flags=re.MULTILINE)


def schema() -> dict[str, Any]:
    """The JSON Schema of the file."""
    made = Criteria.model_json_schema()
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **made, "title": "acceptance.yaml"}

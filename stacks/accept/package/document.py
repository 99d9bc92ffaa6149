"""The document: it is computed from its evidence alone, when it is written and when it is verified."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from jinja2 import Environment, Template
from markupsafe import Markup

from busbar.fabric.diagnosis.page import cells_of, heat_map
from busbar.judge.nccl.expected import JUDGE
from busbar.judge.nccl.report.html import style
from busbar.judge.nccl.report.svg import curve_svg, series_svg
from busbar.preflight.report import Report
from busbar.writing import write_whole
from stacks.accept.package import criteria as contract
from stacks.accept.package import kinds
from stacks.accept.package.evidence import Evidence, Judged, Printed, Untrusted, files_of, sha256
from stacks.accept.package.subjects import KINDS
from stacks.accept.package.subjects.nodes import known_of
from stacks.accept.package.subjects.soak import dots

CRITERIA, ACCEPTANCE, REPORT, STATEMENT, SUMS = (
    "acceptance.yaml",
    "acceptance.json",
    "report.html",
    "statement.json",
    "SHA256SUMS",
)
SIGNATURES = "signatures"
SCHEMA = 2
"""Raised when the meaning of a document changes; another one is refused."""
STAGES = tuple(dict.fromkeys(key.partition(".")[0] for key in KINDS))
# Settings of a measurement that are versions, with that of NCCL.
VERSIONS = ("k3s", "gpu-operator", "network-operator", "image", "nccl")
STATEMENT_TYPE = "https://in-toto.io/Statement/v1"
PREDICATE_TYPE = "https://in-toto.io/attestation/test-result/v0.1"
# A predicate has no "unknown" and no "not run": whatever is not accepted has not passed.
PREDICATE_RESULT = {"accepted": "PASSED", "refused": "FAILED", "undecided": "FAILED"}


def acceptance(folder: Path, evidence: Evidence, hashes: Mapping[str, str]) -> dict[str, Any]:
    """The content of acceptance.json. HASHES: file -> sha256, of the criteria and all evidence.

    Raises Untrusted for evidence that is not of one run, and Misuse for criteria that are not valid.
    """
    begun = evidence.begun
    criteria = contract.read(folder / CRITERIA, begun.site)
    found = kinds.results(criteria.rows, evidence, hashes)
    ended = [stage.ended for name in STAGES if (stage := evidence.stage(name))]
    reports = evidence.inventory.hosts if evidence.inventory else {}
    pools = begun.site.pools
    workers = {name: pool for pool, each in pools.items() for name in each.workers}
    if foreign := sorted(reports.keys() - workers.keys()):
        raise Untrusted(f"the inventory has {foreign[0]!r}, which is no worker of the site")
    installed = {each.owner.install_id for each in reports.values()}
    if len(installed) > 1:
        raise Untrusted("the inventory has workers of several clusters")
    logs = [log for stage in STAGES for pool in pools if (log := _log(evidence, stage, pool))]
    said = {log.verdict.simulated for log in logs} | {_told(each, "simulated") for each in reports.values()}
    printed = [each for stage in STAGES if (each := _printed(evidence, stage))]
    said |= {str(host.get("simulated") or "") for each in printed for host in each.hosts.values()}
    versions: dict[str, str | None] = {}
    for log in logs:
        settings = {**log.record.settings, "nccl": log.verdict.nccl_version}
        versions |= {key: settings[key] for key in VERSIONS if settings.get(key)}
    quarantined = {name: why for pool in pools.values() for name, why in pool.quarantined.items()}
    left_out = {name: f"in quarantine: {why}" for name, why in quarantined.items()}
    left_out |= kinds.failed_nodes(found)
    return {
        "simulated": "; ".join(sorted(each for each in said if each)) or None,
        "schema": SCHEMA,
        "verdict": kinds.verdict(found),
        "run": begun.run,
        "stack": begun.site.stack,
        "cluster": begun.site.cluster,
        "cluster_id": next(iter(installed), "") or None,
        "began": begun.began,
        "ended": max(ended, default=begun.began),
        "busbar": {**begun.busbar, "judge": JUDGE},
        "versions": versions,
        "criteria": {"file": CRITERIA, "sha256": hashes[CRITERIA]},
        "taken_out": [each for each in begun.rows if each not in {row.id for row in criteria.rows}],
        "left_out": left_out,
        "holds_on": len(workers.keys() - left_out.keys()),
        "nodes": {
            name: {"pool": pool, "machine": _told(reports.get(name), "machine")}
            for name, pool in workers.items()
        },
        "rows": found,
        "files": dict(hashes),
    }


def _log(evidence: Evidence, stage: str, pool: str) -> Judged | None:
    try:
        return evidence.judged(stage, pool)
    except Untrusted:
        return None  # its rows say why


def _printed(evidence: Evidence, stage: str) -> Printed | None:
    try:
        return evidence.printed(stage)
    except Untrusted:
        return None  # its rows say why


def _told(report: Report | None, key: str) -> str | None:
    """A text that the script of accept has reported."""
    found = report.also.get(key) if report else None
    return found if found and isinstance(found, str) else None


def statement(found: Mapping[str, Any]) -> dict[str, Any]:
    """The in-toto Statement. Its subjects are the cluster and every node whose machine id is known."""
    cluster = str(found["cluster_id"] or found["cluster"]).encode()
    subjects = {f"cluster {found['cluster']}": hashlib.sha256(cluster).hexdigest()}
    subjects |= {name: node["machine"] for name, node in found["nodes"].items() if node["machine"]}
    named = {key: [row["id"] for row in found["rows"] if row["result"] == key] for key in ("pass", "fail")}
    return {
        "_type": STATEMENT_TYPE,
        "subject": [{"name": name, "digest": {"sha256": digest}} for name, digest in subjects.items()],
        "predicateType": PREDICATE_TYPE,
        "predicate": {
            "simulated": found["simulated"],
            "result": PREDICATE_RESULT[found["verdict"]],
            "configuration": [{"name": CRITERIA, "digest": {"sha256": found["criteria"]["sha256"]}}],
            "passedTests": named["pass"],
            "failedTests": named["fail"],
            "acceptance": {
                "verdict": found["verdict"],
                "run": found["run"],
                "began": found["began"],
                "ended": found["ended"],
            },
        },
    }


def report(found: Mapping[str, Any], evidence: Evidence) -> str:
    """The page: no script, font or link."""
    curves = {}
    for pool in evidence.begun.site.pools:
        log, more = _log(evidence, "collectives", pool), _log(evidence, "repeats", pool)
        for name, result in log.verdict.collectives.items() if log else ():
            if result.curve:
                runs = more.by_size.get(name) if more else None
                curves[f"{pool}: {name}"] = Markup(curve_svg(name, result, inline=True, runs=runs))
    heat = {pool: map_ for pool in evidence.begun.site.pools if (map_ := _heat_map(evidence, pool))}
    series = {pool: made for pool in evidence.begun.site.pools if (made := dots(evidence, pool))}
    soak = Markup(series_svg(series)) if series else ""
    return _template().render(found=found, style=style(), curves=curves, soak=soak, heat=heat)


def _heat_map(evidence: Evidence, pool: str) -> Markup | None:
    """The nodes and rails of a pool; None without a run of them."""
    facts = evidence.begun.site.pools[pool]
    try:
        cells = cells_of(known_of(evidence, pool, facts), both=True)
    except Untrusted:
        return None  # its rows say why
    absent = {name: "no run" for name in facts.workers if name not in cells}
    return heat_map(cells, facts.workers, absent, facts.rail_groups, facts.required.rails) if cells else None


@cache
def _template() -> Template:
    text = resources.files("stacks.accept.package").joinpath("report.html.j2").read_text(encoding="utf-8")
    return Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True).from_string(text)


def hashes_of(files: Mapping[str, Path]) -> dict[str, str]:
    """The digests of the criteria and of all evidence."""
    return {
        path: sha256(file) for path, file in files.items() if path == CRITERIA or path.startswith("evidence/")
    }


def is_listed(path: str) -> bool:
    """Whether a file stands in SHA256SUMS: each but that one and the signatures of it."""
    return path != SUMS and not path.startswith(f"{SIGNATURES}/")


def contents(folder: Path) -> tuple[dict[str, Any], dict[str, str]]:
    """The acceptance, and the text of every file that is computed from the evidence."""
    evidence = Evidence(folder)
    found = acceptance(folder, evidence, hashes_of(files_of(folder)))
    return found, {
        ACCEPTANCE: json.dumps(found, indent=1) + "\n",
        REPORT: report(found, evidence) + "\n",
        STATEMENT: json.dumps(statement(found), indent=1) + "\n",
    }


def write(folder: Path) -> dict[str, Any]:
    """Write the document from its evidence. Returns the acceptance."""
    found, texts = contents(folder)
    for name, text in texts.items():
        write_whole(folder / name, text)
    lines = (f"{sha256(file)}  {path}\n" for path, file in files_of(folder).items() if is_listed(path))
    write_whole(folder / SUMS, "".join(lines))
    return found

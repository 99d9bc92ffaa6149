"""The document: it is computed from its evidence alone, when it is written and when it is verified."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from markupsafe import Markup

from busbar import __version__
from busbar.fabric.diagnosis.page import Cells, cells_of, heat_map
from busbar.judge.nccl.expected import JUDGE
from busbar.judge.nccl.report.html import style
from busbar.judge.nccl.report.svg import curve_svg, series_svg, template
from busbar.release import commit
from busbar.writing import write_whole
from stacks.accept.package import criteria as contract
from stacks.accept.package import kinds
from stacks.accept.package.evidence import Evidence, Untrusted, files_of, or_none, sha256
from stacks.accept.package.subjects import STAGES
from stacks.accept.package.subjects.nodes import known_of
from stacks.accept.package.subjects.soak import dots

CRITERIA, ACCEPTANCE, REPORT, SUMS = "acceptance.yaml", "acceptance.json", "report.html", "SHA256SUMS"
SIGNATURES = "signatures"
SCHEMA = 2
"""Raised when the meaning of a document changes; another one is refused."""
# Settings of a measurement that are versions, with that of NCCL.
VERSIONS = ("k3s", "gpu-operator", "network-operator", "image", "nccl")
WORDS = {"accepted": "Accepted on", "refused": "Refused; passed are", "undecided": "Not decided; passed are"}


def acceptance(folder: Path, evidence: Evidence, hashes: Mapping[str, str]) -> dict[str, Any]:
    """The content of acceptance.json. HASHES: file -> sha256, of the criteria and all evidence.

    Raises Untrusted for evidence that is not of one run, and Misuse for criteria that are not valid.
    """
    begun, usual = evidence.begun, contract.possible(evidence.begun.site)
    criteria = contract.read(folder / CRITERIA, begun.site)
    found = [kinds.result(row, evidence, hashes) for row in criteria.rows]
    for row in found:
        ours = usual[row["id"]]
        row["own_words"] = any(row[key] not in ("", getattr(ours, key)) for key in ("measured", "source"))
    reports, pools = evidence.inventory.hosts, begun.site.pools
    workers = {name: pool for pool, each in pools.items() for name in each.workers}
    if foreign := sorted(reports.keys() - workers.keys()):
        raise Untrusted(f"the inventory has {foreign[0]!r}, which is no worker of the site")
    installed = {each.owner.install_id for each in reports.values()}
    if len(installed) > 1:
        raise Untrusted("the inventory has workers of several clusters")
    said: set[str | None] = {each.also.simulated for each in reports.values()}
    versions, ended = dict[str, str](), [begun.began]
    for stage in STAGES:
        if kept := evidence.stage(stage.name):
            ended.append(kept.ended)
        if printed := or_none(partial(evidence.printed, stage.name)):
            said |= {str(host.get("simulated") or "") for host in printed.hosts.values()}
        for pool in pools:
            if log := or_none(partial(evidence.judged, stage.name, pool)):
                said.add(log.verdict.simulated)
                settings = {**log.record.settings, "nccl": log.verdict.nccl_version}
                versions |= {key: value for key in VERSIONS if (value := settings.get(key))}
    # Also rows that this release has, and the one that ran it does not name.
    here, all_rows = {row.id for row in criteria.rows}, (*begun.rows, *contract.offered(begun.site))
    taken_out = [name for name in dict.fromkeys(all_rows) if name not in here]
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
        "ended": max(ended),
        "busbar": {**begun.busbar, "judge": JUDGE},
        "versions": versions,
        "criteria": {"file": CRITERIA, "sha256": hashes[CRITERIA]},
        "counts": {
            "passed": sum(row["required"] and row["result"] == "pass" for row in found),
            "rows": len(found) + len(taken_out),
            "taken_out": len(taken_out),
            "not_required": sum(not row["required"] for row in found),
        },
        "taken_out": taken_out,
        "left_out": left_out,
        "holds_on": len(workers.keys() - left_out.keys()),
        "bought": len(workers) + len(quarantined),
        "nodes": {name: {"pool": pool, **_node(evidence, name)} for name, pool in workers.items()},
        "sum": hashlib.sha256(_sums(hashes).encode()).hexdigest(),
        "rows": found,
        "files": dict(hashes),
    }


def _node(evidence: Evidence, name: str) -> dict[str, Any]:
    """The parts of a worker, for a list of parts."""
    report = evidence.inventory.hosts.get(name)
    if report is None:
        met = [found.hosts[name].machine for _, found in evidence.met if name in found.hosts]
        return {"machine": met[-1] if met else None}
    firmware = {(each.name, each.port): each.fw for each in report.hcas}
    return {
        "machine": report.also.machine or None,
        "serial": report.also.serial or None,
        "driver": next((gpu.driver for gpu in report.gpus.list), None) if report.gpus else None,
        "gpus": [each.model_dump() for each in report.also.gpus],
        "hcas": [
            {**each.model_dump(), "firmware": firmware.get((each.name, each.port))}
            for each in report.also.hcas
        ],
    }


def headline(found: Mapping[str, Any], verdict: str = "") -> str:
    """The verdict with the number of rows that it stands on; VERDICT in place of that of the document."""
    counts = found["counts"]
    left = [f"{counts[key]} {key.replace('_', ' ')}" for key in ("taken_out", "not_required") if counts[key]]
    more = f" ({', '.join(left)})" if left else ""
    return f"{WORDS[verdict or found['verdict']]} {counts['passed']} of {counts['rows']} rows{more}"


def report(found: Mapping[str, Any], evidence: Evidence, signers: Sequence[str] = ()) -> str:
    """The page: no script, font or link. SIGNERS: a text on each signature that is known."""
    curves, pools = {}, evidence.begun.site.pools
    for pool in pools:
        log, more = (or_none(partial(evidence.judged, stage, pool)) for stage in ("collectives", "repeats"))
        for name, result in log.verdict.collectives.items() if log else ():
            if result.curve:
                runs = more.by_size(name) if more else None
                curves[f"{pool}: {name}"] = Markup(curve_svg(name, result, inline=True, runs=runs))
    heat = {pool: made for pool in pools if (made := or_none(partial(_heat_map, evidence, pool)))}
    series = {pool: shown for pool in pools if (shown := or_none(partial(dots, evidence, pool)))}
    soak = Markup(series_svg(series)) if series else ""
    return template("stacks.accept.package", "report.html.j2").render(
        found=found, signers=signers, headline=headline(found), style=style(), curves=curves, soak=soak,
        heat=heat,
    )  # fmt: skip


def _heat_map(evidence: Evidence, pool: str) -> tuple[Markup, dict[str, list[float | None]]] | None:
    """The nodes and rails of a pool, and GB/s of each node: alone, its best pair, its slowest rail.

    None without a run of them. Raises Untrusted.
    """
    facts = evidence.begun.site.pools[pool]
    known = known_of(evidence, pool, facts)
    if not (cells := cells_of(known.shares(), both=True)):
        return None
    best = cells_of({group: busbw or 0.0 for group, busbw in known.results.items()}, both=True)
    figures = dict[str, list[float | None]]()
    for name in facts.workers:
        runs = best.get(name, Cells())
        figures[name] = [runs.alone, runs.pair, min(runs.rails.values(), default=None)]
    absent = {name: "no run" for name in facts.workers if name not in cells}
    return heat_map(cells, facts.workers, absent, facts.rail_groups, facts.required.rails), figures


def release() -> dict[str, str]:
    """Version and commit of this release."""
    return {"version": __version__, "commit": commit()}


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
    return found, {ACCEPTANCE: json.dumps(found, indent=1) + "\n", REPORT: report(found, evidence) + "\n"}


def write(folder: Path) -> dict[str, Any]:
    """Write the document from its evidence. Returns the acceptance."""
    found, texts = contents(folder)
    for name, text in texts.items():
        write_whole(folder / name, text)
    hashes = {path: sha256(file) for path, file in files_of(folder).items() if is_listed(path)}
    write_whole(folder / SUMS, _sums(hashes))
    # Others read it too. The records of jobs are made for their owner alone.
    for path in (folder, *folder.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)
    return found


def _sums(hashes: Mapping[str, str]) -> str:
    return "".join(f"{digest}  {path}\n" for path, digest in hashes.items())

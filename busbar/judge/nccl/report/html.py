"""The report: one HTML file without script, font or link, for screen (light and dark) and paper."""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path

from markupsafe import Markup

from busbar.judge.nccl.report.svg import curve_svg, template, write_report
from busbar.judge.nccl.report.terminal import first_cause, remark_text
from busbar.judge.nccl.units import duration, gbps, rate, share, size
from busbar.judge.nccl.verdict import Diagnosis, Verdict
from busbar.text import listed

WORDS = {"pass": "Pass", "fail": "Fail", "unknown": "No verdict"}
LEADS = {
    "pass": "Every required check passed.",
    "fail": "At least one check failed.",
    "unknown": "The log does not hold enough evidence for a verdict. This is not a pass.",
}
DATE = "%Y-%m-%d %H:%M UTC"
HOSTS_SHOWN = 8
REMARKS_SHOWN = 20


@dataclass(frozen=True, slots=True)
class Origin:
    """The origin of a log: its name, the date of its file in seconds since 1970 (None: unknown), and the
    command that judged it.
    """

    log: str
    written: float | None = None
    command: str = ""

    @classmethod
    def of(cls, file: str, note: str = "", command: str = "") -> Origin:
        """The origin of FILE, or of standard input for '-'. NOTE follows the name."""
        if file == "-":
            return cls("standard input", command=command)
        try:
            written = Path(file).stat().st_mtime
        except OSError:
            written = None
        return cls(f"{Path(file).name}{note}", written, command)

    def text(self, date: str | None) -> str:
        """A text like `launcher.log, of 2026-01-31 12:00:00`, with the log's own DATE, else its file's."""
        if date:
            return f"{self.log}, of {date}"
        if not self.written:
            return self.log
        return f"{self.log}, no date in it (the file is of {time.strftime(DATE, time.gmtime(self.written))})"


@cache
def style() -> Markup:
    """The style sheet of pages."""
    text = resources.files("busbar.judge.nccl.report").joinpath("style.css").read_text(encoding="utf-8")
    return Markup(text.rstrip("\n"))


def render_html(verdict: Verdict, origin: Origin) -> str:
    """An HTML page of the VERDICT on the log of ORIGIN."""
    floor, ceiling = _gbps(verdict.floor_gbps), _gbps(verdict.ceiling_gbps)
    accepted = f"from {floor}" if ceiling == "-" else f"{floor.removesuffix(' GB/s')} to {ceiling}"
    # NCCL numbers its devices as it lists the HCAs, unless it merges some of them
    named = list(map(str, range(len(verdict.hcas)))) == list(verdict.hosts_per_rail)
    # reasons of the job do not belong to a gate
    gates = {f"{c.name}: {c.sentence}": (c.status, f"{c.name}: {c.reason}") for c in verdict.checks}
    cards, filters = _cards(verdict), {"size": size, "rate": rate, "duration": duration, "share": share}
    return template("busbar.judge.nccl.report", "report.html.j2", gbps=_gbps, **filters).render(
        v=verdict,
        style=style(),
        facts=_facts(verdict, origin),
        word=WORDS[verdict.verdict],
        lead=LEADS[verdict.verdict],
        curves={n: Markup(curve_svg(n, r, inline=True)) for n, r in verdict.collectives.items()},
        reasons=[gates.get(reason, (verdict.verdict, reason)) for reason in verdict.reasons],
        limits="not known" if floor == "-" else accepted,
        rails=[
            (device, verdict.hcas[int(device)] if named else "", count, len(verdict.rails_per_host))
            for device, count in verdict.hosts_per_rail.items()
        ],
        cards=cards,
        fixes=_fixes(verdict, cards),
    )


def _facts(verdict: Verdict, origin: Origin) -> list[tuple[str, str]]:
    """Name and value of each line at the top of the report."""
    wanted = verdict.expectation
    versions = {"NCCL": verdict.nccl_version, "nccl-tests": verdict.tests_version, "network": verdict.plugin}
    return [
        ("log", origin.text(verdict.log_date)),
        ("report", "written " + time.strftime(DATE, time.gmtime())),
        ("judged by", f"busbar {verdict.busbar_version}{f': {origin.command}' if origin.command else ''}"),
        ("profile", str(wanted.get("profile") or "none; the expectation was given by options")),
        (
            "hosts",
            f"{len(verdict.hosts)}: {listed(verdict.hosts, HOSTS_SHOWN)}" if verdict.hosts else "not printed",
        ),
        ("GPU", verdict.gpu or "not printed"),
        ("versions", ", ".join(f"{k} {v}" for k, v in versions.items() if v) or "not printed"),
        *(("remark", remark_text(remark)) for remark in verdict.remarks[:REMARKS_SHOWN]),
    ]


def _gbps(value: float | None) -> str:
    return "-" if value is None else gbps(value)


def _cards(verdict: Verdict) -> list[Diagnosis]:
    """The known failures, the first cause first, without those whose fix another one has already."""
    _, first = first_cause(verdict)
    known = [d for d in verdict.diagnoses if d.severity != "note"]
    known.sort(key=lambda d: d is not first)
    return list({d.next: d for d in reversed(known)}.values())[::-1]


def _fixes(verdict: Verdict, cards: list[Diagnosis]) -> list[str]:
    """The fixes of the gates, each once, without those that a known failure covers already."""
    told = {(d.line, d.evidence) for d in cards}
    covered = {c.fix for c in verdict.checks if (c.line or 0, c.evidence or c.reason) in told}
    fixes = [c.fix for c in verdict.checks if c.status in ("fail", "unknown")]
    return [fix for fix in dict.fromkeys(fixes) if fix and fix not in covered]


def write_html(verdict: Verdict, path: Path | str, origin: Origin) -> None:
    """Write the report to PATH. Raises OSError."""
    write_report(Path(path), render_html(verdict, origin))

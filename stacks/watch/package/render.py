"""The rule files alerts/*.yaml for a site, and the series that their rules and the dashboards read.

With one unreadable port node_exporter serves no InfiniBand series at all (prometheus/node_exporter#3265), and
a rule that compares them would not fire: one rule counts the rails that have every series.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from busbar.models import parse_yaml
from stacks.watch.package.config import Watch

FOLDER = Path(__file__).resolve().parent / "alerts"
PREFIX = "node_infiniband_"
PAGE = "stacks/watch/docs.md"
FILES = ("cluster", "rails", "gpus")
# The only stack.mode with which an alert is made: kube-prometheus-stack has a dead man's switch of its own.
_ONLY_WITH = {"BusbarWatchdog": "existing"}
_NOT_READ = "BusbarRailsNotRead"
_SERIES = re.compile(PREFIX + r"(\w*[a-z])\b")


def groups(watch: Watch) -> list[dict[str, Any]]:
    """The groups of the PrometheusRule: those of the files, with what follows from the configuration."""
    found = [group for name in FILES if watch.dcgm or name != "gpus" for group in written(name)]
    for group in found:
        group |= interval(watch)
        group["rules"] = [
            rule
            for rule in group["rules"]
            if _ONLY_WITH.get(rule.get("alert"), watch.stack.mode) == watch.stack.mode
        ]
        for rule in group["rules"]:
            if alert := rule.get("alert"):
                rule["annotations"]["runbook_url"] = f"{PAGE}#{alert.lower()}"
            if alert == _NOT_READ:
                absent = tuple(f"and on (node, device, port) {name}{{" for name in watch.missing_counters)
                lines = [line for line in rule["expr"].splitlines() if not line.strip().startswith(absent)]
                rule["expr"] = "\n".join(lines)
    return found


def interval(watch: Watch) -> dict[str, str]:
    """How often a Prometheus of others reads an exporter, and evaluates a group of rules.

    Its own default may be minutes, and with one sample in five minutes rate() gives nothing.
    """
    return {"interval": "30s"} if watch.stack.mode == "existing" else {}


def written(name: str) -> list[dict[str, Any]]:
    """The groups of one file as they are there."""
    text = (FOLDER / f"{name}.yaml").read_text(encoding="utf-8")
    found: list[dict[str, Any]] = parse_yaml(text)["groups"]
    return found


def read_of_ports() -> list[str]:
    """The series of a port that a rule or a panel reads; Prometheus stores no others."""
    return sorted(f"{PREFIX}{name}" for name in set(_SERIES.findall(_all_expressions())))


def dcgm_counters() -> str:
    """The fields of DCGM that a rule or a panel reads, as dcgm-exporter's list of counters.

    Where a field has two names, the exporter is asked by the former one: it ends with a name that it does not
    know, and a later one knows both.
    """
    text = _all_expressions().replace("(GET_)?", "GET_")
    rates = set(re.findall(r"(?:rate|increase)\((DCGM_\w+)", text))
    fields = sorted(set(re.findall(r"DCGM_(?:FI|EXP)_\w+", text)))
    return "".join(f"{name}, {'counter' if name in rates else 'gauge'}, {name}\n" for name in fields)


def _all_expressions() -> str:
    files = [*FOLDER.glob("*.yaml"), *FOLDER.with_name("dashboards").glob("*.json")]
    return " ".join(file.read_text(encoding="utf-8") for file in files)

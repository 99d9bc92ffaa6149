"""The rules of the files alerts/*.yaml as groups of a PrometheusRule.

With one unreadable port node_exporter serves no InfiniBand series at all (prometheus/node_exporter#3265), and
a rule that compares them would not fire: one rule counts them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import Field, TypeAdapter

from busbar.models import ConfigModel
from stacks.watch.package.config import Watch

FOLDER = Path(__file__).resolve().parent / "alerts"
PREFIX = "node_infiniband_"
PAGE = "stacks/watch/docs.md"
# The file of a group -> what its alerts are about, where they do not say it.
GROUPS: dict[str, Scope] = {"cluster": "site", "rails": "rail", "gpus": "node"}
Scope = Literal["site", "node", "rail"]
_SCOPES = {
    "site": "{}",
    "node": "({}) and on (node) busbar:node",
    "rail": "({}) and on (node, device, port) busbar:rail and on (node) busbar:node",
}
_EXPECTED = "busbar_node_rails_expected"
_SERIES = re.compile(PREFIX + r"(\w*[a-z])\b")


class Record(ConfigModel):
    """One recording rule, in the form of Prometheus."""

    record: str
    expr: str


class Rule(ConfigModel):
    """One alert.

    `of`: what it is about; of nodes that are not watched (`busbar:node`), and of ports that are not rails
    (`busbar:rail`), it does not fire. `mode`: the only stack.mode with which it is made. `link_layer`: of the
    rails whose series it reads.
    """

    alert: str
    of: Scope | None = None
    mode: str | None = None
    link_layer: Literal["ethernet"] | None = None
    expr: str
    pending: str = Field(alias="for", default="0m")
    severity: Literal["critical", "warning", "info", "none"] = "warning"
    summary: str
    fix: str

    def render(self, group: str) -> dict[str, Any]:
        """The rule in the form of Prometheus."""
        return {
            "alert": self.alert,
            "expr": _SCOPES[self.of or GROUPS[group]].format(self.expr),
            "for": self.pending,
            "labels": {"severity": self.severity},
            "annotations": {
                "summary": self.summary,
                "description": f"Fix: {self.fix}",
                "runbook_url": f"{PAGE}#{self.alert.lower()}",
            },
        }


def groups(watch: Watch) -> list[dict[str, Any]]:
    """The groups of the PrometheusRule: recording rules first, since alerts read them."""
    return [
        {
            "name": f"busbar-{name}",
            "rules": [
                *(each.model_dump() for each in written(name) if isinstance(each, Record)),
                *(each.render(name) for each in rules(name, watch)),
            ],
        }
        for name in GROUPS
        if watch.dcgm or name != "gpus"
    ]


def rules(group: str, watch: Watch) -> list[Rule]:
    """The alerts of one file, in which MISSING stands for the rails of which a series is not read."""
    missing = " or ".join(_missing(watch))
    return [
        rule.model_copy(update={"expr": rule.expr.replace("MISSING", missing)})
        for rule in written(group)
        if isinstance(rule, Rule) and rule.mode in (None, watch.stack.mode)
    ]


@cache
def written(group: str) -> list[Record | Rule]:
    """The rules of one file as they are there."""
    text = (FOLDER / f"{group}.yaml").read_text(encoding="utf-8")
    return TypeAdapter(list[Record | Rule]).validate_python(yaml.safe_load(text))


def series_of_rails(link_layer: str | None) -> set[str]:
    """The series that rules read of a rail of any link layer (None), or only of this one; without prefix."""
    found = [rule for rule in written("rails") if getattr(rule, "link_layer", None) == link_layer]
    return {name for rule in found for name in _SERIES.findall(rule.expr)}


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


def _missing(watch: Watch) -> Iterator[str]:
    """Expressions for the nodes of which a rail lacks a series of those that the rules read."""
    for layer, rails in ((None, _EXPECTED), ("ethernet", f'{_EXPECTED}{{link_layer="ethernet"}}')):
        read = sorted(name for name in series_of_rails(layer) if PREFIX + name not in watch.missing_counters)
        if read:
            names = f'{{__name__=~"{PREFIX}({"|".join(read)})", job="busbar-rails"}}'
            ports = f"count by (node, device, port) ({names} and on (node, device, port) busbar:rail)"
            found = f"count by (node) ({ports} == {len(read)})"
            yield f"{rails} > on (node) ({found} or on (node) {_EXPECTED} * 0)"

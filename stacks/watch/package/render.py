"""The rules of the three files as groups of a PrometheusRule, and the alert on rails that are not read.

With one unreadable port node_exporter serves no InfiniBand series at all (prometheus/node_exporter#3265), and
a rule that compares them would not fire.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import Field, TypeAdapter

from busbar.models import ConfigModel
from stacks.watch.package.config import Watch

FOLDER = Path(__file__).resolve().parent / "alerts"
GROUPS = ("cluster", "rails", "gpus")
PREFIX = "node_infiniband_"
_EXPECTED = "busbar_node_rails_expected"
_SCOPES = {
    "site": "({})",
    "node": "({}) and on (node) busbar:node",
    "rail": "({}) and on (node, device, port) busbar:rail and on (node) busbar:node",
}


class Record(ConfigModel):
    """One recording rule."""

    record: str
    expr: str

    def render(self) -> dict[str, Any]:
        """The rule in the form of Prometheus."""
        return self.model_dump()


class Rule(ConfigModel):
    """One alert.

    `of`: what it is about; of nodes that are not watched (`busbar:node`), and of ports that are not rails
    (`busbar:rail`), it does not fire. `series`: series of a rail, without prefix. `link_layer`: of the rails
    that have them.
    """

    alert: str
    of: Literal["site", "node", "rail"]
    series: list[str] = Field(default=[])
    link_layer: Literal["ethernet"] | None = Field(default=None)
    expr: str
    pending: str = Field(alias="for")
    severity: Literal["critical", "warning", "info"]
    summary: str
    fix: str

    def render(self) -> dict[str, Any]:
        """The rule in the form of Prometheus."""
        return {
            "alert": self.alert,
            "expr": _SCOPES[self.of].format(self.expr),
            "for": self.pending,
            "labels": {"severity": self.severity},
            "annotations": {"summary": self.summary, "description": f"Fix: {self.fix}"},
        }


def groups(watch: Watch) -> list[dict[str, Any]]:
    """The groups of the PrometheusRule: recording rules first, since alerts read them."""
    return [
        {
            "name": f"busbar-{name}",
            "rules": [
                *(each.render() for each in _written(name) if isinstance(each, Record)),
                *(each.render() for each in rules(name, watch)),
            ],
        }
        for name in GROUPS
        if watch.dcgm or name != "gpus"
    ]


def rules(group: str, watch: Watch) -> list[Rule]:
    """The alerts of one file, in which `MISSING` stands for the rails of which a series is not read."""
    missing = " or ".join(_missing(watch))
    return [
        rule.model_copy(update={"expr": rule.expr.replace("MISSING", missing)})
        for rule in _written(group)
        if isinstance(rule, Rule)
    ]


@cache
def _written(group: str) -> list[Record | Rule]:
    text = (FOLDER / f"{group}.yaml").read_text(encoding="utf-8")
    return TypeAdapter(list[Record | Rule]).validate_python(yaml.safe_load(text))


def _missing(watch: Watch) -> Iterator[str]:
    """Expressions for the nodes of which a rail lacks a series of those that the rules read."""
    for layer, rails in ((None, _EXPECTED), ("ethernet", f'{_EXPECTED}{{link_layer="ethernet"}}')):
        read = {
            series
            for rule in _written("rails")
            if isinstance(rule, Rule) and rule.link_layer == layer
            for series in rule.series
            if PREFIX + series not in watch.missing_counters
        }
        if read:
            names = f'{{__name__=~"{PREFIX}({"|".join(sorted(read))})", job="busbar-rails"}}'
            ports = f"count by (node, device, port) ({names} and on (node, device, port) busbar:rail)"
            found = f"count by (node) ({ports} == {len(read)})"
            yield f"{rails} > on (node) ({found} or on (node) {_EXPECTED} * 0)"

"""The rules as their files have them: alerts/*.yaml."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import Field, TypeAdapter

from busbar.models import ConfigModel

FOLDER = Path(__file__).resolve().parent / "alerts"
GROUPS = ("cluster", "rails", "gpus")
PREFIX = "node_infiniband_"
PAGE = "stacks/watch/alerts.md"
_SCOPES = {
    "site": "{}",
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
    (`busbar:rail`), it does not fire. `modes`: the values of stack.mode with which it is made. `series`:
    series of a rail, without prefix. `link_layer`: of the rails that have them.
    """

    alert: str
    of: Literal["site", "node", "rail"]
    modes: list[str] = Field(default=["none", "existing", "install"])
    series: list[str] = Field(default=[])
    link_layer: Literal["ethernet"] | None = Field(default=None)
    expr: str
    pending: str = Field(alias="for")
    severity: Literal["critical", "warning", "info", "none"]
    summary: str
    fix: str

    def render(self) -> dict[str, Any]:
        """The rule in the form of Prometheus."""
        return {
            "alert": self.alert,
            "expr": _SCOPES[self.of].format(self.expr),
            "for": self.pending,
            "labels": {"severity": self.severity},
            "annotations": {
                "summary": self.summary,
                "description": f"Fix: {self.fix}",
                "runbook_url": f"{PAGE}#{self.alert.lower()}",
            },
        }


@cache
def written(group: str) -> list[Record | Rule]:
    """The rules of one file, in which `MISSING` stands for the rails of which a series is not read."""
    text = (FOLDER / f"{group}.yaml").read_text(encoding="utf-8")
    return TypeAdapter(list[Record | Rule]).validate_python(yaml.safe_load(text))


def series(link_layer: str | None) -> set[str]:
    """The series that rules read of a rail of any link layer (None), or only of this one; without prefix."""
    found = [rule for rule in written("rails") if isinstance(rule, Rule) and rule.link_layer == link_layer]
    return {name for rule in found for name in rule.series}

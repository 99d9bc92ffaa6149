"""The alerts of the three files as groups of a PrometheusRule, and alerts on the absence of rails' series.

With one unreadable port node_exporter serves no InfiniBand series at all (prometheus/node_exporter#3265), and
a rule that compares them would not fire. `...Absent` fires if a series of an expected rail is missing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
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
# Every port has this series. If it is missing, so is everything else, and one alert is enough.
STATE = "state_id"
RAILS = "busbar_node_rails_expected"


class Rule(ConfigModel):
    """One alert. `series`: series of a rail, without prefix. `link_layer`: of the rails that have them."""

    alert: str
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
            "expr": self.expr,
            "for": self.pending,
            "labels": {"severity": self.severity},
            "annotations": {"summary": self.summary, "description": f"Fix: {self.fix}"},
        }


def groups(watch: Watch) -> list[dict[str, Any]]:
    """The groups of the PrometheusRule."""
    wanted = [name for name in GROUPS if watch.dcgm or name != "gpus"]
    return [
        {"name": f"busbar-{name}", "rules": [rule.render() for rule in rules(name, watch)]} for name in wanted
    ]


def rules(group: str, watch: Watch) -> list[Rule]:
    """The rules of one file, and then their `...Absent` rules."""
    known = _written(group)
    return [*known, *_absent(known, watch.missing_counters)]


@cache
def _written(group: str) -> list[Rule]:
    return TypeAdapter(list[Rule]).validate_python(yaml.safe_load((FOLDER / f"{group}.yaml").read_text()))


def _absent(known: Sequence[Rule], missing: Sequence[str]) -> Iterator[Rule]:
    layers = {series: rule.link_layer for rule in known for series in rule.series}
    for series, link_layer in layers.items():
        if PREFIX + series not in missing:
            yield _twin(series, link_layer)


def _twin(series: str, link_layer: str | None) -> Rule:
    rails = f'{RAILS}{{link_layer="{link_layer}"}}' if link_layer else RAILS
    expr = f"{rails} > on (node) ({_count(series)} or on (node) {RAILS} * 0)"
    if series != STATE:
        expr = f"({expr}) and on (node) ({_count(STATE)} >= on (node) {RAILS})"
    words = "".join(word.capitalize() for word in series.removesuffix("_total").split("_"))
    return Rule.model_validate(
        {
            "alert": f"BusbarRail{words}Absent",
            "expr": expr,
            "for": "5m",
            "severity": "critical" if series == STATE else "warning",
            "summary": f"{PREFIX}{series} is missing for some of the {{{{ $value }}}} rails of "
            "{{ $labels.node }}",
            "fix": "look for files in /sys/class/infiniband/*/ports/* that cannot be read, and at the pod of "
            f"busbar-rails there. HCAs that lack the counter: add {PREFIX}{series} to missing_counters",
        }
    )


def _count(series: str) -> str:
    return f'count by (node) ({PREFIX}{series}{{job="busbar-rails"}})'

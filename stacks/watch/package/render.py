"""The rules as groups of a PrometheusRule, with what follows from the configuration.

With one unreadable port node_exporter serves no InfiniBand series at all (prometheus/node_exporter#3265), and
a rule that compares them would not fire: one rule counts them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from stacks.watch.package.config import Watch
from stacks.watch.package.rules import GROUPS, PREFIX, Record, Rule, series, written

_EXPECTED = "busbar_node_rails_expected"


def groups(watch: Watch) -> list[dict[str, Any]]:
    """The groups of the PrometheusRule: recording rules first, since alerts read them."""
    return [
        {
            "name": f"busbar-{name}",
            "rules": [
                *(each.render() for each in written(name) if isinstance(each, Record)),
                *(each.render() for each in rules(name, watch)),
            ],
        }
        for name in GROUPS
        if watch.dcgm or name != "gpus"
    ]


def rules(group: str, watch: Watch) -> list[Rule]:
    """The alerts of one file."""
    missing = " or ".join(_missing(watch))
    return [
        rule.model_copy(update={"expr": rule.expr.replace("MISSING", missing)})
        for rule in written(group)
        if isinstance(rule, Rule) and watch.stack.mode in rule.modes
    ]


def _missing(watch: Watch) -> Iterator[str]:
    """Expressions for the nodes of which a rail lacks a series of those that the rules read."""
    for layer, rails in ((None, _EXPECTED), ("ethernet", f'{_EXPECTED}{{link_layer="ethernet"}}')):
        read = sorted(name for name in series(layer) if PREFIX + name not in watch.missing_counters)
        if read:
            names = f'{{__name__=~"{PREFIX}({"|".join(read)})", job="busbar-rails"}}'
            ports = f"count by (node, device, port) ({names} and on (node, device, port) busbar:rail)"
            found = f"count by (node) ({ports} == {len(read)})"
            yield f"{rails} > on (node) ({found} or on (node) {_EXPECTED} * 0)"

"""The result of preflight for terminal output: a table of hosts, and one line per finding."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from rich.table import Table

from busbar.finding import Finding
from busbar.preflight.spec import Spec
from busbar.preflight.survey import Outcome
from busbar.text import counted


def lines(findings: Iterable[Finding]) -> Iterator[tuple[str, str]]:
    """(kind, "<hosts>: <what>. Fix: <fix>"), errors first, equal findings of several hosts joined."""
    hosts: dict[Finding, list[str]] = {}
    for each in findings:
        hosts.setdefault(replace(each, path=(), unreachable=False), []).append(each.host)
    # sorted() is stable, and "error" sorts before "warning".
    for each, names in sorted(hosts.items(), key=lambda item: item[0].kind):
        yield each.kind, each.at(", ".join(dict.fromkeys(names)))


def summary(spec: Spec, outcome: Outcome) -> str:
    """One line with the number of hosts that passed, and of those that were checked before."""
    total, failed = len(spec.hosts), len({finding.host for finding in outcome.errors})
    before = "" if outcome.queried == total else f" ({total - outcome.queried} checked before)"
    if failed:
        return f"preflight failed on {failed} of {total} hosts; no changes made{before}"
    return f"preflight passed on {counted(total, 'host')}{before}"


def data(spec: Spec, outcome: Outcome) -> dict[str, Any]:
    """The result as plain data: `{"ready", "hosts": [...], "findings": [...]}`.

    A host has name, role, pool, address, ready and facts; a finding host, kind, what and fix.
    """
    errors = {finding.host for finding in outcome.errors}
    hosts = [
        {
            "name": host.name,
            "role": spec.role_of(host),
            "pool": host.pool,
            "address": host.address,
            "ready": host.name not in errors,
            "facts": outcome.facts(host.name),
        }
        for host in spec.hosts
    ]
    findings = [each.data() for each in outcome.findings]
    return {"ready": not errors, "hosts": hosts, "findings": findings}


def table(spec: Spec, outcome: Outcome, nodes: Mapping[str, str] | None = None) -> Table:
    """A row per host: role, address, hardware, whether it is ready. `nodes`: the states of their Nodes.

    A state of several words is not in its row (`states`).
    """
    errors = {finding.host for finding in outcome.errors}
    # Only sites with RoCE have the column.
    roce = ("RoCE",) if any(record.facts.get("roce") for record in outcome.records.values()) else ()
    result = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0))
    last = ("ready",) if nodes is None else ("no error", "Node")
    for title in ("host", "role", "address", "system", "GPUs", "rails", *roce, "driver", *last):
        result.add_column(title)
    for host in spec.hosts:
        facts = outcome.facts(host.name)
        result.add_row(
            host.name,
            f"{spec.role_of(host)} {host.pool or ''}".rstrip(),
            host.address,
            str(facts.get("os", "")),
            f"{facts['gpus']} x {facts['gpu_model']}" if "gpus" in facts else "",
            ", ".join(facts.get("rails", ())),
            *(["; ".join(facts.get("roce", ()))] if roce else []),
            str(facts.get("driver", "")),
            "[red]no[/red]" if host.name in errors else "[green]yes[/green]",
            *(() if nodes is None else (nodes[host.name] if _is_short(nodes[host.name]) else "see below",)),
        )
    return result


def states(nodes: Mapping[str, str]) -> Iterator[str]:
    """The lines below the table, for states that are not in it."""
    return (f"{name}: {state}" for name, state in nodes.items() if not _is_short(state))


def _is_short(state: str) -> bool:
    return " " not in state

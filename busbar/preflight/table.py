"""The result of preflight as a table for the terminal."""

from __future__ import annotations

from rich.table import Table

from busbar.preflight.spec import Spec
from busbar.preflight.survey import Outcome


def table(spec: Spec, outcome: Outcome) -> Table:
    """One row a host: what it is, what it has, and whether it is fit."""
    errors = {finding.host for finding in outcome.errors}
    result = Table()
    for title in ("host", "role", "address", "system", "GPUs", "rails", "driver", "fit"):
        result.add_column(title, no_wrap=title in ("host", "address", "fit"))
    for target in spec.hosts:
        host = outcome.passed.get(target.name)
        facts = host.facts if host else {}
        result.add_row(
            target.name,
            f"{target.role} {target.pool}" if target.pool else target.role,
            target.address,
            str(facts.get("os", "")),
            f"{facts['gpus']} x {facts['gpu_model']}" if "gpus" in facts else "",
            ", ".join(facts.get("rails", ())),
            str(facts.get("driver", "")),
            "[red]no[/red]" if target.name in errors else "[green]yes[/green]",
        )
    return result

"""Stress of each node alone by DCGM, on all nodes at once."""

from __future__ import annotations

from typing import Any

from stacks.accept.package.evidence import PRINTED, Printed, write_json
from stacks.accept.package.stages.collectives import free_nodes
from stacks.accept.package.stages.measuring import measure_on
from stacks.accept.package.stages.running import Planned, Running

# Level 3 takes 15 minutes; the script ends it after 45.
PLANNED_SECONDS, SECONDS = 900, 2800
MISSING = "dcgmi is not installed"


def stress(on: Running) -> dict[str, str]:
    """Run dcgmi diag on the nodes of each pool whose GPUs are free, and were not taken meanwhile."""
    found, notes = Printed(run=on.run, hosts={}), {}
    for name, pool in on.site.pools.items():
        if not pool.workers:
            notes[name] = "every worker is in quarantine"
            continue
        printed = measure_on(on, free_nodes(on, name), "stress", SECONDS)
        errors = [str(each.get("error")) for each in printed.hosts.values()]
        if errors and all(error.startswith(MISSING) for error in errors):
            notes[name] = f"no DCGM: {errors[0]}"
        taken: dict[str, Any] = {"error": "a pod took GPUs of the node meanwhile", "diag": ""}
        kept = free_nodes(on, name, wait=False)
        found.hosts.update({node: each if node in kept else taken for node, each in printed.hosts.items()})
        found.failed.update(printed.failed)
    write_json(on.at("stress") / PRINTED, found.model_dump(mode="json"))
    return notes


STAGE = Planned("stress", stress, True, lambda nodes: PLANNED_SECONDS, logs_in=True)

"""Stress of each node alone by DCGM, on all nodes at once: DCGM of the hosts, or of an image."""

from __future__ import annotations

from typing import Any

from stacks.accept.package.evidence import DCGM_IMAGE, PRINTED, Evidence, Printed, write_json
from stacks.accept.package.stages.collectives import free_nodes
from stacks.accept.package.stages.dcgm import in_pods
from stacks.accept.package.stages.measuring import measure_on
from stacks.accept.package.stages.running import Planned, Running

# Level 3 takes 15 minutes; the script ends it after 45.
PLANNED_SECONDS, SECONDS = 900, 2800
MISSING = "dcgmi is not installed"


def stress(on: Running) -> dict[str, str]:
    """Run dcgmi diag on the nodes of each pool whose GPUs are free, and were not taken meanwhile."""
    found, notes = Printed(run=on.run, hosts={}), {}
    image = Evidence(on.folder).begun.options.get(DCGM_IMAGE)
    for number, (name, pool) in enumerate(on.site.pools.items()):
        if not pool.workers:
            notes[name] = "every worker is in quarantine"
        elif not (image or on.logs_in):
            notes[name] = f"no login, and no --{DCGM_IMAGE}"
        if name in notes:
            continue
        printed = in_pods(on, number, name, image) if image else _on_hosts(on, name)
        errors = [str(each.get("error")) for each in printed.hosts.values()]
        if errors and all(error.startswith(MISSING) for error in errors):
            notes[name] = f"no DCGM{f' in {image}' if image else ''}: {errors[0]}"
        found.hosts.update(printed.hosts)
        found.failed.update(printed.failed)
    write_json(on.at("stress") / PRINTED, found.model_dump(mode="json"))
    return notes


def _on_hosts(on: Running, pool: str) -> Printed:
    printed = measure_on(on, free_nodes(on, pool), "stress", SECONDS)
    taken: dict[str, Any] = {"error": "a pod took GPUs of the node meanwhile", "diag": ""}
    kept = free_nodes(on, pool, wait=False)
    hosts = {node: each if node in kept else taken for node, each in printed.hosts.items()}
    return printed.model_copy(update={"hosts": hosts})


STAGE = Planned("stress", stress, True, lambda nodes: PLANNED_SECONDS)

"""A new release of busbar at a running site: it replaces, deletes, restarts and measures nothing.

The states are of revision 84223d6 (earlier_states/configurations.py). The program of this checkout updates
each of them on the real engine, with Commands that do nothing (earlier_states/plugins.py) and the official
Kubernetes provider, on an API server that has the objects of the state.

How to read a failure: each line is a finding, "KIND RESOURCE: DETAIL".
- replaced, deleted: the engine would run the `delete` of the resource; that of a `-removal` uninstalls its
  host, and a job that is replaced measures again. A resource with another name, type or parent needs an alias
  with the old one (pulumi.Alias). One with other triggers is replaced, so triggers stay as they are.
- measured, judged: a job of another name, or a collecting Command with other inputs. It would run when the
  evidence is gone, and lose the verdict.
- host: another value or file of a script that restarts a service when it differs, so K3s restarts.
- restarted: the script of this checkout restarts the service on a host that the script of 84223d6 installed
  (a folder: earlier_states/host.py). It writes another unit or file, or hashes or records something else.
- changed: another object in the cluster, or another version or other values of a chart.
- failed: the update itself, with what the engine printed. Its other findings may be only those until then.

ALLOWED takes an entry only if what it allows does nothing at a running site, and the entry says why that is
so. It takes none because a change is wanted: such a change needs a way that keeps the resource.

New states are made by earlier_states/make.py.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from busbar.hosts import scripts
from busbar.manifests.scheduling import HCA_CHECK
from tests.engine.earlier_states import findings, make
from tests.engine.earlier_states.findings import Finding
from tests.engine.earlier_states.host import FolderHost
from tests.engine.earlier_states.make import State
from tests.engine.earlier_states.stack import CORE, TRAINING, Checkout
from tests.support.api_server import ApiServer
from tests.support.engine import PROJECT


@dataclass(frozen=True)
class Allowed:
    """Findings whose line matches `line` as a whole, and why they do nothing at a site."""

    line: str
    why: str


ALLOWED = (
    Allowed(
        r"deleted control-plane-stale-nodes: command:remote:Command",
        "a Command without a `delete`: the local one of this name finds the same Nodes through the API",
    ),
    Allowed(
        r"deleted control-plane-key-(prepare|rotate|reencrypt)-[^:]*: command:remote:Command",
        "a Command without a `delete`: `busbar rotate` has the rotation of the key of Secrets now",
    ),
    Allowed(
        r"host control-plane-[^:]*: ROTATE_ENCRYPTION_KEY: missing now",
        "no script reads it: the hosts keep no number of that rotation, and none is lower than before",
    ),
    Allowed(
        r"host worker-[^:]*: TURN_SECONDS: missing now",
        "no script reads it: agents restart in batches of the engine's graph",
    ),
)
STATES, SCRIPTS = make.read()
# One of each kind: server 1 begins the cluster, the others join it.
HOSTS = ("control-plane-server-1", "control-plane-server-2", "worker-gpu-1")


UPDATED: dict[str, State] = {}
"""States of the core, as this checkout leaves them: stacks/training begins on one of them."""


def _update(name: str, folder: Path, server: ApiServer) -> Iterator[Finding]:
    earlier = STATES[name]
    core_name = earlier.get("core", name)
    core = STATES[core_name]
    checkout = Checkout(PROJECT, folder, server)
    checkout.tell(core["cluster"])
    if earlier is not core and core_name in UPDATED:
        _create(checkout, CORE, {**core, "state": UPDATED[core_name]})
    else:
        _create(checkout, CORE, core)
        found = list(_findings(checkout, CORE, core))
        UPDATED[core_name] = checkout.export(CORE)
        if earlier is core:
            yield from found
            return
    _create(checkout, TRAINING, earlier)
    yield from _findings(checkout, TRAINING, earlier)


def _create(checkout: Checkout, place: str, earlier: State) -> None:
    checkout.create(place, earlier["configuration"])
    checkout.load(place, earlier["state"])


def _findings(checkout: Checkout, place: str, earlier: State) -> Iterator[Finding]:
    steps, error = checkout.up(place)
    if error:
        yield Finding("failed", place, error)
    before, after = earlier["state"], checkout.export(place)
    yield from findings.of_update(before, steps, after)
    if place == CORE:
        yield from _restarts(findings.read(before), findings.read(after), checkout.folder / "hosts")


def _restarts(before: findings.State, after: findings.State, folder: Path) -> Iterator[Finding]:
    """Services that the script of this checkout restarts on a host that the earlier one has installed."""
    for old in before.values():
        if old.name not in HOSTS:
            continue
        new, host = after[old.identity], FolderHost(folder / old.name)
        host.install(SCRIPTS[old.script], old.values, old.line)
        for service in host.install(scripts.text(new.script), new.values, new.line):
            yield Finding("restarted", old.name, service)


def _allowed(finding: Finding) -> bool:
    return any(re.fullmatch(each.line, str(finding)) for each in ALLOWED)


@pytest.mark.parametrize("name", sorted(STATES))
def test_a_new_release_replaces_deletes_restarts_and_measures_nothing(
    name: str, tmp_path: Path, server: ApiServer
) -> None:
    unexpected = sorted({str(found) for found in _update(name, tmp_path, server) if not _allowed(found)})
    assert not unexpected, "\n" + "\n".join(unexpected)


def test_a_running_site_has_the_check_of_its_hcas_in_the_next_measurement(
    tmp_path: Path, server: ApiServer
) -> None:
    """The check is not in the name of a job, and the engine ignores it in a job that has its name."""
    earlier = STATES["new"]
    checkout = Checkout(PROJECT, tmp_path, server)
    checkout.tell(earlier["cluster"])
    _create(checkout, CORE, earlier)
    checkout.edit(CORE, "    ssh:\n", "    validation: {run: 2}\n    ssh:\n")
    checkout.up(CORE)  # The plugin has no verdict on another job: the update fails after this one is made.
    [job] = [each for each in checkout.export(CORE)["deployment"]["resources"] if "MPIJob" in each["type"]]
    [container] = job["inputs"]["spec"]["mpiReplicaSpecs"]["Worker"]["template"]["spec"]["containers"]
    assert container["command"][-1].startswith(HCA_CHECK)
    assert [each["name"] for each in container["env"]] == ["BUSBAR_NODE"]

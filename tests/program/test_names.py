"""Names of resources, two clusters in one program, and what lies in a cluster."""

from __future__ import annotations

import json
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

from busbar import names
from tests.program.answers import healthy, performed
from tests.program.harness import Run, run_program
from tests.support.clusters import all_operators, host, site

TWO = """
import json
from pathlib import Path

import pulumi

from busbar.components.cluster import Cluster

FOLDER = Path(__file__).resolve().parent


async def main() -> None:
    for name in ("east", "west"):
        config = json.loads((FOLDER / f"{name}.json").read_text())
        cluster = Cluster(name, data=config, secrets={}, project=FOLDER)
        cluster.check_at_the_end()
        pulumi.export(name, cluster.outputs["cluster_id"])
        await cluster.finish()


pulumi.run(main)
"""


@pytest.fixture(scope="module")
def run() -> Run:
    cluster = site(load_balancers=2, servers=3, workers={"a": 2, "b": 1}, **all_operators(enabled=True))
    cluster["hosts"]["nfs_server"] = host("nfs-1", "192.0.2.30")
    done = run_program({**cluster, "nfs_server": {"folder": "/srv/busbar"}}, healthy(cluster))
    assert done.error is None
    return done


def test_two_clusters_fit_into_one_program(tmp_path: Path) -> None:
    (tmp_path / "__main__.py").write_text(TWO)
    cluster = site(servers=3, workers={"a": 2}, **all_operators(enabled=True))
    for name in ("east", "west"):
        (tmp_path / f"{name}.json").write_text(json.dumps({**cluster, "name": name}))
    done = run_program(cluster, healthy(cluster), program=tmp_path / "__main__.py", project="mine")
    assert done.error is None
    made = [each.name for each in done.resources.values() if each.type != "pulumi:pulumi:Stack"]
    assert [name for name in made if not name.startswith(("east", "west"))] == []
    east, west = (
        sorted(name.removeprefix(own) for name in made if name.startswith(own)) for own in ("east", "west")
    )
    assert east == west
    assert done.outputs["east"] != done.outputs["west"]
    assert len(done.of_type("kubernetes:helm.sh/v3:Release")) == 6


def test_a_host_may_have_the_name_of_any_step() -> None:
    cluster = site(load_balancers=2, servers=3, workers={"a": 2})
    plain = run_program(cluster, healthy(cluster))
    renamed: dict[str, Any] = deepcopy(cluster)
    names_of = {"workers": "gpu-1-removal", "servers": "nodes", "load_balancers": "lb-1-packages"}
    for group, name in names_of.items():
        renamed["hosts"][group][1]["name"] = name
    done = performed(renamed)
    assert len(done.resources) == len(plain.resources)
    hosts = {each["name"] for group in names_of for each in renamed["hosts"][group]}
    assert {names.host_of(name) for name in names.installations([r.name for r in done.custom])} == hosts


def test_every_name_that_acts_on_a_host_begins_with_the_constant_of_the_program(run: Run) -> None:
    on_hosts = [each.name for each in run.custom if names.host_of(each.name)]
    assert len(on_hosts) == 2 * 9
    assert [name for name in on_hosts if not name.startswith(f"{names.CLUSTER}-")] == []
    assert sum(map(names.is_removal, on_hosts)) == len(names.installations(on_hosts)) == 9

"""A renamed stack, project and cluster, with the real engine: nothing is replaced or deleted.

The core and stacks/training begin with states of an earlier release, in which a name identified the cluster.
"""

from __future__ import annotations

import pytest
import yaml

from tests.engine.earlier_states import findings, make
from tests.engine.earlier_states.configurations import STACK
from tests.engine.earlier_states.stack import CONSUMER, CORE, PLACES, TRAINING, WATCH, Checkout
from tests.support.api_server import ApiServer
from tests.support.engine import PROJECT

STATES, _ = make.read()
PROJECTS = {CORE: "other", TRAINING: "other-training", WATCH: "other-watch", CONSUMER: "other-consumer"}
OF_CLUSTER = f"organization/busbar/{STACK}"


def _stack(project: str, **values: object) -> str:
    config = {f"{project}:{key}": value for key, value in values.items()}
    return yaml.safe_dump({"encryptionsalt": make.SALT, "config": config})


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory, server: ApiServer) -> Checkout:
    """All four programs on one cluster, as this checkout leaves them after an update."""
    checkout = Checkout(PROJECT, tmp_path_factory.mktemp("renamed"), server)
    core, training = STATES["partial"], STATES["training-plain"]
    checkout.tell(core["cluster"])
    for place, earlier in ((CORE, core), (TRAINING, training)):
        checkout.create(place, earlier["configuration"])
        checkout.load(place, earlier["state"])
    watch = {"cluster": OF_CLUSTER, "stack": {"mode": "install"}}
    checkout.create(WATCH, _stack("busbar-watch", watch=watch))
    checkout.create(CONSUMER, _stack("busbar-consumer", cluster=OF_CLUSTER, namespace="jobs"))
    for place in PLACES:
        _, error = checkout.up(place)
        assert not error, error
    return checkout


def test_a_renamed_stack_project_and_cluster_replace_and_delete_nothing(site: Checkout) -> None:
    for place, project in PROJECTS.items():
        site.rename(place, "renamed", project)
        if place != CORE:
            site.edit(place, OF_CLUSTER, "organization/other/renamed")
    # The example reads the keys of its project.
    site.edit(CONSUMER, "busbar-consumer:", f"{PROJECTS[CONSUMER]}:")
    site.edit(CORE, "name: partial", "name: also-renamed")
    done = {place: site.up(place) for place in PLACES}
    errors = [error for _, error in done.values() if error]
    assert not errors, "\n".join(errors)
    changed = [
        f"{place} {step.operation} {step.urn.rpartition('::')[2]}"
        for place, (steps, _) in done.items()
        for step in steps
        if step.operation not in findings.HARMLESS and "StackReference" not in step.urn
    ]
    assert changed == []
    ready = findings.outputs(findings.read(site.export(CONSUMER)))["training_ready"]
    assert ready["cluster"] == "also-renamed"

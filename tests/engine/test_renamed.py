"""A renamed stack, project and cluster, with the real engine: nothing is replaced or deleted."""

import json

import pytest

from tests.support.api_server import ApiServer
from tests.support.clusters import site as configured
from tests.support.engine_site import CONSUMER, CORE, HARMLESS, PLACES, STACK, TRAINING, WATCH, EngineSite

PROJECTS = {CORE: "other", TRAINING: "other-training", WATCH: "other-watch", CONSUMER: "other-consumer"}
OF_CLUSTER = f"organization/busbar/{STACK}"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory, server: ApiServer) -> EngineSite:
    """All four programs on one cluster, after an update."""
    made, cluster = EngineSite(tmp_path_factory.mktemp("renamed"), server), configured(name="as-made")
    made.tell(cluster)
    training = {"cluster": OF_CLUSTER, "multus": {"enabled": False}, "proof": {"backend": "gloo"}}
    watch = {"cluster": OF_CLUSTER, "stack": {"mode": "install"}}
    made.create(CORE, {"busbar:cluster": cluster})
    made.create(TRAINING, {"busbar-training:training": training})
    made.create(WATCH, {"busbar-watch:watch": watch})
    consumer = {"cluster": OF_CLUSTER, "namespace": "default"}
    made.create(CONSUMER, {f"busbar-consumer:{key}": value for key, value in consumer.items()})
    for place in PLACES:
        _, error = made.up(place)
        assert not error, error
        made.put_objects(made.export(place))
    return made


def test_a_renamed_stack_project_and_cluster_replace_and_delete_nothing(site: EngineSite) -> None:
    for place, project in PROJECTS.items():
        site.rename(place, "renamed", project)
        if place != CORE:
            site.edit(place, OF_CLUSTER, "organization/other/renamed")
    # The example reads the keys of its project.
    site.edit(CONSUMER, "busbar-consumer:", f"{PROJECTS[CONSUMER]}:")
    site.edit(CORE, "name: as-made", "name: also-renamed")
    done = {place: site.up(place) for place in PLACES}
    errors = [error for _, error in done.values() if error]
    assert not errors, "\n".join(errors)
    changed = [
        f"{place} {step.operation} {step.name}"
        for place, (steps, _) in done.items()
        for step in steps
        if step.operation not in HARMLESS and "StackReference" not in step.urn
    ]
    assert changed == []
    outputs = json.loads(site.pulumi(CONSUMER, "stack", "output", "--json"))
    assert outputs["training_ready"]["cluster"] == "also-renamed"

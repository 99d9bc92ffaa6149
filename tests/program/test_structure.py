"""Names and parents of resources, what is deleted with what, and two clusters in one program."""

import json
import re
from collections import Counter
from copy import deepcopy
from pathlib import Path

import pytest

from busbar import names
from busbar.hosts import scripts
from busbar.manifests.image_pull import ImagePull
from busbar.operations.preparation import Preparation
from busbar.operations.removal import HostRemoval, Teardown
from tests.program.answers import healthy, performed
from tests.program.harness import COMMAND, LOCAL, PROVIDER, Run, run_program
from tests.support.clusters import H100_POOL, all_operators, site

# The namespace is shared by the measurements of all pools, whose images are pulled before these begin.
OF_THE_FABRIC = {"busbar-nccl-namespace", "busbar-nccl-a-image", "busbar-nccl-b-image"}


@pytest.fixture(scope="module")
def run() -> Run:
    return performed(site(load_balancers=2, workers={"a": 2, "b": 1}, **all_operators(enabled=True)))


def test_every_resource_belongs_to_the_component_whose_name_it_begins_with(run: Run) -> None:
    for resource in run.custom:
        parent = run.resources[resource.request.parent]
        # The provider serves all components, and tokens are made before preflight.
        if resource.name == "busbar-kubernetes" or resource.type.endswith(":RandomPassword"):
            assert parent.type == "busbar:index:Cluster"
        elif resource.name in OF_THE_FABRIC:
            assert parent.type == "busbar:index:FabricValidation"
        else:
            assert parent.type.startswith("busbar:index:")
            # A worker's name has no pool in it, so that it may move to another one.
            stem = "busbar-worker" if parent.type.endswith(":InfiniBandWorkerPool") else parent.name
            assert resource.name.startswith((f"{stem}-", f"{stem}@"))


def test_only_the_cluster_is_at_the_top_and_every_component_registers_its_outputs(run: Run) -> None:
    [cluster] = run.of_type("busbar:index:Cluster")
    [stack] = run.of_type("pulumi:pulumi:Stack")
    top = [each.name for each in run.resources.values() if each.request.parent == stack.urn]
    assert top == [cluster.name]
    components = [r for r in run.resources.values() if r.type.startswith("busbar:")]
    assert [c.name for c in components if not run.registered_outputs.get(c.urn)] == []


def test_everything_on_the_cluster_uses_the_one_provider_and_is_deleted_with_server_1(run: Run) -> None:
    [provider] = run.of_type(PROVIDER)
    objects = [r for r in run.custom if r.type.startswith("kubernetes:")]
    assert objects
    assert [o.name for o in objects if not o.request.provider.startswith(provider.urn)] == []
    first = run.named("busbar-control-plane-removal@server-1")
    gone = {each.name for each in run.custom if each.request.deletedWith == first.urn}
    assert gone == {each.name for each in run.custom if each.type.startswith(("kubernetes:", PROVIDER))}


def test_neither_a_new_kubeconfig_nor_another_name_replaces_what_is_on_the_cluster(run: Run) -> None:
    [identifier] = {run.values(name)["INSTALL_ID"] for name in HOSTS}
    provider = run.named("busbar-kubernetes").inputs
    assert provider["clusterIdentifier"] == run.outputs["cluster_id"] == identifier


def test_every_connection_pins_the_host_key_is_tried_three_times_and_gets_no_earlier_output(run: Run) -> None:
    for command in run.of_type(COMMAND):
        connection = command.inputs["connection"]
        assert connection["hostKey"].startswith("ssh-ed25519 ")
        assert connection["dialErrorLimit"] == 3
        assert 3 * connection["perDialTimeout"] < 60
    assert all(c.inputs["addPreviousOutputInEnv"] is False for c in run.of_type(COMMAND))


def test_an_object_of_an_interrupted_update_is_adopted_and_a_namespace_claimed_before(run: Run) -> None:
    assert run.named("busbar-kubernetes").inputs["upsertExistingObjects"] == "true"
    namespaces = run.of_type("kubernetes:core/v1:Namespace")
    assert len(namespaces) == 4
    for each in namespaces:
        assert list(each.request.hooks.before_create) == [f"{each.name}-claim"]


HOSTS = (
    *("busbar-load-balancer@lb-1", "busbar-load-balancer@lb-2"),
    *("busbar-control-plane@server-1", "busbar-control-plane@server-2", "busbar-control-plane@server-3"),
    *("busbar-worker@gpu-1", "busbar-worker@gpu-2", "busbar-worker@gpu-3"),
)


@pytest.mark.parametrize("host", HOSTS)
def test_the_removal_of_a_host_is_recorded_before_its_installation(run: Run, host: str) -> None:
    """So a replacement removes nothing, and a deletion does not need the engine to reach the host."""
    removal = run.removal(host)
    assert run.waits_for(run.named(host), removal) and not run.waits_for(removal, run.named(host))
    assert "delete" not in run.named(host).inputs
    assert removal.inputs["delete"].endswith("-m busbar remove host")
    HostRemoval.model_validate_json(removal.inputs["stdin"])


def test_the_preparation_is_a_request_that_the_command_understands(run: Run) -> None:
    asked = Preparation.model_validate_json(run.named("busbar-prepare").inputs["stdin"])
    assert [host.role for host in asked.hosts] == ["lb"] * 2 + ["server"] * 3 + ["worker"] * 3
    assert asked.values["lb"] == {"PACKAGES": "haproxy keepalived"}
    installed = run.values("busbar-worker@gpu-1")
    assert asked.values["worker"] == {key: installed[key] for key in asked.values["worker"]}
    assert {"VERSION", "URL_AMD64", "SHA256_AMD64", "IMAGES"} <= asked.values["worker"].keys()


def test_whether_a_host_is_gone_is_asked_of_other_hosts_than_itself(run: Run) -> None:
    fronts, servers = ["lb-1", "lb-2"], ["server-1", "server-2", "server-3"]
    for name, others in (
        ("busbar-control-plane@server-2", [*fronts, "server-1", "server-3"]),
        ("busbar-worker@gpu-1", [*fronts, *servers]),
    ):
        removal = HostRemoval.model_validate_json(run.removal(name).inputs["stdin"])
        assert [other.name for other in removal.others] == others


def test_a_destroy_tells_the_servers_first_and_the_next_update_takes_it_back(run: Run) -> None:
    teardown = run.named("busbar-control-plane-teardown")
    cluster = run.outputs["cluster_id"]
    assert Teardown.model_validate_json(teardown.inputs["stdin"]).install_id == cluster
    assert f"INSTALL_ID={cluster} " in run.named("busbar-control-plane-nodes").inputs["create"]
    for number in (1, 2, 3):
        assert run.waits_for(teardown, run.removal(f"busbar-control-plane@server-{number}"))
    assert not teardown.request.deletedWith
    told = [each.name for each in run.of_type(LOCAL) if "remove keep" in each.inputs.get("create", "")]
    assert told == ["busbar-control-plane-teardown"]


def test_preflight_the_preparation_and_the_collectors_are_given_their_previous_result(run: Run) -> None:
    """Hosts that passed or are prepared are left out, and a verdict whose log is gone stays."""
    told = {each.name for each in run.of_type(LOCAL) if each.inputs["addPreviousOutputInEnv"]}
    hosts = {"busbar-preflight-hosts", "busbar-prepare"}
    assert told == hosts | {"busbar-nccl-a-collect", "busbar-nccl-b-collect"}


def test_requests_are_written_in_one_order_so_that_the_same_request_is_the_same_text(run: Run) -> None:
    for command in run.of_type(LOCAL):
        text = command.inputs["stdin"]
        assert text == json.dumps(json.loads(text), sort_keys=True), command.name


def test_every_step_on_a_host_and_every_removal_has_the_time_that_it_may_need(run: Run) -> None:
    for step in run.of_type(COMMAND):
        found = re.search(r"timeout -k \d+ (\d+) ", step.inputs["create"])
        assert found and 900 <= int(found[1]) <= 1200, step.name
    removals = {name: run.request(names.removal_of(name)) for name in HOSTS}
    assert [each["script"] for each in removals.values()] == ["haproxy"] * 2 + ["k3s-server"] * 3 + [
        "k3s-agent"
    ] * 3
    assert {each["timeout_seconds"] for each in removals.values()} <= {600, 900}


def test_without_validation_there_is_no_job_and_no_pull_of_its_image_and_the_update_succeeds() -> None:
    run = performed(site(validation={"enabled": False}))
    assert not [r for r in run.custom if "MPIJob" in r.type or "pull-image" in r.inputs.get("create", "")]
    assert run.outputs["nccl_passed"] is False


@pytest.mark.slow
def test_440_workers_in_ten_pools_need_at_most_two_resources_and_two_ssh_commands_each() -> None:
    cluster = site(workers={f"pool-{i}": 44 for i in range(10)})
    run = performed(cluster)
    parents = [run.resources[each.request.parent].type for each in run.custom]
    assert sum(parent.endswith(":InfiniBandWorkerPool") for parent in parents) <= 2 * 440
    commands = Counter(r.inputs["connection"]["host"] for r in run.of_type(COMMAND) if r.inputs.get("create"))
    assert max(commands[h["address"]] for h in cluster["hosts"]["workers"]) <= 2


def test_what_a_worker_runs_is_not_in_the_state_and_comes_again_where_it_is_lost(run: Run) -> None:
    worker = run.named("busbar-worker@gpu-1")
    [line] = worker.inputs["stdin"].splitlines()
    assert sorted(json.loads(line)) == ["config", "registries"]
    assert scripts.identity("k3s-agent") in worker.inputs["create"], "a changed script runs"
    assert any("delivery" in hook for hook in worker.request.hooks.on_error)


def test_each_pool_is_measured_with_its_own_hardware() -> None:
    pools = {"a": H100_POOL, "b": {**H100_POOL, "gpus": 4, "rails": 4}}
    run = performed(site(workers={"a": 2, "b": 2}, pools=pools))
    slots = [run.named(f"busbar-nccl-{pool}-job").inputs["spec"]["slotsPerWorker"] for pool in pools]
    assert slots == [8, 4]


@pytest.mark.parametrize(("pool", "nodes"), [("a", ["gpu-1", "gpu-2"]), ("b", ["gpu-3"])])
def test_the_image_of_a_measurement_is_pulled_on_its_workers(run: Run, pool: str, nodes: list[str]) -> None:
    command = run.named(f"busbar-nccl-{pool}-image")
    pull = ImagePull.model_validate_json(command.inputs["stdin"])
    replicas = run.named(f"busbar-nccl-{pool}-job").inputs["spec"]["mpiReplicaSpecs"]
    workers = replicas["Worker"]["template"]["spec"]
    assert command.inputs["create"].endswith("-m busbar nccl pull-image")
    assert (pull.pool, list(pull.nodes)) == (pool, nodes)
    assert pull.image == workers["containers"][0]["image"]


def test_pods_are_offered_the_rails_of_preflight_by_their_pci_addresses(run: Run) -> None:
    config = run.named("busbar-network-operator-policy").inputs["spec"]["sriovDevicePlugin"]["config"]
    assert '"pciAddresses": ["0000:1b:00.0"]' in config


def test_every_name_that_acts_on_a_host_begins_with_the_constant_of_the_program(run: Run) -> None:
    on_hosts = [each.name for each in run.custom if names.host_of(each.name)]
    assert [name for name in on_hosts if not name.startswith(f"{names.CLUSTER}-")] == []
    assert len(on_hosts) == 2 * len(HOSTS)
    assert sum(map(names.is_removal, on_hosts)) == len(names.installations(on_hosts)) == len(HOSTS)


def test_a_host_may_have_the_name_of_any_step() -> None:
    cluster = site(load_balancers=2, servers=3, workers={"a": 2})
    plain = run_program(cluster, healthy(cluster))
    renamed = deepcopy(cluster)
    names_of = {"workers": "gpu-1-removal", "servers": "nodes", "load_balancers": "lb-1-packages"}
    for group, name in names_of.items():
        renamed["hosts"][group][1]["name"] = name
    done = performed(renamed)
    assert len(done.resources) == len(plain.resources)
    hosts = {each["name"] for group in names_of for each in renamed["hosts"][group]}
    assert {names.host_of(name) for name in names.installations([r.name for r in done.custom])} == hosts


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


def test_two_clusters_fit_into_one_program(tmp_path: Path) -> None:
    (tmp_path / "__main__.py").write_text(TWO)
    cluster = site(servers=3, workers={"a": 2}, **all_operators(enabled=True))
    for name in ("east", "west"):
        (tmp_path / f"{name}.json").write_text(json.dumps({**cluster, "name": name}))
    done = run_program(cluster, healthy(cluster), program=tmp_path / "__main__.py", project="mine")
    assert done.error is None
    made = [each.name for each in done.resources.values() if each.type != "pulumi:pulumi:Stack"]
    assert [name for name in made if not name.startswith(("east", "west"))] == []
    east = sorted(name.removeprefix("east") for name in made if name.startswith("east"))
    assert east == sorted(name.removeprefix("west") for name in made if name.startswith("west"))
    assert done.outputs["east"] != done.outputs["west"]
    assert len(done.of_type("kubernetes:helm.sh/v3:Release")) == 6

"""What operators and validation request from the engine. What a provider does with it, only the lab shows."""

import json
from pathlib import Path
from typing import Any

import pytest
from pulumi.runtime.rpc import UNKNOWN

from busbar.components.engine.helm import files_digest, image_version
from busbar.config import Chart, load
from tests.program.answers import healthy
from tests.program.harness import LOCAL, RELEASE, Resource, Run, run_program
from tests.support.clusters import H100_POOL, OPERATORS, all_operators, site

POLICY = "kubernetes:mellanox.com/v1alpha1:NicClusterPolicy"


def program(**sections: Any) -> Run:
    cluster = site(servers=1, **{"workers": {"a": 2, "b": 1}, **all_operators(enabled=True), **sections})
    done = run_program(cluster, healthy(cluster))
    assert done.error is None
    return done


@pytest.fixture(scope="module")
def run() -> Run:
    return program()


def request(resource: Resource) -> dict[str, Any]:
    spec: dict[str, Any] = json.loads(resource.inputs["stdin"])
    return spec


def test_releases_wait_for_their_namespaces_and_go_before_a_replacement(run: Run) -> None:
    releases = {release.inputs["name"]: release for release in run.of_type(RELEASE)}
    assert set(releases) == {operator.release for operator in OPERATORS}
    for release in releases.values():
        assert release.request.deleteBeforeReplace
        # Its CRDs are those of the release that it replaces.
        assert release.inputs["disableOpenapiValidation"] is True
        assert release.inputs["createNamespace"] is False
        namespace = release.name.replace("-release", "-namespace")
        assert run.waits_for(release, run.named(namespace)), release.name
    awaited = {name for name, release in releases.items() if not release.inputs["skipAwait"]}
    assert awaited == {"mpi-operator"}, "the pods of the others are awaited with their devices"


def test_published_charts_come_by_version_and_may_take_as_long_as_configured() -> None:
    chart = program(gpu_operator={"timeout_seconds": 777}).named("busbar-gpu-operator-release").inputs
    assert (chart["chart"], chart["version"]) == ("gpu-operator", "v26.7.0")
    assert chart["repositoryOpts"] == {"repo": "https://helm.ngc.nvidia.com/nvidia"}
    assert chart["timeout"] == 777


def test_a_local_chart_and_an_oci_chart_are_taken_as_configured(tmp_path: Path) -> None:
    archive, oci = tmp_path / "gpu-operator.tgz", "oci://registry.example/network-operator"
    archive.touch()
    done = program(gpu_operator={"chart": str(archive)}, network_operator={"chart": oci})
    local = done.named("busbar-gpu-operator-release").inputs
    assert (local["chart"], "version" in local) == (str(archive), False)
    assert done.outputs["versions"]["gpu_operator"] == "0.1.0", "as Helm reports it"
    remote = done.named("busbar-network-operator-release").inputs
    assert (remote["chart"], remote["version"]) == (oci, "26.7.0")
    assert not {"repositoryOpts"} & {*local, *remote}


def test_a_version_is_known_once_its_release_is_installed_and_as_configured_where_helm_reports_none() -> None:
    operators = all_operators(enabled=True)
    cluster = site(servers=1, **operators, validation={"enabled": False})

    def silent(args: Any) -> Any:
        return {"status": {"status": "deployed"}} if args.typ == RELEASE else healthy(cluster)(args)

    done, preview = run_program(cluster, silent), run_program(cluster, silent, preview=True, answered=False)
    configured = load(cluster)
    versions = {name: getattr(configured, name).version for name in ("gpu_operator", "network_operator")}
    assert done.outputs["versions"] == {**versions, "mpi_operator": "0.8.0"}
    for name in operators:
        known = preview.registered_outputs[preview.named(f"busbar-{name.replace('_', '-')}").urn]
        assert known["version"] == UNKNOWN, name


def test_what_the_operators_run_tolerates_the_taints_of_all_pools() -> None:
    taint = {"key": "team", "value": "a", "effect": "NoExecute"}
    done = program(pools={"a": H100_POOL, "b": {**H100_POOL, "taints": [taint]}})
    operands = done.named("busbar-gpu-operator-release").inputs["values"]["daemonsets"]
    for each in (operands, done.named("busbar-network-operator-policy").inputs["spec"]):
        assert {**taint, "operator": "Equal"} in each["tolerations"]


def test_a_changed_file_of_a_local_chart_changes_its_release_and_nothing_else_does(tmp_path: Path) -> None:
    (tmp_path / "templates").mkdir()
    template = tmp_path / "templates/a.yaml"
    template.write_text("a: 1")
    chart = Chart(chart=str(tmp_path))
    first, same = files_digest(chart), files_digest(chart)
    template.write_text("a: 2")
    changed = files_digest(chart)
    assert first == same != changed
    template.rename(tmp_path / "templates/b.yaml")
    assert files_digest(chart) not in (first, changed)


def test_namespaces_of_operators_and_jobs_admit_privileged_pods(run: Run) -> None:
    namespaces = [each.inputs["metadata"] for each in run.of_type("kubernetes:core/v1:Namespace")]
    expected = {*(operator.namespace for operator in OPERATORS), "busbar-validation"}
    assert {each["name"] for each in namespaces} == expected
    for each in namespaces:
        assert each["labels"]["pod-security.kubernetes.io/enforce"] == "privileged"


def test_the_release_of_a_local_chart_is_described_by_its_content(run: Run) -> None:
    description = run.named("busbar-mpi-operator-release").inputs["description"]
    assert description == files_digest(Chart(chart="./charts/mpi-operator"))
    assert "description" not in run.named("busbar-gpu-operator-release").inputs


def test_every_worker_is_waited_for_with_what_its_own_pool_expects() -> None:
    done = program(pools={"a": H100_POOL, "b": {**H100_POOL, "gpus": 4, "rails": 2}})
    assert request(done.named("busbar-gpu-operator-gpus"))["nodes"] == {"gpu-1": 8, "gpu-2": 8, "gpu-3": 4}
    hcas = request(done.named("busbar-network-operator-hcas"))
    assert (hcas["resource"], hcas["nodes"]) == ("nvidia.com/hostdev", {"gpu-1": 8, "gpu-2": 8, "gpu-3": 2})


@pytest.mark.parametrize(
    ("wait", "changes"),
    [
        ("busbar-gpu-operator-gpus", {"gpu_operator": {"values": {"gfd": {"enabled": False}}}}),
        ("busbar-gpu-operator-gpus", {"gpu_operator": {"version": "v26.3.3"}}),
        ("busbar-network-operator-hcas", {"network_operator": {"values": {"upgradeCRDs": False}}}),
        ("busbar-network-operator-hcas", {"network_operator": {"version": "26.1.2"}}),
        ("busbar-network-operator-hcas", {"network_operator": {"selectors": {"pfNames": ["ib0"]}}}),
    ],
)
def test_another_chart_or_policy_is_waited_for_again(run: Run, wait: str, changes: dict[str, Any]) -> None:
    assert program(**changes).named(wait).inputs["triggers"] != run.named(wait).inputs["triggers"]


def test_an_operator_that_another_tool_installed_is_only_waited_for() -> None:
    done = program(**all_operators(enabled=False))
    assert done.of_type(RELEASE) == done.of_type(POLICY) == []
    assert request(done.named("busbar-gpu-operator-gpus"))["nodes"]
    assert [c for c in done.of_type(LOCAL) if c.name == "busbar-network-operator-hcas"] == []


def test_the_collector_gets_the_name_and_namespace_of_the_job(run: Run) -> None:
    for pool in ("a", "b"):
        asked = request(run.named(f"busbar-nccl-{pool}-collect"))
        made = run.named(f"busbar-nccl-{pool}-job").inputs["metadata"]
        assert (asked["job"], asked["namespace"]) == (made["name"], made["namespace"])
        assert asked["folder"] == f".busbar/test/{pool}"


def test_the_image_is_pulled_again_for_another_image_and_not_for_another_run(run: Run) -> None:
    image = "registry.example/nccl-tests:2"
    first, again, other = (
        [done.named("busbar-nccl-a-image").inputs[key] for key in ("stdin", "triggers")]
        for done in (run, program(validation={"run": 2}), program(validation={"image": image}))
    )
    assert again == first
    assert all(new != old for new, old in zip(other, first, strict=True))


def test_a_job_waits_for_the_config_map_of_its_topology_file(tmp_path: Path) -> None:
    file = tmp_path / "h100.xml"
    file.write_text("<system version='1'/>")
    done = program(validation={"topology_file": str(file)})
    topology, job = done.named("busbar-nccl-a-topology"), done.named("busbar-nccl-a-job")
    assert topology.inputs["data"] == {"h100.xml": "<system version='1'/>"}
    assert topology.request.deletedWith == done.named("busbar-control-plane-removal@server-1").urn
    assert done.waits_for(job, topology)
    assert topology.inputs["metadata"]["name"] in str(job.inputs["spec"]["mpiReplicaSpecs"]["Worker"])


@pytest.mark.parametrize(
    ("image", "version"),
    [
        ("mpioperator/mpi-operator:0.8.0", "0.8.0"),
        ("registry.example:5000/mpi-operator", "latest"),
        ("registry.example:5000/mpi-operator:0.8.0@sha256:abc", "0.8.0"),
        ("mpi-operator@sha256:abc", "sha256:abc"),
    ],
)
def test_the_operators_version_is_read_from_its_image(image: str, version: str) -> None:
    assert image_version(image) == version


def test_the_records_of_measurements_stay_where_validation_is_switched_off(run: Run) -> None:
    assert run.named("busbar-nccl-namespace").request.retainOnDelete

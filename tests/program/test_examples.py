"""The programs in examples/ under mocks: one uses a cluster that passed, one measures a cluster of others."""

import asyncio
import json
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pulumi
import pytest
import yaml
from pulumi.runtime import mocks

from busbar.config import load
from busbar.kube import client
from busbar.outputs import ClusterOutputs, ContractError, build_outputs
from busbar.outputs.contract import summarize
from tests.program.answers import KUBECONFIG
from tests.program.harness import LOCAL, PROVIDER, ROOT, Run, run_program, texts
from tests.support.clusters import site
from tests.support.verdicts import failing, passing

CONFIG_MAP = "kubernetes:core/v1:ConfigMap"


def consume(verdict: dict[str, Any], **change: Any) -> Run:
    """Run the consumer against the outputs of a stack with this verdict."""
    outputs = build_outputs(
        load(site()),
        versions={"k3s": "v1.35.6+k3s1"},
        facts={f"gpu-{i}": {"gpus": 8, "rails": 8} for i in (1, 2)},
        results={"h100": summarize(verdict)},
    )
    stack = {"outputs": {**outputs, "kubeconfig": KUBECONFIG, **change}, "secretOutputNames": ["kubeconfig"]}

    def answer(args: mocks.MockResourceArgs) -> dict[str, Any]:
        return stack if args.typ == "pulumi:pulumi:StackReference" else {}

    return run_program(
        {},
        answer,
        program=ROOT / "examples" / "consumer" / "__main__.py",
        project="busbar-consumer",
        config={"busbar-consumer:cluster": "organization/busbar/dev", "busbar-consumer:namespace": "jobs"},
    )


def test_a_cluster_that_passed_gets_a_config_map_with_its_measured_bandwidth() -> None:
    run = consume(passing())
    assert run.error is None
    [fabric] = run.of_type(CONFIG_MAP)
    measured = {"busbw_gbps": "390.28", "expected_gbps": "400.00", "transport": "gpudirect-rdma"}
    assert fabric.inputs["data"] == {**measured, "simulated": ""}
    ready = {"cluster": "site", "nodes": 2, "gpus": 16, "busbw_gbps": 390.28, "config_map": "fabric"}
    assert run.outputs["training_ready"] == ready


def test_the_cluster_is_identified_by_its_id_in_the_state_and_for_the_engine() -> None:
    run = consume(passing(), cluster_id="a1")
    [provider] = run.of_type(PROVIDER)
    assert run.named("cluster-id").inputs["input"]["id"] == provider.inputs["clusterIdentifier"] == "a1"


def test_the_kubeconfig_of_the_other_stack_stays_a_secret() -> None:
    [provider] = consume(passing()).of_type(PROVIDER)
    assert all(secret for path, _, secret in texts(provider.raw) if path == "kubeconfig")


def test_a_cluster_that_failed_is_refused_with_its_reasons_and_nothing_is_created() -> None:
    run = consume(failing("GDRDMA is missing on 3 channels"))
    assert isinstance(run.error, pulumi.RunError)
    assert "nccl_passed is false" in str(run.error)
    assert "GDRDMA is missing on 3 channels" in str(run.error)
    assert run.of_type(CONFIG_MAP) == []


def test_a_simulated_number_is_marked_in_the_config_map() -> None:
    [fabric] = consume({**passing(), "simulated": "nccl-tests on CPUs"}).of_type(CONFIG_MAP)
    assert fabric.inputs["data"]["simulated"] == "nccl-tests on CPUs"


FOLDER = ROOT / "examples" / "measure"
EXAMPLE = yaml.safe_load((FOLDER / "Pulumi.example.yaml").read_text())["config"]
MEASUREMENT = EXAMPLE["busbar-measure:measurement"]
OF_OTHERS = "the kubeconfig of others"


def measure(verdict: dict[str, Any], **change: Any) -> Run:
    """The program with the example's stack file, in which the measurement has this verdict."""
    printed = json.dumps(summarize(verdict))
    api = SimpleNamespace(get=lambda path: {"metadata": {"uid": f"uid of {path.rpartition('/')[2]}"}})

    def answer(args: mocks.MockResourceArgs) -> Mapping[str, Any]:
        return {"stdout": printed} if args.typ == LOCAL else {}

    with mock.patch.object(client, "RestApi", lambda _: api):
        return run_program(
            {},
            answer,
            program=FOLDER / "__main__.py",
            project="busbar-measure",
            config={
                **EXAMPLE,
                "busbar-measure:kubeconfig": OF_OTHERS,
                "busbar-measure:measurement": json.dumps({**MEASUREMENT, **change}),
            },
        )


@pytest.fixture(scope="module")
def run() -> Run:
    done = measure(passing())
    assert done.error is None
    return done


def test_the_cluster_is_identified_by_itself_and_not_by_its_name(run: Run) -> None:
    assert run.named("cluster").inputs["clusterIdentifier"] == "uid of kube-system"
    assert run.named("cluster-id").inputs["input"]["id"] == "uid of kube-system"


def read(run: Run, **options: bool) -> ClusterOutputs:
    """The outputs as another stack reads them: what is None is gone."""
    found = {key: value for key, value in run.outputs.items() if value is not None}

    async def details(name: str) -> Any:
        return SimpleNamespace(value=found.get(name), secret_value=None)

    reference: Any = SimpleNamespace(get_output_details=details)
    return asyncio.run(ClusterOutputs.from_stack(reference, **options))


def test_the_job_runs_as_the_stack_file_says_in_a_namespace_that_admits_it(run: Run) -> None:
    job, namespace = run.named("nccl-h100-job"), run.named("namespace")
    worker = job.inputs["spec"]["mpiReplicaSpecs"]["Worker"]["template"]["spec"]
    assert worker["containers"][0]["resources"]["limits"]["nvidia.com/hostdev"] == 8
    taint = {"key": "nvidia.com/gpu", "operator": "Equal", "value": "present", "effect": "NoSchedule"}
    assert taint in worker["tolerations"]
    assert job.inputs["metadata"]["namespace"] == namespace.inputs["metadata"]["name"]
    labels = namespace.inputs["metadata"]["labels"]
    assert labels["pod-security.kubernetes.io/enforce"] == "privileged"
    assert run.waits_for(job, namespace)


def test_it_makes_nothing_but_the_namespace_and_the_job_on_the_cluster_of_its_kubeconfig(run: Run) -> None:
    [provider] = run.of_type(PROVIDER)
    made = [each for each in run.custom if each.type.startswith("kubernetes:")]
    assert [each.name for each in made] == ["namespace", "nccl-h100-job"]
    assert {each.request.provider.rpartition("::")[0] for each in made} == {provider.urn}
    sent = [found for each in run.custom for found in texts(each.raw) if OF_OTHERS in found[1]]
    assert sent and all(secret for _, _, secret in sent)


def test_its_outputs_are_those_of_the_contract_that_a_measurement_knows(run: Run) -> None:
    cluster = read(run, accept_measured_only=True)
    assert (cluster.cluster_name, cluster.nccl_passed, cluster.nccl_busbw_gbps) == ("research", True, 390.28)
    assert (cluster.nodes, cluster.api_endpoint, cluster.kubeconfig) == ((), None, None)
    assert cluster.nccl["h100"].transport == "gpudirect-rdma"
    assert "nccl" in cluster.versions


def test_a_program_that_needs_the_cluster_refuses_them_and_says_why(run: Run) -> None:
    with pytest.raises(ContractError, match="only measured its cluster, and has no hosts, endpoint and kube"):
        read(run)


def test_a_verdict_that_is_no_pass_fails_the_update_and_the_outputs_are_kept() -> None:
    run = measure(failing("GDRDMA is missing on 3 channels"))
    assert isinstance(run.error, pulumi.RunError)
    assert "NCCL validation failed for cluster research" in str(run.error)
    assert "GDRDMA is missing on 3 channels" in str(run.error)
    assert run.outputs["nccl_passed"] is False


def test_a_verdict_that_is_no_pass_lets_the_update_succeed_where_it_is_not_enforced() -> None:
    run = measure(failing("slow"), validation={**MEASUREMENT["validation"], "enforce": False})
    assert (run.error, run.outputs["nccl_passed"]) == (None, False)


def test_an_argument_that_does_not_exist_is_named() -> None:
    run = measure(passing(), gpu=8)
    assert isinstance(run.error, pulumi.RunError)
    assert str(run.error) == "busbar-measure:measurement.gpu: unknown key; did you mean 'gpus'?"

"""Components in a program that is not that of busbar: plain arguments, a provider and a kubeconfig."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from pulumi.runtime import mocks

from busbar.outputs.pool import summarize
from tests.program.harness import LOCAL, RELEASE, Run, run_program
from tests.support.verdicts import passing

PROGRAM = """
import pulumi, pulumi_kubernetes as kubernetes
from components.gpu_operator import GpuOperator, GpuOperatorArgs
from components.mpi_operator import MpiOperator, MpiOperatorArgs
from components.nccl_validation import NcclValidation, NcclValidationArgs
from components.network_operator import NetworkOperator, NetworkOperatorArgs

kubeconfig = pulumi.Output.secret("a kubeconfig")
on_cluster = pulumi.ResourceOptions(provider=kubernetes.Provider("mine", kubeconfig=kubeconfig))
gpus = GpuOperator("gpus", GpuOperatorArgs(kubeconfig=kubeconfig, nodes={"n1": 8, "n2": 8}), on_cluster)
hcas = NetworkOperator(
    "hcas",
    NetworkOperatorArgs(kubeconfig=kubeconfig, nodes={"n1": 4, "n2": 4}, rails=["0000:1b:00.0"]),
    on_cluster,
)
mpi = MpiOperator("mpi", MpiOperatorArgs(kubeconfig=kubeconfig, image="registry.example/mpi:1"), on_cluster)
measured = NcclValidation(
    "nccl",
    NcclValidationArgs(
        kubeconfig=kubeconfig,
        pool="b200",
        nodes=["n1", "n2"],
        gpus=8,
        rails=4,
        rate_gbps=400,
        validation={"namespace": "default", "iterations": 7},
    ),
    pulumi.ResourceOptions.merge(on_cluster, pulumi.ResourceOptions(depends_on=[gpus, hcas, mpi])),
)
pulumi.export("verdict", measured.result.apply(lambda result: result["verdict"]))
"""


def answer(args: mocks.MockResourceArgs) -> Mapping[str, Any]:
    if args.typ == RELEASE:
        return {"status": {"version": "1"}}
    result = summarize(passing(), verdict_file="verdict.json", config_map="default/nccl")
    return {"stdout": json.dumps(result)} if args.typ == LOCAL else {}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    program: Path = tmp_path_factory.mktemp("program") / "__main__.py"
    program.write_text(PROGRAM)
    done = run_program({}, answer, program=program, project="mine")
    assert done.error is None
    return done


def test_the_verdict_is_an_output_of_the_component(run: Run) -> None:
    assert run.outputs == {"verdict": "pass"}


def test_the_operators_wait_for_the_devices_of_the_given_nodes(run: Run) -> None:
    waits = {
        name: json.loads(run.named(name).inputs["stdin"])["nodes"] for name in ("gpus-gpus", "hcas-hcas")
    }
    assert waits == {"gpus-gpus": {"n1": 8, "n2": 8}, "hcas-hcas": {"n1": 4, "n2": 4}}


def test_the_job_runs_on_the_given_nodes_with_an_hca_per_rail_and_the_settings_of_the_validation(
    run: Run,
) -> None:
    job = run.named("nccl-job").inputs
    worker = job["spec"]["mpiReplicaSpecs"]["Worker"]["template"]["spec"]["containers"][0]
    assert (job["metadata"]["namespace"], job["spec"]["slotsPerWorker"]) == ("default", 8)
    assert worker["resources"]["limits"]["nvidia.com/hostdev"] in (4, "4")
    assert " -n 7 " in json.dumps(job)


def test_a_measurement_waits_for_what_its_component_depends_on(run: Run) -> None:
    assert run.waits_for(run.named("nccl-job"), run.named("hcas-hcas"))


def test_everything_on_the_cluster_is_made_by_the_given_provider(run: Run) -> None:
    mine = run.named("mine").urn
    on_cluster = [each for each in run.custom if each.type.startswith("kubernetes:")]
    assert on_cluster and {each.request.provider.rpartition("::")[0] for each in on_cluster} == {mine}

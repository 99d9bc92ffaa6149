"""The job of a measurement and its collector over updates, with the real engine.

The component, the provider of Kubernetes and the API server are real. Nothing runs the job, and the collector
is a script that prints a verdict. The tests are one story, in this order.
"""

import json
from typing import Any

import pytest

from busbar.judge.nccl.expected import JUDGE
from busbar.names import VALIDATION_NAMESPACE
from busbar.outputs.contract import summarize
from tests.engine.test_update_end import Stack
from tests.support.api_server import ApiServer
from tests.support.engine import throwaway_project
from tests.support.verdicts import passing

JOBS = f"/apis/kubeflow.org/v2beta1/namespaces/{VALIDATION_NAMESPACE}/mpijobs"
CORRECTED = "# a corrected text\n"
PROGRAM = """
    import os
    from pathlib import Path

    import pulumi
    import pulumi_kubernetes as kubernetes

    from busbar.components import nccl_validation
    from busbar.components.engine import local_command
    from busbar.config.cluster import Hardware
    from busbar.config.cluster import Validation
    from busbar.manifests import mpijob
    from busbar.manifests.nccljob import nccl_job

    ROOT = Path(__file__).parent
    local_command.busbar_command = lambda *words: f"sh {ROOT}/collect.sh"
    rendered, spec_of = mpijob.script, nccl_validation.collect_spec
    mpijob.script = lambda job: os.environ.get("TEXT", "") + rendered(job)
    nccl_validation.collect_spec = lambda *words, **more: {
        **spec_of(*words, **more), "judge": int(os.environ["JUDGE"])
    }
    kubeconfig = (ROOT / "kubeconfig").read_text()
    provider = kubernetes.Provider(
        "cluster", kubeconfig=kubeconfig, cluster_identifier="one", upsert_existing_objects=True
    )
    validation = Validation(run=int(os.environ["RUN"]))
    hardware = Hardware(gpus=8, rails=8, rate_gbps=400)
    job = nccl_job("h100", ["gpu-1", "gpu-2"], hardware, validation)
    measured = nccl_validation.NcclValidation(
        "nccl-h100",
        pulumi.ResourceOptions(provider=provider),
        kubeconfig=kubeconfig,
        job=job,
        validation=validation,
        machines={"gpu-1": "a", "gpu-2": os.environ["MACHINE"]},
    )
    pulumi.export("verdict", measured.result["verdict"])
"""


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory, server: ApiServer) -> Stack:
    server.define("kubeflow.org", "v2beta1", "MPIJob")
    server.kubectl("wait", "--for=condition=Established", "crd", "--all")
    server.kubectl("create", "namespace", VALIDATION_NAMESPACE)
    folder = tmp_path_factory.mktemp("jobs")
    environment = throwaway_project(folder, PROGRAM, NO_COLOR="1", TERM="dumb")
    (folder / "Pulumi.dev.yaml").write_text("config: {}\n")
    (folder / "kubeconfig").write_text(server.kubeconfig)
    (folder / "verdict").write_text(json.dumps(summarize(passing())))
    (folder / "collect.sh").write_text(
        f'printf "%s\\n" "$PULUMI_COMMAND_STDOUT" >>{folder}/previous; cat {folder}/verdict\n'
    )
    made = Stack(folder, environment, server)
    assert made.pulumi("stack", "init").returncode == 0
    return made


def updated(
    stack: Stack, *, run: int = 1, judge: int = JUDGE, text: str = "", machine: str = "b"
) -> tuple[Any, list[str]]:
    """The one job after an update, and the previous results with which the collector has run in it."""
    seen = stack.folder / "previous"
    seen.write_text("")
    done = stack.up(RUN=str(run), JUDGE=str(judge), TEXT=text, MACHINE=machine)
    assert done.returncode == 0, done.stdout
    [job] = stack.server.api.list(JOBS)
    return job, seen.read_text().splitlines()


def script(job: Any) -> str:
    launcher = job["spec"]["mpiReplicaSpecs"]["Launcher"]["template"]["spec"]
    return str(launcher["containers"][0]["command"][-1])


def test_a_first_update_makes_the_job_and_collects_without_a_previous_result(stack: Stack) -> None:
    job, previous = updated(stack)
    assert CORRECTED not in script(job)
    assert previous == [""]


def test_a_corrected_text_changes_no_job_and_collects_nothing(stack: Stack) -> None:
    [before] = stack.server.api.list(JOBS)
    job, previous = updated(stack, text=CORRECTED)
    assert (job["metadata"]["uid"], job["spec"]) == (before["metadata"]["uid"], before["spec"])
    assert previous == []


def test_a_new_judge_collects_again_with_the_previous_result_and_makes_no_job(stack: Stack) -> None:
    [before] = stack.server.api.list(JOBS)
    job, previous = updated(stack, text=CORRECTED, judge=JUDGE + 1)
    assert job["metadata"]["uid"] == before["metadata"]["uid"]
    assert previous == [(stack.folder / "verdict").read_text()]


def test_a_job_of_a_new_name_comes_with_the_new_spec_and_has_no_previous_result(stack: Stack) -> None:
    [before] = stack.server.api.list(JOBS)
    job, previous = updated(stack, text=CORRECTED, judge=JUDGE + 1, run=2)
    assert job["metadata"]["name"] != before["metadata"]["name"]
    assert script(job).startswith(CORRECTED)
    assert previous == [""]


def test_another_machine_under_a_node_s_name_is_measured_again_by_a_new_job(stack: Stack) -> None:
    [before] = stack.server.api.list(JOBS)
    job, previous = updated(stack, text=CORRECTED, judge=JUDGE + 1, run=2, machine="c")
    assert job["metadata"]["name"] == before["metadata"]["name"]
    assert job["metadata"]["uid"] != before["metadata"]["uid"]
    assert len(previous) == 1

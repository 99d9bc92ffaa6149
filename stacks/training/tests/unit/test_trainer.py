"""The runtime that TrainJobs refer to: a pod of it can use RDMA on a whole worker of its pool."""

import shlex
from collections.abc import Callable
from typing import Any

import pytest

from busbar.exits import Failed
from busbar.kube.wait import SystemClock
from stacks.training.package.proof import render
from stacks.training.package.target import Target
from stacks.training.package.trainer import (
    JOBS,
    TRAINER,
    JobsSpec,
    deepspeed_runtime,
    refuse_jobs,
    torch_runtime,
)
from stacks.training.tests.support import target, training
from tests.support.clusters import site
from tests.support.kube_cluster import Cluster
from tests.support.shared import PROJECT
from tests.unit.charts.published import complaints, published_crd

FOLDER = PROJECT / "stacks" / "training" / "helm_values"
TAINT = {"key": "team", "value": "a", "effect": "NoSchedule"}
A100 = {"pool": {"taints": [TAINT], "gpu_model": "A100"}, "validation": {"profile": "a100-ib-8x200-gdrcopy"}}
H100 = {"validation": {"profile": "h100-ib-8x400"}}
BOTH = pytest.mark.parametrize("made", [torch_runtime, deepspeed_runtime])
Made = Callable[[Target, str], dict[str, Any] | None]


def of_pool(**site: Any) -> Target:
    return target(training(proof={"enabled": False}), **site)


def runtime(made: Made = torch_runtime, **site: Any) -> dict[str, Any]:
    found = made(of_pool(**site), "torch:1")
    assert found is not None
    return found


def jobs(found: dict[str, Any]) -> dict[str, Any]:
    return {
        job["name"]: job["template"]["spec"] for job in found["spec"]["template"]["spec"]["replicatedJobs"]
    }


def pods(found: dict[str, Any]) -> list[dict[str, Any]]:
    return [job["template"]["spec"] for job in jobs(found).values()]


def container(pod: dict[str, Any]) -> dict[str, Any]:
    [only] = pod["containers"]
    made: dict[str, Any] = only
    return made


def env(pod: dict[str, Any]) -> dict[str, str]:
    return {each["name"]: each["value"] for each in container(pod)["env"] if "value" in each}


def test_the_manager_of_trainer_starts_again_with_another_configuration_and_for_nothing_else() -> None:
    def annotations(**manager: Any) -> Any:
        given = training(trainer={"enabled": True, "values": {"manager": manager}}).trainer
        return TRAINER.values(FOLDER, given)["manager"].get("podAnnotations")

    one, other = ({"featureGates": {"TrainJobStatus": on}} for on in (True, False))
    assert annotations() is None and annotations(replicas=2) is None
    assert annotations(config=one) == annotations(config=one, replicas=2) != annotations(config=other)


def test_the_kubeflow_sdk_and_trainer_find_a_runtime_its_container_and_its_step_by_their_names() -> None:
    found = runtime()
    assert found["metadata"]["name"] == "busbar-torch-h100"
    assert found["metadata"]["labels"]["trainer.kubeflow.org/framework"] == "torch"
    assert found["spec"]["mlPolicy"] == {"numNodes": 2, "torch": {}}, "a job uses all workers of the pool"
    [job] = found["spec"]["template"]["spec"]["replicatedJobs"]
    step = {"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"}
    assert (job["name"], job["template"]["metadata"]["labels"]) == ("node", step)
    assert container(pods(found)[0])["name"] == "node"


@BOTH
@pytest.mark.parametrize("site", [{}, A100, H100], ids=["plain", "taints and devices", "settings"])
def test_a_pod_has_what_one_of_the_training_run_has_and_its_settings_of_nccl(
    made: Made, site: dict[str, Any]
) -> None:
    of_run = render(of_pool(**site), training(), {}).job["spec"]["template"]["spec"]
    devices = [each for each in of_run["volumes"] if each["name"] not in ("program", "checkpoints")]
    for pod in pods(runtime(made, **site)):
        for key in ("runtimeClassName", "tolerations"):
            assert pod[key] == of_run[key]
        assert pod["affinity"]["nodeAffinity"] == of_run["affinity"]["nodeAffinity"]
        assert pod["volumes"] == devices
        limits = container(of_run)["resources"]["limits"].items()
        assert container(pod)["resources"] == {"limits": {key: n for key, n in limits if key != "memory"}}
        assert container(pod)["securityContext"].items() >= container(of_run)["securityContext"].items()
        settings = {key: text for key, text in env(pod).items() if key.startswith("NCCL_")}
        assert settings.items() <= env(of_run).items()
        assert ("NCCL_IB_QPS_PER_CONNECTION" in settings) is (site is H100)
        assert "NCCL_DEBUG" not in settings
        # The webhook of Trainer refuses these; it sets them itself.
        assert not [key for key in env(pod) if key.startswith("PET_")]


def test_pods_of_one_job_prefer_workers_near_each_other_the_nearest_level_most() -> None:
    hosts = site()["hosts"]
    for worker in hosts["workers"]:
        worker["topology"] = {"rail_group": "su03", "block": "b1"}
    [pod], [without] = pods(runtime(hosts=hosts)), pods(runtime())
    terms = pod["affinity"]["podAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"]
    assert [(term["podAffinityTerm"]["topologyKey"], term["weight"]) for term in terms] == [
        ("fabric.topograph.run/tier-1", 1), ("fabric.topograph.run/tier-0", 2),
    ]  # fmt: skip
    assert {str(term["podAffinityTerm"]["matchLabelKeys"]) for term in terms} == {
        "['jobset.sigs.k8s.io/jobset-uid']"
    }
    assert set(without["affinity"]) == {"nodeAffinity"}


@BOTH
def test_a_runtime_is_valid_by_the_published_crd(made: Made) -> None:
    crd = published_crd("kubeflow-trainer", "v2.3.0", "ClusterTrainingRuntime")
    assert complaints(crd, "v1alpha1", runtime(made, **A100)) == []


def test_trainer_makes_a_launcher_with_a_rank_per_gpu_and_the_other_nodes() -> None:
    found = runtime(deepspeed_runtime, workers={"h100": 3})
    policy = found["spec"]["mlPolicy"]
    assert policy["numNodes"] == 1, "Trainer makes as many launchers"
    assert (policy["mpi"]["numProcPerNode"], policy["mpi"]["runLauncherAsNode"]) == (8, True)
    node, launcher = jobs(found)["node"], jobs(found)["launcher"]
    assert node["parallelism"] == node["completions"] == 2 and "parallelism" not in launcher
    # Its user reads the key that Trainer mounts.
    assert policy["mpi"]["sshAuthMountPath"] == "/home/mpiuser/.ssh"
    for pod in pods(found):
        assert pod["securityContext"]["fsGroup"] == container(pod)["securityContext"]["runAsUser"] == 1000
    # Open MPI 5 finds the host file too.
    own = env(launcher["template"]["spec"]).items() - env(node["template"]["spec"]).items()
    assert own == {("PRTE_MCA_prte_default_hostfile", "/etc/mpi/hostfile")}


def test_mpirun_starts_when_every_sshd_answers_and_its_end_is_that_of_the_job() -> None:
    template = runtime(deepspeed_runtime)["spec"]["template"]["spec"]
    assert template["network"] == {"publishNotReadyAddresses": True}
    assert template["successPolicy"] == {"operator": "All", "targetReplicatedJobs": ["launcher"]}
    node, launcher = template["replicatedJobs"]
    assert launcher["dependsOn"] == [{"name": "node", "status": "Ready"}]
    probe = container(node["template"]["spec"]["template"]["spec"])["readinessProbe"]
    assert probe["tcpSocket"] == {"port": 2222}


def test_ranks_on_other_nodes_get_the_settings_of_nccl_by_their_sshd() -> None:
    pod = jobs(runtime(deepspeed_runtime, **H100))["node"]["template"]["spec"]
    name, _, settings = container(pod)["command"][-1].partition("=")
    assert name == "SetEnv" and dict(pair.split("=", 1) for pair in shlex.split(settings)) == env(pod)


def unless_ended(state: str, *, kind: str = "trainjobs", owner: str = "", ours: bool = True) -> None:
    """The removal of Trainer with one job that has this condition. OURS: the controller of JobSets is too."""
    status = {"conditions": [{"type": "Created", "status": "True"}, {"type": state, "status": "True"}]}
    job: dict[str, Any] = {"metadata": {"namespace": "team", "name": "run"}, "status": status}
    job["metadata"]["ownerReferences"] = [{"kind": owner}] if owner else []
    jobs, jobsets = JOBS["kubeflow-trainer"], "jobset.x-k8s.io/v1alpha2/jobsets"
    api = Cluster({f"/apis/{jobs if kind == 'trainjobs' else jobsets}": {"items": [job]}})
    if ours:
        api.objects["/apis/apps/v1/namespaces/kubeflow-system/deployments/jobset-controller"] = {}
    refuse_jobs(api, JobsSpec(jobs=jobs), SystemClock(), lambda _: None)


# One that is suspended waits for a quota, and has no pod. A JobSet of a user needs the controller too.
@pytest.mark.parametrize(
    ("state", "kind", "owner"),
    [
        ("Running", "trainjobs", ""),
        ("Suspended", "trainjobs", "Workflow"),
        ("StartupPolicyInProgress", "jobsets", ""),
    ],
)
def test_an_operator_is_not_taken_away_from_a_job_that_has_not_ended(
    state: str, kind: str, owner: str
) -> None:
    fix = rf"Fix: wait for their end, or kubectl delete {kind} -n NAMESPACE NAME"
    with pytest.raises(Failed, match=rf"{kind} team/run need their operator.*{fix}"):
        unless_ended(state, kind=kind, owner=owner)


@pytest.mark.parametrize("state", ["Complete", "Failed"])
def test_an_operator_goes_with_jobs_that_have_ended(state: str) -> None:
    unless_ended(state)


@pytest.mark.parametrize(
    "about", [{"state": "Completed"}, {"state": "Running", "owner": "TrainJob"}, {"state": "", "ours": False}]
)
def test_a_jobset_that_has_ended_or_is_of_another_controller_keeps_nothing(about: dict[str, Any]) -> None:
    unless_ended(kind="jobsets", **about)


@pytest.mark.parametrize(
    ("labels", "name"),
    [({}, "team/own"), (None, "own"), ({"app.kubernetes.io/managed-by": "busbar"}, "")],
    ids=["of a namespace", "of the cluster", "of busbar"],
)
def test_runtimes_of_users_do_not_go_with_trainer_s_crds(labels: dict[str, str] | None, name: str) -> None:
    about = {"name": "own", "labels": labels, **({"namespace": "team"} if labels is not None else {})}
    kind = "clustertrainingruntimes" if labels is None else "trainingruntimes"
    path, jobs = f"/apis/trainer.kubeflow.org/v1alpha1/{kind}", JOBS["kubeflow-trainer"]
    api = Cluster({path: {"items": [{"metadata": about}]}})
    if not name:
        refuse_jobs(api, JobsSpec(jobs=jobs), SystemClock(), lambda _: None)
        return
    fix = rf"Fix: kubectl get {kind} -A -o yaml >{kind}.yaml, kubectl delete {kind} -n NAMESPACE NAME; then"
    with pytest.raises(Failed, match=rf"{kind} {name} need their operator or its CRDs.*{fix}"):
        refuse_jobs(api, JobsSpec(jobs=jobs), SystemClock(), lambda _: None)
    refuse_jobs(api, JobsSpec(jobs=JOBS["training-operator"]), SystemClock(), lambda _: None)

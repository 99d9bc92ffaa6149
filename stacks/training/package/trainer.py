"""Kubeflow's operators of jobs, and the ClusterTrainingRuntimes of each pool for Kubeflow Trainer v2.

Trainer's own runtimes request no HCA, lock no memory and tolerate no taint. A job with them falls back to
TCP, or does not start (kubeflow/trainer v2.3.0, manifests/base/runtimes).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from busbar.collect.watch import true_conditions
from busbar.exits import Failed
from busbar.frame import InstalledChart
from busbar.kube.client import Api
from busbar.kube.objects import find
from busbar.kube.wait import Clock, ProgressCallback
from busbar.manifests.launcher import HOSTFILE
from busbar.manifests.names import digest
from busbar.manifests.operators import Operator, Values
from busbar.models import StrictModel
from busbar.text import listed
from stacks.training.package import networks, pod, versions
from stacks.training.package.config import Trainer, TrainingOperator
from stacks.training.package.target import Target

# Names by which Trainer finds the container for the command of a TrainJob.
_JOB = _CONTAINER = "node"
_STEP = {"labels": {"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"}}


def _start_again(trainer: Trainer, _: object) -> Values:
    """The manager reads its configuration at its start; the chart does not start it for another one."""
    config = (trainer.values.get("manager") or {}).get("config")
    return {"manager": {"podAnnotations": {"busbar/config": digest(config)}}} if config else {}


TRAINER = Operator(
    config_key="trainer", release="kubeflow-trainer", namespace="kubeflow-system", derived=_start_again
)
TRAINING_OPERATOR = Operator(
    config_key="training_operator", release="training-operator", namespace="training-operator"
)
_API = "trainer.kubeflow.org/v1alpha1"
_OURS = {"app.kubernetes.io/managed-by": "busbar"}
_RUNTIMES = (f"{_API}/trainingruntimes", f"{_API}/clustertrainingruntimes")
# Their CRDs, and so all jobs and runtimes of the cluster, go with the release.
JOBS = {TRAINER.release: f"{_API}/trainjobs", TRAINING_OPERATOR.release: "kubeflow.org/v1/pytorchjobs"}
# JobSets of users need the controller of the release too, unless another tool has installed one.
_JOBSETS = "jobset.x-k8s.io/v1alpha2/jobsets"
_JOBSET_CONTROLLER = f"/apis/apps/v1/namespaces/{TRAINER.namespace}/deployments/jobset-controller"
_ENDED = {"Complete", "Completed", "Failed", "Succeeded"}
# Kubeflow's own manifests of the release, for PyTorchJobs only (tests/unit/charts/pack.py).
TRAINING_OPERATOR_CHART = (
    Path(__file__).resolve().parents[1] / "charts" / f"training-operator-{versions.TRAINING_OPERATOR}.tgz"
)


def training_operator(config: TrainingOperator, chart: str) -> InstalledChart:
    """The chart of the Training Operator, which is at the path `chart`."""
    return InstalledChart(
        enabled=config.enabled,
        chart=chart,
        timeout_seconds=config.timeout_seconds,
        values={"image": config.image, "initContainerImage": config.init_image},
    )


class JobsSpec(StrictModel):
    """The request of the step `before-removal`. `jobs`: the jobs of the operator, as JOBS has them."""

    jobs: str


def refuse_jobs(api: Api, spec: JobsSpec, clock: Clock, progress: ProgressCallback) -> None:
    """The step `before-removal` of an operator. Raises Failed with what of others needs it, and ApiError."""
    is_trainer = spec.jobs == JOBS[TRAINER.release]
    also = [_JOBSETS] if is_trainer and find(api, _JOBSET_CONTROLLER) is not None else []
    for path in (spec.jobs, *also, *(_RUNTIMES if is_trainer else ())):
        names, kind = [], path.rpartition("/")[2]
        for each in (find(api, f"/apis/{path}") or {}).get("items") or ():
            about = each["metadata"]
            of_job = any(owner["kind"] == "TrainJob" for owner in about.get("ownerReferences") or ())
            is_ours = _OURS.items() <= (about.get("labels") or {}).items()
            if not (of_job or is_ours) and _ENDED.isdisjoint(at["type"] for at in true_conditions(each)):
                names.append("/".join(filter(None, (about.get("namespace"), about["name"]))))
        copy = f"kubectl get {kind} -A -o yaml >{kind}.yaml,"
        if names:
            first = copy if path in _RUNTIMES else "wait for their end, or"
            what = f"{kind} {listed(names)} need their operator or its CRDs; it was not removed"
            raise Failed(what, f"{first} kubectl delete {kind} -n NAMESPACE NAME; then retry")


# User and port of sshd in the image (kubeflow/mpi-operator v0.8.2, build/base).
_MPI_USER = 1000
_MPI_HOME = "/home/mpiuser"
_SSH_PORT = 2222
# Trainer names the host file in OMPI_MCA_orte_default_hostfile, which Open MPI 5 does not read: without this
# mpirun starts all ranks in the launcher's pod.
_HOSTFILE_ENV = {"name": "PRTE_MCA_prte_default_hostfile", "value": HOSTFILE}


def torch_runtime(target: Target, image: str) -> dict[str, Any]:
    """The runtime `busbar-torch-<pool>`: every pod has a whole worker of the pool, as in the measurement."""
    template = _pod_template(target, image, pod.TORCHRUN_ENV)
    job = {"name": _JOB, "template": {"metadata": _STEP, "spec": {"template": template}}}
    policy = {"numNodes": len(target.launch.workers), "torch": {}}
    return _runtime(target, "torch", policy, {"replicatedJobs": [job]})


def deepspeed_runtime(target: Target, image: str) -> dict[str, Any] | None:
    """The runtime `busbar-deepspeed-<pool>`: mpirun in the first pod starts all ranks, one per GPU.

    The launcher is a node too and has a whole worker, like each of the others. None for a pool of one worker:
    Trainer makes at least one pod beside the launcher (kubeflow/trainer v2.3.0,
    pkg/runtime/framework/plugins/mpi/mpi.go).
    """
    launch = target.launch
    others = len(launch.workers) - 1
    if not others:
        return None
    template = _pod_template(target, image, {})
    [container] = template["spec"]["containers"]
    container["securityContext"] = {**container.get("securityContext", {}), "runAsUser": _MPI_USER}
    # The group of the user reads the key that Trainer mounts.
    template["spec"]["securityContext"] = {"fsGroup": _MPI_USER}
    env = networks.nccl_env(target.attached, launch)
    settings = " ".join(f'"{key}={value}"' for key, value in sorted(env.items()))
    # A rank is a child of sshd, which does not pass on the environment of its container.
    sshd = ["/usr/sbin/sshd", "-De", "-f", f"{_MPI_HOME}/.sshd_config"]
    node = {
        **container,
        "command": [*sshd, *(["-o", f"SetEnv={settings}"] if settings else [])],
        "readinessProbe": {"tcpSocket": {"port": _SSH_PORT}, "periodSeconds": 2},
    }
    launcher = {**container, "env": [*container["env"], _HOSTFILE_ENV]}
    nodes, first = (
        {**template, "spec": {**template["spec"], "containers": [each]}} for each in (node, launcher)
    )
    # These numbers are for a TrainJob without numNodes; otherwise Trainer sets both.
    number = {"parallelism": others, "completions": others}
    jobs = [
        {"name": _JOB, "template": {"spec": {**number, "template": nodes}}},
        {
            "name": "launcher",
            # mpirun does not wait for an sshd that does not run yet.
            "dependsOn": [{"name": _JOB, "status": "Ready"}],
            "template": {"metadata": _STEP, "spec": {"template": first}},
        },
    ]
    policy = {
        # Trainer counts launchers by this number; the other nodes have their own number above.
        "numNodes": 1,
        "mpi": {
            "mpiImplementation": "OpenMPI",
            "numProcPerNode": launch.gpus,
            "runLauncherAsNode": True,
            "sshAuthMountPath": f"{_MPI_HOME}/.ssh",
        },
    }
    jobset = {
        "network": {"publishNotReadyAddresses": True},
        # sshd does not end on its own.
        "successPolicy": {"operator": "All", "targetReplicatedJobs": ["launcher"]},
        "replicatedJobs": jobs,
    }
    return _runtime(target, "deepspeed", policy, jobset)


def runtimes(target: Target, config: Trainer) -> list[dict[str, Any]]:
    """The runtimes of one pool."""
    deepspeed = deepspeed_runtime(target, config.deepspeed.image) if config.deepspeed.enabled else None
    return [torch_runtime(target, config.image), *([deepspeed] if deepspeed else [])]


def _pod_template(target: Target, image: str, env: Mapping[str, str]) -> dict[str, Any]:
    """A pod with all GPUs and HCAs of a worker."""
    launch, attached = target.launch, target.attached
    env = {**networks.nccl_env(attached, launch), **env}
    named = [{"name": key, "value": env[key]} for key in sorted(env)]
    made = pod.template(launch, attached, {"name": _CONTAINER, "image": image, "env": named})
    spec = made["spec"]
    spec["affinity"] |= pod.close_together(launch)
    if check := pod.interface_check(attached, image):
        spec["initContainers"] = check
    return made


def _runtime(
    target: Target, framework: str, policy: dict[str, Any], template: dict[str, Any]
) -> dict[str, Any]:
    return {
        "apiVersion": _API,
        "kind": "ClusterTrainingRuntime",
        "metadata": {
            "name": f"busbar-{framework}-{target.pool}",
            "labels": {
                **_OURS,
                "busbar/pool": target.pool,
                # The Kubeflow SDK lists runtimes by this label.
                "trainer.kubeflow.org/framework": framework,
            },
        },
        "spec": {"mlPolicy": policy, "template": {"spec": template}},
    }

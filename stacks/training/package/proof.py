"""The training run on one pool as Kubernetes objects: a ConfigMap with the program, a Service, a Job.

The Job is indexed and has one pod per worker. torchrun in each pod starts the ranks and meets the others at
the pod with index 0, whose log is the log of the run.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from busbar.judge import FIRST_LINE, LAST_LINE
from busbar.manifests.launcher import MARGIN_SECONDS
from busbar.manifests.names import digest, short
from busbar.manifests.scheduling import HCA_CHECK, HOSTNAME, NODE_ENV, REQUIRED, pod_on
from stacks.training.package import networks, pod
from stacks.training.package.config import Training
from stacks.training.package.storage import NO_WAIT, pod_volume
from stacks.training.package.target import Target

CONTAINER = "trainer"
PROGRAM_FOLDER = "/busbar/program"
CHECKPOINT_FOLDER = "/busbar/checkpoints"
PORT = 29500
REVISION = 1
"""Raised by hand when the program, or the script that starts it, measures something else. It is part of every
run's name, so every site trains again, and the release notes say so. Any other change of their text reaches a
site with its next run."""
INDEX_ANNOTATION = "batch.kubernetes.io/job-completion-index"
JOB_LABEL = "batch.kubernetes.io/job-name"
# The Job's uid, as the name of a folder that no other run has, on storage that survives all runs.
RUN_ENV = "BUSBAR_RUN"
RUN_LABEL = "batch.kubernetes.io/controller-uid"
# The kill uses one restart. A rank that fails because its peer restarts may use another.
MAX_RESTARTS = 3
# A pod's name is a DNS label of at most 63 characters: <job>-<index>-<5 characters>.
_NAME_LIMIT = 63 - len("-99999-abcde")

# The verdict needs NCCL's messages about all channels, which it prints when they are connected at init.
EVIDENCE_ENV: Mapping[str, str] = {
    "NCCL_DEBUG": "INFO",
    "NCCL_DEBUG_SUBSYS": "INIT,NET,ENV",
    "NCCL_RUNTIME_CONNECT": "0",
}

PROGRAM_ENV: Mapping[str, str] = {
    # The program's folder is read-only.
    "PYTHONDONTWRITEBYTECODE": "1",
    "PYTHONUNBUFFERED": "1",
    **pod.TORCHRUN_ENV,
}

# A text that measures something else needs another REVISION.
_SCRIPT = """\
set -u
echo {first_line}
code=0
# Before the ranks meet: a pod that Multus has not attached would train over eth0.
for name in {interfaces}; do
  [ ! -e "/sys/class/net/$name" ] || continue
  code=1
  echo "# busbar: pod on $BUSBAR_NODE has no interface $name. Fix: check Multus there, raise proof.run" |
    tee /dev/termination-log
done
host=$([ "$JOB_COMPLETION_INDEX" = 0 ] && echo 1 || echo 0)
# Without this, a pod whose image was pulled first would give up before the others have theirs.
[ "$code" != 0 ] || [ "$host" = 1 ] || python3 {folder}/meet.py {first_pod} {port} {seconds} || code=$?
[ "$code" != 0 ] || timeout --kill-after=5 {seconds} \\
  python3 -m torch.distributed.run --rdzv-conf "is_host=$host,join_timeout={seconds}" \\
  {torchrun} {program} || code=$?
[ "$code" != 124 ] || echo "# busbar: training timed out: the limit is {seconds} s"
echo {last_line} "$code"
exit "$code"
"""


@dataclass(frozen=True)
class Manifests:
    """The objects of one run, as plain dicts. `name`: the name of all three."""

    name: str
    config_map: dict[str, Any]
    service: dict[str, Any]
    job: dict[str, Any]


def render(target: Target, training: Training, program: Mapping[str, str]) -> Manifests:
    """The objects of one run. `program`: file name -> text, with main.py."""
    content = short(digest(_request(target, training)))
    stem = f"training-{target.pool}"[: _NAME_LIMIT - len(content) - 1].rstrip("-")
    name = f"{stem}-{content}"
    return Manifests(
        name,
        {
            "kind": "ConfigMap",
            "metadata": {"name": name, "namespace": training.namespace},
            "immutable": True,
            "data": dict(program),
        },
        {
            "kind": "Service",
            # The Service has endpoints once the job has pods, so there is nothing to wait for before.
            "metadata": {"name": name, "namespace": training.namespace, "annotations": dict(NO_WAIT)},
            "spec": {
                "clusterIP": "None",
                "selector": {JOB_LABEL: name},
                # The pods meet before any of them is Ready.
                "publishNotReadyAddresses": True,
                "ports": [{"name": "rendezvous", "port": PORT}],
            },
        },
        _job(target, training, name),
    )


_JUDGED_BY = {"enabled", "enforce", "min_loss_drop", "min_busbw_fraction"}
"""Settings of the proof that decide on a run, and change nothing in it."""
_OF_THE_PODS = {
    "workers", "machines", "gpus", "link_layer", "transport", "resources", "host_paths", "taints",
    "runtime_class", "shm_size", "memory", "env",
}  # fmt: skip
_OF_THE_STORAGE = {"mode", "path", "class_name", "nfs", "claim"}


def _request(target: Target, training: Training) -> dict[str, Any]:
    """All that a run is asked for. No text of a manifest, of the script or of the program is in it."""
    proof, storage = training.proof, training.storage
    return {
        "revision": REVISION,
        "proof": proof.model_dump(mode="json", exclude=_JUDGED_BY),
        "gradient_bytes": target.gradient_bytes(proof),
        "pods": target.launch.model_dump(mode="json", include=_OF_THE_PODS),
        "networks": {each.interface: each.network.model_dump(mode="json") for each in target.attached},
        "storage": storage.model_dump(mode="json", include=_OF_THE_STORAGE) if storage.is_shared else None,
    }


def _job(target: Target, training: Training, name: str) -> dict[str, Any]:
    nodes, template = len(target.launch.workers), _template(target, training, name)
    labels = {"busbar/pool": target.pool}
    return {
        "kind": "Job",
        "metadata": {
            "name": name,
            "namespace": training.namespace,
            "labels": {"app.kubernetes.io/managed-by": "busbar", **labels},
            # The collecting command waits, and reports why a job does not start or fails.
            "annotations": dict(NO_WAIT),
        },
        "spec": {
            "completionMode": "Indexed",
            "completions": nodes,
            "parallelism": nodes,
            # The pods stay, because the one with index 0 has the log; torchrun restarts the ranks in them.
            "backoffLimit": 0,
            "activeDeadlineSeconds": training.proof.deadline_seconds,
            "template": {**template, "metadata": {**template.get("metadata", {}), "labels": labels}},
        },
    }


def _template(target: Target, training: Training, name: str) -> dict[str, Any]:
    launch, proof = target.launch, training.proof
    memory, folder = proof.memory or launch.memory, f"{training.namespace}/{name}-$({RUN_ENV})"
    of_run = {"subPathExpr": folder} if training.storage.is_shared else {}
    container: dict[str, Any] = {
        "name": CONTAINER,
        "image": proof.image,
        "imagePullPolicy": "IfNotPresent",
        "command": ["/bin/sh", "-c", _script(target, training, name)],
        "env": _env(target, training),
        "resources": {
            **({"requests": {"cpu": proof.cpu}} if proof.cpu else {}),
            **({"limits": {"memory": memory}} if memory else {}),
        },
        "volumeMounts": [
            {"name": "program", "mountPath": PROGRAM_FOLDER, "readOnly": True},
            {"name": "checkpoints", "mountPath": CHECKPOINT_FOLDER, **of_run},
        ],
    }
    volumes = [
        {"name": "program", "configMap": {"name": name}},
        {"name": "checkpoints", **pod_volume(training.storage)},
    ]
    on_gpus = proof.backend == "nccl"
    made = pod.template(launch, target.attached, container, volumes, on_gpus=on_gpus)
    # The name of each pod is <job>-<index>.<job>.
    spec = {**pod_on(launch.workers, launch.taints, {}), **made["spec"], "subdomain": name}
    ours = {"labelSelector": {"matchLabels": {JOB_LABEL: name}}, "topologyKey": HOSTNAME}
    spec["affinity"]["podAntiAffinity"] = {REQUIRED: [ours]}
    return {**made, "spec": {**spec, "restartPolicy": "Never"}}


def _script(target: Target, training: Training, name: str) -> str:
    proof = training.proof
    interfaces = [*(each.interface for each in target.attached), *proof.interfaces]
    seconds, first_pod = proof.deadline_seconds - MARGIN_SECONDS, f"{name}-0.{name}"
    torchrun = [
        *("--nnodes", len(target.launch.workers), "--nproc-per-node", target.ranks_per_node(proof)),
        *("--max-restarts", MAX_RESTARTS, "--rdzv-backend", "c10d", "--rdzv-id", name),
        *("--rdzv-endpoint", f"{first_pod}:{PORT}", "--monitor-interval", 1),
    ]
    program = [
        f"{PROGRAM_FOLDER}/main.py",
        *("--backend", proof.backend, "--gradient-bytes", target.gradient_bytes(proof)),
        *("--steps", proof.steps, "--iterations", proof.iterations, "--checkpoints", CHECKPOINT_FOLDER),
        *("--timeout-seconds", proof.collective_timeout_seconds),
    ]
    check = HCA_CHECK if target.launch.resources and proof.backend == "nccl" else ""
    return check + _SCRIPT.format(
        first_line=shlex.quote(FIRST_LINE),
        interfaces=shlex.join(dict.fromkeys(interfaces)),
        last_line=shlex.quote(LAST_LINE),
        seconds=seconds,
        folder=PROGRAM_FOLDER,
        first_pod=first_pod,
        port=PORT,
        torchrun=shlex.join(map(str, torchrun)),
        program=shlex.join(map(str, program)),
    )


def _env(target: Target, training: Training) -> list[dict[str, Any]]:
    launch, proof = target.launch, training.proof
    if proof.backend == "nccl":
        env = {**networks.nccl_env(target.attached, launch), **EVIDENCE_ENV}
    else:
        # gloo takes only one interface; without one it resolves its address by the host name.
        env = {"GLOO_SOCKET_IFNAME": target.attached[0].interface if target.attached else "eth0"}
    env = {**PROGRAM_ENV, **env, **proof.env}
    run = {"fieldRef": {"fieldPath": f"metadata.labels['{RUN_LABEL}']"}}
    return [
        dict(NODE_ENV),
        *([{"name": RUN_ENV, "valueFrom": run}] if training.storage.is_shared else []),
        *({"name": key, "value": env[key]} for key in sorted(env)),
    ]

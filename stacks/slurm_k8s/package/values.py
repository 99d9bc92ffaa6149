"""The three releases with their Helm values: the CRDs, the operator, and Slurm itself."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from busbar.config.cluster import CONTROL_PLANE, LABELS, SWITCHES
from busbar.frame import InstalledChart
from busbar.kube.gpus import MEASURED_BY
from busbar.manifests.operators import Operator, Values
from busbar.manifests.scheduling import (
    GPU_RESOURCE,
    HOSTNAME,
    REQUIRED,
    exact_tolerations,
    worker_tolerations,
)
from stacks.slurm_k8s.package.config import Accounting, Slurm
from stacks.slurm_k8s.package.pools import Pool, gres_conf
from stacks.slurm_k8s.package.survey import CRDS_RELEASE, ROOT_SWITCH, TOPOLOGY, SurveySpec

RELEASE = "slurm"
API_VERSION = "slinky.slurm.net/v1beta1"
CRDS = Operator(config_key="crds", release=CRDS_RELEASE, namespace="slinky-crds")
OF_SLURM = Operator(config_key="slurm", release=RELEASE, namespace="slurm")
OPERATOR = Operator(config_key="operator", release="slurm-operator", namespace="slinky")
LOGIN = "slinky"
LOGIN_SERVICE = f"{RELEASE}-login-{LOGIN}"
SLURM_KEY, JWT_KEY = "busbar-slurm-key", "busbar-slurm-jwt"
DATABASE_KEY = "busbar-slurm-database"
KEY_FILES = {SLURM_KEY: "slurm.key", JWT_KEY: "jwt.key", DATABASE_KEY: "password"}
HAS_TOPOLOGY = "busbar/topology"
"""Annotation of slurmctld's pod: it has a topology.yaml."""

# The operator leaves these parameters of slurm.conf to its users. Without the first no node has GPUs, and
# without the second a node whose pod was replaced stays down.
_CONF: Values = {
    "GresTypes": "gpu",
    "ReturnToService": "2",
    "ProctrackType": "proctrack/cgroup",
    "PrologFlags": "Contain",
    "TaskPlugin": "task/affinity,task/cgroup",
    # The wait after a pod is gone: a job may start again after 30 s, not 120 s (Slurm's default). The
    # operator adds what its pods need.
    "AuthInfo": "cred_expire=30",
    "PropagateResourceLimitsExcept": "MEMLOCK,NOFILE",
    # A partition that an administrator has closed stays closed when the file is read again.
    "ReconfigFlags": "KeepPartState",
}
_OF_ACCOUNTING = {"AccountingStorageTRES": "gres/gpu", "JobAcctGatherType": "jobacct_gather/cgroup"}
# Jobs get the limit of slurmd and not that of the login pod, and slurmd's is raised before a job: containers
# have 8 MiB, and RDMA locks all memory that it registers. Where the host forbids it, the probe says so.
_MEMLOCK = """\
#!/bin/sh
for each in /proc/[0-9]*; do
  read -r name 2>/dev/null <"$each/comm" && [ "$name" = slurmd ] || continue
  prlimit --pid "${each#/proc/}" --memlock=unlimited:unlimited || true
done
exit 0
"""


def charts(slurm: Slurm, pools: Mapping[str, Pool]) -> dict[str, tuple[Operator, InstalledChart]]:
    """Release -> what is installed as it, and its chart, which has the same name."""

    def row(operator: Operator, values: Values) -> tuple[Operator, InstalledChart]:
        return operator, InstalledChart(
            enabled=True,
            chart=f"{slurm.charts}/{operator.release}",
            version=slurm.version,
            values=values,
            timeout_seconds=slurm.timeout_seconds,
        )

    operator = replace(OPERATOR, derived=lambda *_: _operator(slurm))
    of_slurm = replace(OF_SLURM, namespace=slurm.namespace, derived=lambda *_: _slurm(slurm, pools))
    rows = row(CRDS, {}), row(operator, slurm.operator_values), row(of_slurm, slurm.values)
    return {each.release: (each, chart) for each, chart in rows}


def survey_spec(slurm: Slurm, pools: Mapping[str, Pool]) -> SurveySpec:
    """The request of the survey for a configuration."""
    return SurveySpec(
        namespace=slurm.namespace,
        workers=tuple(worker for pool in pools.values() for worker in pool.launch.workers),
        storage_class=slurm.state.storage_class,
        accept_state_on_one_node=slurm.state.accept_state_on_one_node,
        levels=levels(pools),
    )


def _operator(slurm: Slurm) -> Values:
    # The tag of the images is the version of the chart.
    return {
        name: {"image": {"repository": f"{slurm.images}/{image}"}, **_on_servers(slurm)}
        for name, image in (("operator", "slurm-operator"), ("webhook", "slurm-operator-webhook"))
    }


def _slurm(slurm: Slurm, pools: Mapping[str, Pool]) -> Values:
    image, sidecar = _images(slurm), {"image": _image(slurm.sidecar_image)}
    servers = {"nodeSelector": {CONTROL_PLANE: "true"}, "tolerations": _tolerations(slurm)}
    persistence: Values = {"enabled": True, "resources": {"requests": {"storage": slurm.state.size}}}
    if slurm.state.storage_class:
        persistence["storageClassName"] = slurm.state.storage_class
    conf = {**_CONF, **(_OF_ACCOUNTING if slurm.accounting else {}), **slurm.slurm_conf}
    files = {"gres.conf": gres_conf(pools), **_topology(pools)}
    # slurmctld reads whether there is a topology only when it starts. The annotation is in its pod template,
    # so its StatefulSet replaces the pod when the file comes or goes.
    has_topology = "topology.yaml" in {**files, **slurm.values.get("configFiles", {})}
    return {
        "slurmKey": {"create": False, "secretRef": _reference(SLURM_KEY)},
        "jwtKey": {"create": False, "secretRef": _reference(JWT_KEY)},
        "configFiles": files,
        "prologScripts": {"10-memlock.sh": _MEMLOCK},
        "controller": {
            "metadata": {"annotations": {HAS_TOPOLOGY: "true"} if has_topology else {}},
            "slurmctld": {"image": image("slurmctld")},
            # A sidecar lets slurmctld read changed files and pass them on. Without it the login pod keeps an
            # old slurm.conf.
            "inplaceReconfigure": True,
            "reconfigure": {"image": image("slurmctld")},
            "logfile": sidecar,
            "persistence": persistence,
            "extraConfMap": conf,
            "podSpec": servers,
        },
        "restapi": {"slurmrestd": {"image": image("slurmrestd")}, "podSpec": servers},
        **({"accounting": _accounting(slurm.accounting, image, servers)} if slurm.accounting else {}),
        "loginsets": {LOGIN: _login(slurm)},
        "nodesets": {
            name: _nodeset(slurm, pool, is_default=number == 0)
            for number, (name, pool) in enumerate(pools.items())
        },
    }


def _accounting(database: Accounting, image: Any, servers: Values) -> Values:
    storage = {**database.model_dump(), "passwordKeyRef": _reference(DATABASE_KEY)}
    return {
        "enabled": True,
        "slurmdbd": {"image": image("slurmdbd")},
        "storageConfig": storage,
        "podSpec": servers,
    }


def levels(pools: Mapping[str, Pool]) -> dict[str, tuple[str, ...]]:
    """Worker -> the labels of its Node that name switches, the farthest level first; empty for none."""
    switches = {LABELS[level] for level in SWITCHES}
    found = {
        worker: tuple(label for label in pool.launch.topology or () if label in switches)
        for pool in pools.values()
        for worker in pool.launch.workers
    }
    return found if any(found.values()) else {}


def _topology(pools: Mapping[str, Pool]) -> dict[str, str]:
    if not levels(pools):
        return {}
    tree = {"switches": [{"switch": ROOT_SWITCH}]}
    return {"topology.yaml": json.dumps([{"topology": TOPOLOGY, "cluster_default": True, "tree": tree}])}


def _reference(secret: str) -> dict[str, str]:
    return {"name": secret, "key": KEY_FILES[secret]}


def _nodeset(slurm: Slurm, pool: Pool, *, is_default: bool) -> Values:
    """A pool: one pod per worker that holds all GPUs and HCAs of it, and a partition of the pool's name."""
    launch, image, default = pool.launch, _images(slurm), "YES" if is_default else "NO"
    mounts = [{"name": "shm", "mountPath": "/dev/shm"}]
    volumes: list[Any] = [{"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": launch.shm_size}}]
    for number, (path, kind) in enumerate(sorted(launch.host_paths.items())):
        volumes.append({"name": f"host-{number}", "hostPath": {"path": path, "type": kind}})
        mounts.append({"name": f"host-{number}", "mountPath": path})
    limits = {GPU_RESOURCE: launch.gpus, **launch.resources}
    pod: Values = {
        "tolerations": worker_tolerations([*launch.taints, *slurm.tolerate]),
        "affinity": {**_on(HOSTNAME, launch.workers), **_ONE_PER_NODE},
        "volumes": volumes,
    }
    if launch.runtime_class:
        pod["runtimeClassName"] = launch.runtime_class
    return {
        "enabled": True,
        "metadata": {"annotations": {MEASURED_BY: "busbar measure STACK --project stacks/slurm_k8s"}},
        "replicas": len(launch.workers),
        "slurmd": {"image": image("slurmd"), "resources": {"limits": limits}, "volumeMounts": mounts},
        "logfile": {"image": _image(slurm.sidecar_image)},
        "extraConfMap": {"Gres": [pool.gres]},
        "partition": {"enabled": True, "configMap": {"State": "UP", "Default": default}},
        # Pods are replaced by busbar (roll.py).
        "updateStrategy": {"type": "OnDelete"},
        "podSpec": pod,
    }


def workers_of(nodeset: Values) -> list[str]:
    """The Nodes for which a NodeSet was made: those of its affinity, however many replicas it has now."""
    pod = nodeset["spec"]["template"]["spec"]
    [term] = pod["affinity"]["nodeAffinity"][REQUIRED]["nodeSelectorTerms"]
    return list(term["matchExpressions"][0]["values"])


def _login(slurm: Slurm) -> Values:
    found: Values = {
        "enabled": True,
        "replicas": 1,
        "login": {"image": _images(slurm)("login")},
        "initconf": {"image": _image(slurm.sidecar_image)},
        "service": {"spec": {"type": slurm.login.service}, "port": slurm.login.port},
        "podSpec": {"tolerations": _tolerations(slurm)},
    }
    if slurm.login.root_ssh_keys:
        found["rootSshAuthorizedKeys"] = "\n".join(slurm.login.root_ssh_keys)
    return found


def _images(slurm: Slurm) -> Any:
    return lambda name: {"repository": f"{slurm.images}/{name}", "tag": slurm.image_tag}


def _image(name: str) -> dict[str, str]:
    """The parts of an image's name, as the charts take them."""
    repository, _, tag = name.rpartition(":")
    return {"repository": repository, "tag": tag}


def _tolerations(slurm: Slurm) -> list[dict[str, str]]:
    return [{"key": CONTROL_PLANE, "operator": "Exists"}, *exact_tolerations(slurm.tolerate)]


def _on_servers(slurm: Slurm) -> Values:
    """For charts without a nodeSelector."""
    return {"affinity": _on(CONTROL_PLANE, ["true"]), "tolerations": _tolerations(slurm)}


def _on(label: str, names: Any) -> Values:
    term = {"matchExpressions": [{"key": label, "operator": "In", "values": sorted(names)}]}
    return {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": [term]}}}


_WORKERS = {"matchLabels": {"app.kubernetes.io/component": "worker"}}
_ONE_PER_NODE: Values = {
    "podAntiAffinity": {REQUIRED: [{"topologyKey": HOSTNAME, "labelSelector": _WORKERS}]}
}

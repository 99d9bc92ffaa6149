"""A site whose slow parts are known: its cluster in memory runs the real launcher script of each job."""

import os
import shutil
import signal
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from busbar.config import load
from busbar.fabric.diagnosis import Diagnosis, Findings, Scope, State, findings_of
from busbar.fabric.diagnosis.kubernetes import InCluster, scope_of
from busbar.hosts.inventory import Inventory
from busbar.kube.client import JsonObject
from busbar.manifests.launcher import HOSTFILE
from tests.support.bash import programs
from tests.support.clusters import all_operators, site
from tests.support.kube_cluster import Clock, pod
from tests.unit.fabric.measure.foreign import Foreign, gpu_node

SSH = """#!/bin/bash
# The host stands before the command, `cat FILE`.
words=("$@")
host=${words[-3]}
[[ -e $FOLDER/hangs/$host ]] && sleep 60
exec cat "$FOLDER/nodes/$host"
"""
MPIRUN = (Path(__file__).parent / "mpirun").read_text()


@dataclass
class Site:
    """Workers of one pool in rail groups, each with 8 GPUs and 8 rails.

    `slow`: see mpirun. `missing`: node -> how the pod of its worker is. `hanging`: nodes whose worker does
    not answer ssh. `launcher_on`: where the pod of the launcher is, as that node's worker.
    """

    folder: Path
    groups: tuple[int, ...] = (4, 4)
    slow: Mapping[str, float] = field(default_factory=dict)
    missing: Mapping[str, dict[str, Any]] = field(default_factory=dict)
    hanging: tuple[str, ...] = ()
    launcher_on: str = ""
    validation: Mapping[str, Any] = field(default_factory=dict)
    quarantine: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.jobs: list[list[str]] = []
        self.said: list[str] = []
        self.clock = Clock()
        config = site(workers={"h100": sum(self.groups)}, **all_operators(enabled=True))
        config["validation"] = {"profile": "h100-ib-8x400", **self.validation}
        names = [f"su{number}" for number, size in enumerate(self.groups) for _ in range(size)]
        for worker, name in zip(config["hosts"]["workers"], names, strict=True):
            worker["topology"] = {"rail_group": name}
            if reason := self.quarantine.get(worker["name"]):
                worker["quarantine"] = reason
        self.inventory = Inventory.of(load(config))
        self.names = [host.name for host in self.inventory.workers]
        self.api = Foreign(*map(gpu_node, self.names))
        self.api.runs = self._run_job

    def scope(self, *nodes: str, **more: Any) -> Scope:
        """What is diagnosed: these nodes, else all that are not in quarantine."""
        usable = tuple(host.name for host in self.inventory.usable_of("h100"))
        return scope_of(self.inventory, "h100", nodes or usable, self.folder / "diagnosis", **more)

    def state(self, scope: Scope | None = None) -> State:
        about = (self.api, self.inventory, "h100", self.folder, self.clock, self.said.append)
        runner = InCluster(*about, options=" --kubeconfig K")
        return Diagnosis(runner, scope or self.scope(), self.clock, self.said.append).run()

    def diagnose(self, scope: Scope | None = None) -> Findings:
        return findings_of(self.state(scope), scope or self.scope())

    def _run_job(self, job: JsonObject) -> None:
        """What operator and kubelets do: workers on the nodes, and the launcher's script to its end."""
        spec = job["spec"]["mpiReplicaSpecs"]
        launcher = spec["Launcher"]["template"]["spec"]["containers"][0]
        terms = spec["Worker"]["template"]["spec"]["affinity"]["nodeAffinity"]
        [term] = terms["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
        nodes = term["matchExpressions"][0]["values"]
        assert len(nodes) == spec["Worker"]["replicas"]
        self.jobs.append(launcher["args"][1:])
        name, base = job["metadata"]["name"], f"/api/v1/namespaces/{job['metadata']['namespace']}/pods"
        shutil.rmtree(self.folder / "bin", ignore_errors=True)
        for each in ("nodes", "hangs"):
            (self.folder / "bin" / each).mkdir(parents=True)
        hosts = []
        # Which worker is on which node is the scheduler's choice.
        for number, node in enumerate(reversed(nodes)):
            worker = f"{name}-worker-{number}"
            hosts.append(f"{worker}.{name}.ns.svc")
            self.api.objects[f"{base}/{worker}"] = self._pod(job, worker, node)
            if node not in self.missing:
                (self.folder / "bin" / "nodes" / hosts[-1]).write_text(f"{node}\n")
            if node in self.hanging:
                (self.folder / "bin" / "hangs" / hosts[-1]).touch()
        if self.launcher_on in {*nodes} & {*self.missing}:
            pending = f"{name}-launcher-x"
            self.api.objects[f"{base}/{pending}"] = self._pod(job, pending, self.launcher_on, "launcher")
            return
        text = self._launch(launcher, hosts)
        self.api.run_job(job, text)

    def _pod(self, job: JsonObject, name: str, node: str, role: str = "worker") -> JsonObject:
        ready = {"conditions": [{"type": "Ready", "status": "True"}]}
        made: JsonObject = pod(name, role, **self.missing.get(node, ready))
        made["metadata"]["labels"]["training.kubeflow.org/job-name"] = job["metadata"]["name"]
        made["metadata"]["ownerReferences"] = [{"uid": job["metadata"]["uid"]}]
        made["spec"] = {"nodeName": node, "containers": []}
        return made

    def _launch(self, launcher: JsonObject, hosts: list[str]) -> str:
        folder = self.folder / "bin"
        (folder / "speed").write_text("".join(f"{key} {share}\n" for key, share in self.slow.items()))
        (folder / "hostfile").write_text("".join(f"{host} slots=8\n" for host in hosts))
        programs(folder, {"ssh": SSH, "mpirun": MPIRUN, "all_reduce_perf": "#!/bin/true\n"})
        shell, option, script = launcher["command"]
        script = script.replace(f"HOSTFILE={HOSTFILE}", f"HOSTFILE={folder / 'hostfile'}")
        done = subprocess.run(
            [shell, option, script, *launcher["args"]],
            env={
                "PATH": f"{folder}:{os.environ['PATH']}", "FOLDER": str(folder), "TMPDIR": str(self.folder),
                **{each["name"]: each["value"] for each in launcher["env"]},
            },
            # The command blocks signals while it creates a job.
            preexec_fn=lambda: signal.pthread_sigmask(signal.SIG_SETMASK, ()),
            capture_output=True, text=True, timeout=120, check=False,
        )  # fmt: skip
        assert (done.returncode, done.stderr) == (0, ""), done.stderr
        return done.stdout

"""Training Operator v1 on the lab's cluster: beside the MPI Operator, and an elastic job that loses a worker.

The controller is the real one, the job is examples/elastic.yaml with the lab's image and devices.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import yaml

from stacks.training.lab.prepare import prepare
from stacks.training.package import config
from stacks.training.tests.lab.jobs.examples import FOLDER, adapted, program
from tests.support.lab import PROJECT, Lab, eventually

pytestmark = pytest.mark.drill

TRAINING = PROJECT / "stacks" / "training"
NAMESPACE = "busbar-elastic"
SETTINGS = {
    "cluster": "organization/busbar/dev",
    "namespace": NAMESPACE,
    "proof": {"enabled": False},
    "training_operator": {"enabled": True, "timeout_seconds": 180},
}
STEPS = 4000
JOB_SECONDS = 240


@dataclass
class Site:
    """The lab after an update that installed the operator; what was there before."""

    lab: Lab
    crds: set[str]
    text: str

    def log(self, pod: str) -> str:
        return self.lab.kubectl(f"-n {NAMESPACE} logs {pod} --tail=-1 || true")

    def destroy(self) -> int:
        done = self.lab.pulumi("destroy", "--yes", "--suppress-progress", "--stack", "dev", cwd=TRAINING)
        print(done.stdout + done.stderr)
        return done.returncode


def _crds(lab: Lab) -> set[str]:
    return set(lab.kubectl("get crds -o name").split())


def _apply(lab: Lab, *manifests: dict[str, Any]) -> None:
    for each in manifests:
        lab.ssh("server-1", f"k3s kubectl -n {NAMESPACE} apply -f - <<'END'\n{json.dumps(each)}\nEND")


@pytest.fixture(scope="module")
def site(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """Nothing is left afterwards."""
    stack = yaml.safe_load((TRAINING / "Pulumi.dev.yaml").read_text(encoding="utf-8"))
    stack["config"]["busbar-training:training"] = SETTINGS
    path = tmp_path_factory.mktemp("operator") / "Pulumi.operator.yaml"
    path.write_text(yaml.safe_dump(stack), encoding="utf-8")
    prepare(config.load(SETTINGS))
    stacks = json.loads(lab.pulumi("stack", "ls", "--json", cwd=TRAINING).stdout)
    if not any(each["name"].rpartition("/")[2] == "dev" for each in stacks):
        created = lab.pulumi("stack", "init", "dev", cwd=TRAINING)
        assert created.returncode == 0, created.stderr
    found = Site(lab, set(), "")
    assert found.destroy() == 0
    found.crds = _crds(lab)
    done = lab.up(f"--config-file={path}", cwd=TRAINING)
    found.text = done.stdout + done.stderr
    print(found.text)
    assert done.returncode == 0, found.text
    yield found
    found.destroy()
    lab.ssh("worker-1", f"rm -rf {FOLDER}")


def elastic_job() -> dict[str, Any]:
    """The example on the lab's two workers, with one rank on each."""
    job = adapted("elastic.yaml")
    spec = job["spec"]
    spec["nprocPerNode"] = "1"
    spec["elasticPolicy"].update(minReplicas=1, maxReplicas=2)
    worker = spec["pytorchReplicaSpecs"]["Worker"]
    worker["replicas"] = 2
    worker["template"]["spec"]["containers"][0]["command"].append(str(STEPS))
    return job


def test_an_elastic_job_that_loses_a_worker_resumes_from_its_checkpoint_and_ends(site: Site) -> None:
    lab = site.lab
    lab.ssh("worker-1", f"mkdir -p {FOLDER}")
    _apply(lab, program("train", "train.py"), elastic_job())
    eventually(lambda: f"of {STEPS}, 2 ranks" in site.log("elastic-worker-0"), JOB_SECONDS, "two ranks train")
    lab.kubectl(f"-n {NAMESPACE} delete pod elastic-worker-1 --grace-period=0 --force")
    eventually(lambda: "resumed after step" in site.log("elastic-worker-0"), JOB_SECONDS, "the ranks resume")
    # To its end: cleanPodPolicy removes a pod that still runs when the job has succeeded.
    text = lab.kubectl(f"-n {NAMESPACE} logs elastic-worker-0 --tail=-1 --follow || true")

    def conditions() -> dict[str, str]:
        job = json.loads(lab.kubectl(f"-n {NAMESPACE} get pytorchjob elastic -o json"))
        return {each["type"]: each["status"] for each in (job.get("status") or {}).get("conditions") or []}

    eventually(lambda: conditions().get("Succeeded") == "True", JOB_SECONDS, "the job succeeds")
    resumed = re.findall(r"^resumed after step (\d+)", text, re.MULTILINE)
    assert resumed and 0 < int(resumed[-1]) < STEPS, f"from the checkpoint, not from the beginning:\n{text}"
    last = re.findall(r"^step (\d+) of .*: loss (\S+)$", text, re.MULTILINE)[-1]
    # Without a checkpoint it begins near 64, the number of inputs.
    assert int(last[0]) == STEPS and float(last[1]) < 0.01, text


def test_a_destroy_leaves_the_crds_as_they_were(site: Site) -> None:
    assert site.destroy() == 0
    assert _crds(site.lab) == site.crds

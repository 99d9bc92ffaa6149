"""The lab with stack `jobs` of stacks/training: what is installed, and how a job is applied and read."""

import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from stacks.training.tests.lab.jobs.examples import FOLDER, program
from tests.support.lab import PROJECT, Lab, eventually

TRAINING = PROJECT / "stacks" / "training"
STACK, NAMESPACE = "jobs", "busbar-jobs"
# With programs and an image to be built.
FIRST_SECONDS = 3600
JOB_SECONDS = 300
_CLUSTER_WIDE = (
    "crds,clusterroles,clusterrolebindings,validatingwebhookconfigurations,mutatingwebhookconfigurations,"
    "apiservices,namespaces,priorityclasses"
)


def cluster_wide(lab: Lab) -> set[str]:
    """Names of what belongs to no namespace."""
    return set(lab.kubectl(f"get {_CLUSTER_WIDE} -o name").split())


@dataclass
class Jobs:
    """The lab after `make up-training STACK=jobs`. `before`: what was there before it, by name."""

    lab: Lab
    before: set[str]

    def apply(self, *manifests: dict[str, Any]) -> None:
        """Create or change objects in the stack's namespace."""
        for each in manifests:
            self.lab.ssh(
                "server-1", f"k3s kubectl -n {NAMESPACE} apply -f - <<'END'\n{json.dumps(each)}\nEND"
            )

    def get(self, what: str) -> dict[str, Any]:
        """An object, or a list, of the namespace."""
        found = json.loads(self.lab.kubectl(f"-n {NAMESPACE} get {what} -o json"))
        assert isinstance(found, dict)
        return found

    def pods(self, selector: str) -> list[dict[str, Any]]:
        """The pods with these labels."""
        items = self.get(f"pods -l {selector}")["items"]
        assert isinstance(items, list)
        return items

    def conditions(self, job: str) -> dict[str, str]:
        """Type -> status of the conditions of a job, such as `trainjob/example`."""
        status = self.get(job).get("status") or {}
        return {each["type"]: each["status"] for each in status.get("conditions") or []}

    def log(self, what: str) -> str:
        """The log of a pod, or of pods by `-l LABELS`; empty while there is none."""
        return self.lab.kubectl(f"-n {NAMESPACE} logs {what} --tail=-1 || true")

    def wait(self, job: dict[str, Any], done: str) -> None:
        """Wait for the condition `done` of a job; what its pods printed is shown where it fails."""
        name = f"{job['kind'].lower()}/{job['metadata']['name']}"
        try:
            eventually(
                lambda: (
                    self.conditions(name).get(done) == "True" or self.conditions(name).get("Failed") == "True"
                ),
                JOB_SECONDS,
                f"{name} ends",
            )
            assert self.conditions(name).get(done) == "True", self.get(name)["status"]
        except AssertionError:
            print(self.lab.kubectl(f"-n {NAMESPACE} get pods -o wide"))
            print(self.lab.kubectl(f"-n {NAMESPACE} get events --sort-by=.lastTimestamp | tail -n 40"))
            for pod in self.get("pods")["items"]:
                print(pod["metadata"]["name"], self.log(f"{pod['metadata']['name']} --all-containers"))
            raise

    def destroy(self) -> int:
        """Returns the exit code of `pulumi destroy`."""
        done = self.lab.pulumi("destroy", "--yes", "--suppress-progress", "--stack", STACK, cwd=TRAINING)
        print(done.stdout + done.stderr)
        return done.returncode


@pytest.fixture(scope="session")
def jobs(lab: Lab) -> Iterator[Jobs]:
    """One stack for all tests here: the last of test_examples.py removes it, or the end of the session."""
    stacks = json.loads(lab.pulumi("stack", "ls", "--json", cwd=TRAINING).stdout)
    found = Jobs(lab, set())
    if any(stack["name"].rpartition("/")[2] == STACK for stack in stacks):
        assert found.destroy() == 0
    found.before = cluster_wide(lab)
    done = lab.run(sys.executable, "-m", "lab", "bringup", "training", STACK, seconds=FIRST_SECONDS)
    print(done.stdout + done.stderr)
    try:
        assert done.returncode == 0, done.stdout + done.stderr
        lab.ssh("worker-1", f"rm -rf {FOLDER} && install -d -m 0777 {FOLDER}")
        found.apply(program("train", "train.py"), program("deepspeed", "deepspeed_train.py"))
        yield found
    finally:
        found.destroy()
        lab.ssh("worker-1", f"rm -rf {FOLDER}")

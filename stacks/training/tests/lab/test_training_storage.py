"""Shared storage by a StorageClass on the lab's cluster: not bound, bound, kept after a destroy.

`pytest stacks/training/tests/lab` runs it too. The volume is a folder that all of the lab's hosts share. Not
proven: a provisioner, and NFS, for which the lab's kernel has no client.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from stacks.training.lab.prepare import prepare
from stacks.training.package import config
from tests.support.lab import PROJECT, Lab, eventually

pytestmark = pytest.mark.drill

TRAINING = PROJECT / "stacks" / "training"
# Neither those of stack dev, which another test may have up.
NAMESPACE, VOLUME, CLASS = "busbar-class", "busbar-class-drill", "busbar-drill"
FOLDER = "/mnt/shared/class-drill"
SHARED_CLASS = {
    "apiVersion": "storage.k8s.io/v1",
    "kind": "StorageClass",
    "metadata": {"name": CLASS},
    "provisioner": "kubernetes.io/no-provisioner",
}
# With the reclaim policy of most classes: the data would go with the claim.
SHARED_VOLUME = {
    "apiVersion": "v1",
    "kind": "PersistentVolume",
    "metadata": {"name": VOLUME},
    "spec": {
        "storageClassName": CLASS,
        "capacity": {"storage": "1Gi"},
        "accessModes": ["ReadWriteMany"],
        "persistentVolumeReclaimPolicy": "Delete",
        "hostPath": {"path": FOLDER, "type": "Directory"},
    },
}


@dataclass
class Site:
    """The lab with the class; an update of stack dev with another `storage`."""

    lab: Lab
    folder: Path

    def up(self, **storage: Any) -> tuple[int, str]:
        stack = yaml.safe_load((TRAINING / "Pulumi.dev.yaml").read_text(encoding="utf-8"))
        settings = stack["config"]["busbar-training:training"]
        settings.update(namespace=NAMESPACE, storage={"mode": "class", "size": "1Gi", **storage})
        path = self.folder / "Pulumi.class.yaml"
        path.write_text(yaml.safe_dump(stack), encoding="utf-8")
        done = self.lab.up(f"--config-file={path}", cwd=TRAINING)
        print(done.stdout + done.stderr)
        return done.returncode, done.stdout + done.stderr

    def destroy(self) -> int:
        done = self.lab.pulumi("destroy", "--yes", "--suppress-progress", "--stack", "dev", cwd=TRAINING)
        print(done.stdout + done.stderr)
        return done.returncode

    def get(self, what: str) -> dict[str, Any]:
        found = json.loads(self.lab.kubectl(f"get {what} -o json"))
        assert isinstance(found, dict)
        return found


@pytest.fixture(scope="module")
def site(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """Without a training stack before; and without class, volume and claim afterwards."""
    prepare(config.read(TRAINING / "Pulumi.dev.yaml"))
    stacks = json.loads(lab.pulumi("stack", "ls", "--json", cwd=TRAINING).stdout)
    found = Site(lab, tmp_path_factory.mktemp("class"))
    if not any(stack["name"].rpartition("/")[2] == "dev" for stack in stacks):
        created = lab.pulumi("stack", "init", "dev", cwd=TRAINING)
        assert created.returncode == 0, created.stderr
    assert found.destroy() == 0
    lab.ssh("worker-1", f"mkdir -p {FOLDER}")
    for each in (SHARED_CLASS, SHARED_VOLUME):
        lab.ssh("server-1", f"echo '{json.dumps(each)}' | k3s kubectl apply -f -")
    yield found
    assert found.destroy() == 0
    lab.kubectl(f"delete namespace {NAMESPACE} --ignore-not-found --timeout=60s")
    lab.kubectl(f"delete pv {VOLUME} --ignore-not-found --timeout=60s")
    lab.kubectl(f"delete storageclass {CLASS} --ignore-not-found")
    lab.ssh("worker-1", f"rm -rf {FOLDER}")


def test_a_claim_that_no_volume_fits_fails_at_its_deadline_with_what_kubernetes_says(site: Site) -> None:
    code, text = site.up(class_name=CLASS, size="9Ti", claim="large", bind_timeout_seconds=5)
    assert code != 0
    assert "timed out after 5 s: PersistentVolumeClaim busbar-class/large-" in text
    assert "no-provisioner" in text, "the event of the controller"
    site.lab.kubectl(f"-n {NAMESPACE} delete pvc --all --timeout=60s")


def test_the_run_has_its_checkpoints_on_a_claim_that_both_workers_mount(site: Site) -> None:
    code, text = site.up(class_name=CLASS)
    assert code == 0, text
    outputs = site.lab.outputs(TRAINING)
    assert outputs["training_passed"] is True
    storage = outputs["storage"]
    assert (storage["mode"], storage["volume"], storage["capacity"]) == ("class", VOLUME, "1Gi")
    assert site.get(f"pvc -n {NAMESPACE} {storage['claim']}")["status"]["phase"] == "Bound"


def test_the_volume_would_no_longer_go_with_its_claim(site: Site) -> None:
    assert site.get(f"pv {VOLUME}")["spec"]["persistentVolumeReclaimPolicy"] == "Retain"


def test_a_destroy_leaves_the_claim_and_the_data_and_nothing_else(site: Site) -> None:
    [claim] = [each["metadata"] for each in site.get(f"pvc -n {NAMESPACE}")["items"]]
    site.lab.ssh("worker-2", f"touch {FOLDER}/kept")
    assert site.destroy() == 0
    [kept] = [each["metadata"] for each in site.get(f"pvc -n {NAMESPACE}")["items"]]
    assert kept["uid"] == claim["uid"]
    eventually(
        lambda: site.get(f"jobs,pods,services -n {NAMESPACE}")["items"] == [],
        60,
        "the run's objects are gone",
    )
    assert "kept" in site.lab.ssh("worker-1", f"ls {FOLDER}").split()


def test_the_next_update_finds_the_claim_again(site: Site) -> None:
    [claim] = [each["metadata"] for each in site.get(f"pvc -n {NAMESPACE}")["items"]]
    code, text = site.up(class_name=CLASS)
    assert code == 0, text
    [found] = [each["metadata"] for each in site.get(f"pvc -n {NAMESPACE}")["items"]]
    assert found["uid"] == claim["uid"]

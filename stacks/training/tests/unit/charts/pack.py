"""Writes charts/training-operator-VERSION.tgz: Kubeflow's own manifests as a chart, for PyTorchJobs only.

`python -m stacks.training.tests.unit.charts.pack` reads the release's Go module, whose archive has the sha256
below. It changes what Kubeflow's overlay `standalone` changes, leaves out the other kinds, and makes two
images Helm values. Its output and the archive's new sha256 belong into package/versions.py.
"""

import gzip
import hashlib
import io
import json
import subprocess
import tarfile
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from typing import Any

import yaml

from stacks.training.package.trainer import TRAINING_OPERATOR_CHART
from stacks.training.package.versions import TRAINING_OPERATOR

MODULE = f"github.com/kubeflow/training-operator@v{TRAINING_OPERATOR}"
SHA256 = "3b30a3b6ac9ca0dfc671d7f763d7e48475d59a1a0a72dd4cad9ab27a59dc7a69"
NAME, KIND, RESOURCE = "training-operator", "pytorchjob", "pytorchjobs"
NAMESPACE = "{{ .Release.Namespace }}"
CHART = {
    "apiVersion": "v2",
    "name": NAME,
    "version": TRAINING_OPERATOR,
    "appVersion": f"v{TRAINING_OPERATOR}",
    "description": "Kubeflow Training Operator v1 for PyTorchJobs, from the manifests of its release",
}
VALUES = {"image": "", "initContainerImage": ""}


def main() -> None:
    """Write the archive, and print its sha256."""
    archive = pack(zipfile.ZipFile(io.BytesIO(download())))
    TRAINING_OPERATOR_CHART.write_bytes(archive)
    print(hashlib.sha256(archive).hexdigest())


def download() -> bytes:
    """The archive of the Go module. Raises ValueError where it has another sha256."""
    command = ["go", "mod", "download", "-json", MODULE]
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(command, cwd=folder, capture_output=True, check=True, timeout=600)
    with open(json.loads(done.stdout)["Zip"], "rb") as file:
        data = file.read()
    if (found := hashlib.sha256(data).hexdigest()) != SHA256:
        raise ValueError(f"{MODULE}: sha256 {found}, expected {SHA256}")
    return data


def pack(module: zipfile.ZipFile) -> bytes:
    """The chart of these sources, as an archive that depends on nothing else."""

    def text(path: str) -> str:
        return module.read(f"{MODULE}/{path}").decode()

    crd = text(f"manifests/base/crds/kubeflow.org_{RESOURCE}.yaml")
    if "{{" in crd:
        raise ValueError("the CRD has what Helm would take for a template")
    files = {
        "Chart.yaml": yaml.safe_dump(CHART),
        "LICENSE": text("LICENSE"),
        "templates/crd.yaml": crd,
        "templates/manifests.yaml": yaml.safe_dump_all(manifests(lambda path: yaml.safe_load(text(path)))),
        "values.yaml": yaml.safe_dump(VALUES),
    }
    made = io.BytesIO()
    with (
        gzip.GzipFile(fileobj=made, mode="wb", mtime=0) as packed,
        tarfile.open(fileobj=packed, mode="w") as tar,
    ):
        for name, content in files.items():
            data = content.encode()
            about = tarfile.TarInfo(f"{NAME}/{name}")
            about.size = len(data)
            tar.addfile(about, io.BytesIO(data))
    return made.getvalue()


def manifests(load: Callable[[str], Any]) -> Iterator[dict[str, Any]]:
    """The objects beside the CRD. `load` reads a file of the module."""
    base = "manifests/base"
    for path in ("rbac/service-account", "service"):
        yield _in_namespace(load(f"{base}/{path}.yaml"))
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": f"{NAME}-webhook-cert"}}
    yield _in_namespace(secret)
    binding = load(f"{base}/rbac/cluster-role-binding.yaml")
    binding["subjects"][0]["namespace"] = NAMESPACE
    yield binding
    role = load(f"{base}/rbac/role.yaml")
    role["rules"] = [
        rule
        for rule in role["rules"]
        if rule["apiGroups"] != ["kubeflow.org"] or rule["resources"][0].split("/")[0] == RESOURCE
    ]
    yield role
    webhook = load(f"{base}/webhook/manifests.yaml")
    # The controller looks for these names (manifests/base/webhook/patch.yaml).
    webhook["metadata"]["name"] = f"validator.{NAME}.kubeflow.org"
    webhook["webhooks"] = [
        each for each in webhook["webhooks"] if each["rules"][0]["resources"] == [RESOURCE]
    ]
    webhook["webhooks"][0]["clientConfig"]["service"] |= {"name": NAME, "namespace": NAMESPACE}
    yield webhook
    deployment = _in_namespace(load(f"{base}/deployment.yaml"))
    pod = deployment["spec"]["template"]["spec"]
    # It runs on any server, and needs no worker.
    taints = ("node-role.kubernetes.io/control-plane", "CriticalAddonsOnly")
    pod["tolerations"] = [{"operator": "Exists", "key": key} for key in taints]
    [container] = pod["containers"]
    container["image"] = "{{ .Values.image }}"
    # Without a kind the controller serves all, also MPIJob v1.
    init_image = "{{ .Values.initContainerImage }}"
    container["args"] = [f"--enable-scheme={KIND}", f"--pytorch-init-container-image={init_image}"]
    yield deployment


def _in_namespace(manifest: dict[str, Any]) -> dict[str, Any]:
    manifest["metadata"]["namespace"] = NAMESPACE
    return manifest


if __name__ == "__main__":
    main()

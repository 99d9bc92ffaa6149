"""Puts the images on the hosts, and the charts where the stack names them; a site has registries for this."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

from lab.build.go import build, module_folder
from lab.hosts import ssh
from lab.images.on_hosts import import_where_absent, k3s_hosts
from lab.paths import RUN
from lab.steps import LabError
from lab.topology import Host
from stacks.watch.lab import images
from stacks.watch.lab.tools import MODULE, OPERATOR, TOOLS
from stacks.watch.package.config import Watch

CHARTS = RUN / "charts"
_OURS = Path(__file__).resolve().parent / "charts"
# Of the Go module; the official chart has the same files.
_CRDS = "example/prometheus-operator-crd"
STORAGE_CLASS = {
    "apiVersion": "storage.k8s.io/v1",
    "kind": "StorageClass",
    "metadata": {"name": "busbar-lab"},
    "provisioner": "kubernetes.io/no-provisioner",
}


def prepare(watch: Watch) -> None:
    """Build what is missing, and import images on the hosts that lack them.

    The operator only where the stack installs Prometheus. Raises LabError.
    """
    nodes = k3s_hosts()
    import_where_absent(images.MONITORING, images.NODE_EXPORTER, nodes)
    if not watch.stack.enabled:
        return
    for tool in TOOLS:
        build(tool)
    import_where_absent(images.OPERATORS, images.OPERATOR_IMAGE, nodes)
    for name in ("kube-prometheus-stack", "prometheus-operator-crds"):
        shutil.rmtree(CHARTS / name, ignore_errors=True)
        shutil.copytree(_OURS / name, CHARTS / name)
    _add_crds(CHARTS / "prometheus-operator-crds" / "charts" / "crds" / "templates")
    # The lab's Prometheus keeps its data in its pod, and the survey is content with this class.
    _apply(next(host for host in nodes if host.role == "server"), STORAGE_CLASS)


def _add_crds(folder: Path) -> None:
    """The CRDs as templates, as in the official chart: Helm upgrades these, and marks them as its own.

    In a chart inside the chart, which Helm does not store with the release: one Secret could not hold both.
    """
    folder.mkdir()
    for file in (module_folder(OPERATOR.module, MODULE) / _CRDS).glob("*.yaml"):
        text = file.read_text(encoding="utf-8").replace("{{", "{{`{{`}}")
        (folder / file.name).write_text(text, encoding="utf-8")


def _apply(host: Host, manifest: Mapping[str, object]) -> None:
    command = ssh.command(host, ["k3s kubectl apply -f -"])
    done = subprocess.run(
        command, input=json.dumps(manifest), capture_output=True, text=True, timeout=60, check=False
    )
    if done.returncode:
        raise LabError(f"{host.name}: kubectl apply failed: {done.stderr.strip()}")

"""Puts the images on the hosts, and the charts where the stack names them; a site has registries for this."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path

from lab.build.go import build, module_folder
from lab.hosts import nspawn, ssh
from lab.images.on_hosts import import_where_absent, k3s_hosts
from lab.paths import RUN
from lab.steps import run
from lab.topology import Host
from stacks.watch.lab import images
from stacks.watch.lab.tools import KMSG, MODULE, MONITORING, NODE_PROBLEM_DETECTOR, OPERATOR
from stacks.watch.package.config import Watch

CHARTS = RUN / "charts"
_OURS = Path(__file__).resolve().parent / "charts"
# The path in the Go module; the official chart has the same files.
_CRDS = "example/prometheus-operator-crd"
_KMSG = "usr/local/sbin/busbar-lab-kmsg"
STORAGE_CLASS = {
    "apiVersion": "storage.k8s.io/v1",
    "kind": "StorageClass",
    "metadata": {"name": "busbar-lab"},
    "provisioner": "kubernetes.io/no-provisioner",
}


def prepare(watch: Watch) -> None:
    """Build what is missing, and import images on the hosts that lack them.

    node-problem-detector, and the operator, only where the stack has them. Raises LabError.
    """
    nodes = k3s_hosts()
    import_where_absent(images.MONITORING, images.NODE_EXPORTER, nodes)
    if watch.node_problem_detector.enabled:
        build(NODE_PROBLEM_DETECTOR)
        build(KMSG)
        workers = [host for host in nodes if host.role == "worker"]
        import_where_absent(images.NODE_PROBLEMS, images.NODE_PROBLEM_DETECTOR_IMAGE, workers)
        for host in workers:
            _give_kernel_log(host)
    if watch.stack.enabled:
        _install_operator(nodes)


def _give_kernel_log(host: Host) -> None:
    """A /dev/kmsg of its own until it reboots, over that of this machine, which its kubelet has opened."""
    program = nspawn.folder(host) / "root" / _KMSG
    program.unlink(missing_ok=True)
    shutil.copy(KMSG.output, program)
    start = f"systemd-run --quiet --unit={KMSG.name} --service-type=notify /{_KMSG}"
    run(ssh.command(host, [f"systemctl is-active --quiet {KMSG.name} || {start}"]))


def _install_operator(nodes: Sequence[Host]) -> None:
    for tool in MONITORING:
        build(tool)
    import_where_absent(images.OPERATORS, images.OPERATOR_IMAGE, nodes)
    for name in ("kube-prometheus-stack", "prometheus-operator-crds"):
        shutil.rmtree(CHARTS / name, ignore_errors=True)
        shutil.copytree(_OURS / name, CHARTS / name)
    _add_crds(CHARTS / "prometheus-operator-crds" / "charts" / "crds" / "templates")
    # The lab's Prometheus keeps its data in its pod, and the survey is content with this class.
    server = next(host for host in nodes if host.role == "server")
    run(ssh.command(server, ["k3s kubectl apply -f -"]), stdin=json.dumps(STORAGE_CLASS))


def _add_crds(folder: Path) -> None:
    """The CRDs as templates, as in the official chart: Helm upgrades these, and marks them as its own.

    In a chart inside the chart, which Helm does not store with the release: one Secret could not hold both.
    """
    folder.mkdir()
    for file in (module_folder(OPERATOR.module, MODULE) / _CRDS).glob("*.yaml"):
        text = file.read_text(encoding="utf-8").replace("{{", "{{`{{`}}")
        (folder / file.name).write_text(text, encoding="utf-8")

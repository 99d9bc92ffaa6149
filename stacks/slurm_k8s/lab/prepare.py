"""Puts the images on the hosts, the charts where the stack names them, and a volume on a server."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import yaml

from busbar.manifests.operators import merge
from lab.build.go import build, edit
from lab.hosts import ssh
from lab.images.on_hosts import import_where_absent, k3s_hosts
from lab.paths import RUN
from lab.steps import run
from stacks.slurm_k8s.lab.images import operator_image, slurm_image
from stacks.slurm_k8s.lab.tools import OPERATOR, TOOLS, charts, checkout

CHARTS = RUN / "charts"
NAMES = ("slurm-operator-crds", "slurm-operator", "slurm")
# The archive of a module leaves out folders named vendor, so the chart lacks the file with these.
_HELPERS = ("enabled", "nodesetHasGPU", "jobMappingDir", "prologName", "epilogName")
_VALUES_1_0 = Path(__file__).with_name("values-1.0.yaml")
# slurm.conf of 1.0: the operator writes the first two itself, and another AuthInfo replaces its own. Without
# cgroups, as in the lab, it writes no ProctrackType and PrologFlags.
_CONF = ".Values.controller.extraConfMap)"
_CONF_1_0 = (
    '(omit .Values.controller.extraConfMap "GresTypes" "ReturnToService" '
    '| merge (dict "AuthInfo" "use_client_ids,cred_expire=30")))'
)
_CLASS = "busbar-lab-slurm"
_FOLDER = "/var/lib/busbar-lab/slurm"
_DEFAULT = {"storageclass.kubernetes.io/is-default-class": "true"}


def prepare() -> None:
    """Build what is missing, import images on the hosts that lack them, write charts. Raises LabError."""
    nodes = k3s_hosts()
    for tool in () if checkout() else TOOLS:
        build(tool)
    import_where_absent(operator_image.ARCHIVE, operator_image.image(OPERATOR.name), nodes)
    import_where_absent(slurm_image.ARCHIVE, slurm_image.IMAGES["slurmctld"], nodes)
    write_charts(CHARTS)
    server = next(host for host in nodes if host.role == "server")
    script = f"mkdir -p {_FOLDER} && k3s kubectl apply -f -"
    run(ssh.command(server, [script]), stdin=json.dumps(_volume(server.name)))


def write_charts(target: Path) -> None:
    """The charts of the release in use, as folders of `target`. Raises LabError."""
    copy_charts(charts(), target)
    if not checkout():
        take_values_of_1_2(target / "slurm")


def take_values_of_1_2(chart: Path) -> None:
    """Change the chart slurm of 1.0 so that it takes the values that busbar has for 1.2. Raises LabError."""
    add_left_out(chart)
    values, more = (yaml.safe_load(path.read_text()) for path in (chart / "values.yaml", _VALUES_1_0))
    (chart / "values.yaml").write_text(yaml.safe_dump(merge(values, more)))
    edit(chart / "templates/controller/_helpers.tpl", _CONF, _CONF_1_0)


def add_left_out(chart: Path) -> None:
    """Define the helpers that the archive of the module of 1.0 leaves out of the chart slurm."""
    helpers = "".join(f'{{{{- define "vendor.dcgm.{name}" -}}}}{{{{- end -}}}}\n' for name in _HELPERS)
    (chart / "templates" / "_lab.tpl").write_text(helpers)


def copy_charts(source: Path, target: Path) -> None:
    """The charts in `source`, which are those of a release, as folders of `target` that Helm accepts."""
    for name in NAMES:
        shutil.rmtree(target / name, ignore_errors=True)
        # Files of the module cache are read-only, and a copy of their modes could not be removed by others.
        shutil.copytree(source / name, target / name, copy_function=shutil.copyfile)
    # Helm wants the chart of every dependency, also of one that is switched off.
    about = target / "slurm-operator" / "Chart.yaml"
    described = yaml.safe_load(about.read_text())
    about.write_text(yaml.safe_dump({**described, "dependencies": []}))


def _volume(server: str) -> dict[str, object]:
    """A default class without a provisioner, and its volume: a folder of a server."""
    term = {"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": [server]}]}
    of_class = {
        "apiVersion": "storage.k8s.io/v1",
        "kind": "StorageClass",
        "metadata": {"name": _CLASS, "annotations": _DEFAULT},
        "provisioner": "kubernetes.io/no-provisioner",
        "volumeBindingMode": "WaitForFirstConsumer",
    }
    volume = {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": _CLASS},
        "spec": {
            "capacity": {"storage": "4Gi"},
            "accessModes": ["ReadWriteOnce"],
            "persistentVolumeReclaimPolicy": "Retain",
            "storageClassName": _CLASS,
            "local": {"path": _FOLDER},
            "nodeAffinity": {"required": {"nodeSelectorTerms": [term]}},
        },
    }
    return {"apiVersion": "v1", "kind": "List", "items": [of_class, volume]}

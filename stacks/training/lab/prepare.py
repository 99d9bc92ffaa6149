"""Builds what training needs and the lab lacks, and puts it on the hosts; a site has a registry for this."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

import yaml

from lab.build.go import build, module_folder
from lab.images.on_hosts import import_where_absent, k3s_hosts
from lab.paths import RUN
from lab.topology import Host
from stacks.training.lab.images import multus_image, torch_image, trainer_image, training_operator_image
from stacks.training.lab.tools import (
    MULTUS_MODULES,
    MULTUS_TOOLS,
    TRAINER_MODULES,
    TRAINER_TOOLS,
    TRAINING_OPERATOR_TOOL,
)
from stacks.training.package import config

CHART = RUN / "charts" / "kubeflow-trainer"
MULTUS_CHART = RUN / "charts" / "rke2-multus"


def prepare(training: config.Training) -> None:
    """Build what is missing, and import images on the hosts that lack them.

    Kubeflow Trainer, Training Operator v1 and Multus only where the stack has them. Raises LabError
    where a host is not responding.
    """
    nodes = k3s_hosts()
    _import(torch_image, [host for host in nodes if host.role == "worker"])
    if training.trainer.enabled:
        for tool in TRAINER_TOOLS:
            build(tool)
        _import(trainer_image, nodes)
        _chart()
    if training.training_operator.enabled:
        build(TRAINING_OPERATOR_TOOL)
        _import(training_operator_image, nodes)
    if training.networks:
        for tool in MULTUS_TOOLS:
            build(tool)
        _import(multus_image, nodes)
        _multus_chart()


def _import(module: ModuleType, hosts: Sequence[Host]) -> None:
    """Import the archive of `module`, which also has the name of one of its images."""
    import_where_absent(module.archive(), module.IMAGE, hosts)


def _multus_chart() -> None:
    """The lab's chart, with the CRDs of the Go modules."""
    multus, whereabouts = (module_folder(MULTUS_TOOLS[0].module, path) for path in MULTUS_MODULES)
    shutil.rmtree(MULTUS_CHART, ignore_errors=True)
    shutil.copytree(Path(__file__).parent / "charts" / MULTUS_CHART.name, MULTUS_CHART)
    crds = MULTUS_CHART / "crds"
    crds.mkdir()
    # As in the official chart the release has this CRD, unless a value says otherwise.
    manifests = yaml.safe_load_all((multus / "deployments" / "multus-daemonset.yml").read_text())
    definitions = [each for each in manifests if each["kind"] == "CustomResourceDefinition"]
    wanted = "{{- if .Values.manifests.customResourceDefinition }}\n"
    text = wanted + yaml.safe_dump_all(definitions) + "{{- end }}\n"
    (MULTUS_CHART / "templates" / "crd.yaml").write_text(text)
    for file in (whereabouts / "doc" / "crds").glob("whereabouts.cni.cncf.io_*.yaml"):
        shutil.copyfile(file, crds / file.name)


def _chart() -> None:
    """The chart of the release, from its Go module, with that of JobSet in it as the release has it."""
    folders = [module_folder(TRAINER_TOOLS[0].module, path) for path in TRAINER_MODULES]
    trainer, jobset = folders[0] / "charts" / "kubeflow-trainer", folders[1] / "charts" / "jobset"
    stage = CHART.with_name(CHART.name + ".new")
    for folder in (stage, CHART):
        shutil.rmtree(folder, ignore_errors=True)
    # Files of the module cache are read-only, and a copy of their modes could not be removed by others.
    shutil.copytree(trainer, stage, copy_function=shutil.copyfile)
    shutil.copytree(jobset, stage / "charts" / "jobset", copy_function=shutil.copyfile)
    # Helm wants the chart of every dependency, also of one that is switched off: lws is for the data cache.
    about = yaml.safe_load((stage / "Chart.yaml").read_text())
    about["dependencies"] = [each for each in about["dependencies"] if each["name"] == "jobset"]
    (stage / "Chart.yaml").write_text(yaml.safe_dump(about))
    stage.replace(CHART)

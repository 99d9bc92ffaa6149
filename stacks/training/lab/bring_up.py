"""`make up-training`: stacks/training on the lab's cluster, as a site would run it after `make up`."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType
from typing import NoReturn

import yaml
import zstandard

from busbar.config import ConfigError, stackfile
from lab.build.go import build, module_folder
from lab.engine.environment import environment
from lab.hosts import machine, ssh
from lab.images import build_all
from lab.paths import RUN, cache, tools
from lab.status import known_hosts
from lab.steps import LabError, run, step
from lab.topology import PROJECT, Host
from stacks.training.lab.images import (
    kueue_image,
    multus_image,
    torch_image,
    trainer_image,
    training_operator_image,
)
from stacks.training.lab.tools import (
    KUEUE_MODULE,
    KUEUE_TOOL,
    MULTUS_MODULES,
    MULTUS_TOOLS,
    TRAINER_MODULES,
    TRAINER_TOOLS,
    TRAINING_OPERATOR_TOOL,
)
from stacks.training.package import config

STACKS_TRAINING = PROJECT / "stacks" / "training"
CHART = RUN / "charts" / "kubeflow-trainer"
KUEUE_CHART = RUN / "charts" / "kueue"
MULTUS_CHART = RUN / "charts" / "rke2-multus"
IMPORT_SECONDS = 300
# containerd keeps it with the image, so it is gone when the image is.
_LABEL = "busbar.lab/recipe"
_CTR = "k3s ctr images"


def bring_up(stack: str) -> NoReturn:
    """Prepare the hosts and become `busbar up` of `stack`: its exit code is that of the make target.

    Raises LabError where the lab is not up, or there is no such stack.
    """
    machine.require_root()
    prepare(_configuration(stack))
    os.environ.update(environment())
    sys.stdout.flush()
    os.chdir(PROJECT)
    command = [sys.executable, "-m", "busbar", "up", stack, "--project", str(STACKS_TRAINING)]
    os.execv(sys.executable, [*command, "--yes", "--skip-preview"])


def _configuration(stack: str) -> config.Training:
    try:
        return config.read(stackfile.find(stack, STACKS_TRAINING))
    except (stackfile.NoStackFileError, ConfigError) as error:
        raise LabError(str(error)) from None


def prepare(training: config.Training) -> None:
    """Build what is missing, and import images on the hosts that lack them; a site has a registry for this.

    Kubeflow Trainer, Training Operator v1, Kueue and Multus only where the stack has them. Raises LabError
    where a host does not answer.
    """
    nodes = [host for host in known_hosts() if host.role != "lb"]
    if silent := [host.name for host in nodes if not ssh.answers(host)]:
        raise LabError(f"{', '.join(silent)} does not answer ssh: the lab is not up. Fix: `make up`")
    _import_where_absent(torch_image, [host for host in nodes if host.role == "worker"])
    if training.trainer.enabled:
        for tool in TRAINER_TOOLS:
            build(tool)
        _import_where_absent(trainer_image, nodes)
        _chart()
    if training.training_operator.enabled:
        build(TRAINING_OPERATOR_TOOL)
        _import_where_absent(training_operator_image, nodes)
    if training.kueue.enabled:
        build(KUEUE_TOOL)
        _import_where_absent(kueue_image, nodes)
        _kueue_chart()
    if training.networks:
        for tool in MULTUS_TOOLS:
            build(tool)
        _import_where_absent(multus_image, nodes)
        _multus_chart()


def _multus_chart() -> None:
    """The lab's chart, with the CRDs of the Go modules."""
    multus, whereabouts = (module_folder(MULTUS_TOOLS[0].module, path) for path in MULTUS_MODULES)
    shutil.rmtree(MULTUS_CHART, ignore_errors=True)
    shutil.copytree(Path(__file__).parent / "charts" / MULTUS_CHART.name, MULTUS_CHART)
    crds = MULTUS_CHART / "crds"
    crds.mkdir()
    manifests = yaml.safe_load_all((multus / "deployments" / "multus-daemonset.yml").read_text())
    definitions = [each for each in manifests if each["kind"] == "CustomResourceDefinition"]
    (crds / "multus.yaml").write_text(yaml.safe_dump_all(definitions))
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


def _kueue_chart() -> None:
    """The chart of the release, from its Go module."""
    shutil.rmtree(KUEUE_CHART, ignore_errors=True)
    module = module_folder(KUEUE_TOOL.module, KUEUE_MODULE)
    shutil.copytree(module / "charts" / "kueue", KUEUE_CHART, copy_function=shutil.copyfile)


def _import_where_absent(module: ModuleType, hosts: Sequence[Host]) -> None:
    """Build the archive of `module` and import it; `module` also has the name of one of its images."""
    [archive] = build_all(cache(), tools(), [module.archive()])
    recipe = module.archive().recipe(tools())
    absent = [host for host in hosts if not _has(host, module.IMAGE, recipe)]
    if not absent:
        return
    names = ", ".join(host.name for host in absent)
    with step(f"import {archive.name} on {names}"), ThreadPoolExecutor(len(absent)) as pool:
        list(pool.map(lambda host: _import(host, archive, module.IMAGE, recipe), absent))


def _has(host: Host, image: str, recipe: str) -> bool:
    wanted = f'name=={image},labels."{_LABEL}"=={recipe}'
    return bool(run(ssh.command(host, [f"{_CTR} list --quiet '{wanted}'"])).stdout.strip())


def _import(host: Host, archive: Path, image: str, recipe: str) -> None:
    """Stream the archive, decompressed, to the host's containerd. Raises LabError."""
    script = f"{_CTR} import - && {_CTR} label {image} {_LABEL}={recipe}"
    with (
        archive.open("rb") as packed,
        subprocess.Popen(
            ssh.command(host, [script]),
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        ) as importing,
    ):  # fmt: skip
        assert importing.stdin is not None
        # Where it has ended early, it says why.
        with contextlib.suppress(BrokenPipeError):
            zstandard.ZstdDecompressor().copy_stream(packed, importing.stdin)
        try:
            printed, _ = importing.communicate(timeout=IMPORT_SECONDS)
        except subprocess.TimeoutExpired:
            importing.kill()
            raise LabError(
                f"{host.name}: the import of {archive.name} timed out after {IMPORT_SECONDS} s"
            ) from None
    if importing.returncode != 0:
        said = printed.decode(errors="replace").strip()
        raise LabError(f"{host.name}: the import of {archive.name} failed: {said}")

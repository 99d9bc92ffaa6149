"""The programs of slurm-operator: of the module that go/slurm-operator/go.mod pins, or of a checkout."""

from __future__ import annotations

import os
from pathlib import Path

from lab.build.go import Tool, module_folder
from lab.steps import LabError

MODULE = "github.com/SlinkyProject/slurm-operator"
_FOLDER = Path(__file__).resolve().parent / "go" / "slurm-operator"
# Later versions need a version of slurm-client that the module proxy does not serve.
VERSION = "1.0.0"
VARIABLE = "BUSBAR_LAB_SLURM_OPERATOR"

OPERATOR = Tool("slurm-operator", f"{MODULE}/cmd/manager", _FOLDER)
WEBHOOK = Tool("slurm-operator-webhook", f"{MODULE}/cmd/webhook", _FOLDER)
TOOLS = (OPERATOR, WEBHOOK)


def checkout() -> Path | None:
    """The release that BUSBAR_LAB_SLURM_OPERATOR names: its sources, with the programs in bin/.

    None where it is not set: the lab then builds the pinned release. Raises LabError when it names none.
    """
    if not (chosen := os.environ.get(VARIABLE)):
        return None
    path = Path(chosen).expanduser().resolve()
    wanted = ["VERSION", *(f"bin/{tool.name}" for tool in TOOLS)]
    if missing := [name for name in wanted if not (path / name).is_file()]:
        raise LabError(
            f"{VARIABLE}={chosen}: {', '.join(missing)} missing. Fix: name the sources of a release of "
            "slurm-operator with its programs, or unset it"
        )
    return path


def version() -> str:
    """The version of the release in use. Raises LabError."""
    found = checkout()
    return (found / "VERSION").read_text().strip() if found else VERSION


def charts() -> Path:
    """The folder with the charts of the release in use. Raises LabError."""
    return (checkout() or module_folder(OPERATOR.module, MODULE)) / "helm"

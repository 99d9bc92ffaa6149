"""The programs of slurm-operator, from the module that pins their version (go/slurm-operator/go.mod)."""

from __future__ import annotations

from pathlib import Path

from lab.build.go import Tool

MODULE = "github.com/SlinkyProject/slurm-operator"
_FOLDER = Path(__file__).resolve().parent / "go" / "slurm-operator"
# Later versions need a version of slurm-client that the module proxy does not serve.
VERSION = "1.0.0"

OPERATOR = Tool("slurm-operator", f"{MODULE}/cmd/manager", _FOLDER)
WEBHOOK = Tool("slurm-operator-webhook", f"{MODULE}/cmd/webhook", _FOLDER)
TOOLS = (OPERATOR, WEBHOOK)

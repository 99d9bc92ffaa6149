"""The programs that watch needs, from the module that pins their version (go/prometheus-operator/go.mod)."""

from __future__ import annotations

from pathlib import Path

from lab.build.go import Tool

MODULE = "github.com/prometheus-operator/prometheus-operator"
_FOLDER = Path(__file__).resolve().parent / "go" / "prometheus-operator"

OPERATOR = Tool("prometheus-operator", f"{MODULE}/cmd/operator", _FOLDER)
RELOADER = Tool("prometheus-config-reloader", f"{MODULE}/cmd/prometheus-config-reloader", _FOLDER)
TOOLS = (OPERATOR, RELOADER)

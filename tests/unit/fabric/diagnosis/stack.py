"""A stack whose diagnosis finds what a test says, for the command as it is typed."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import yaml

from busbar.cli import stackfile
from busbar.fabric.diagnosis import Diagnosis, Scope, State
from busbar.fabric.localise import Group
from tests.support.cli import busbar
from tests.unit.fabric.measure.foreign import Foreign

FILE = Path("Pulumi.prod.yaml")
COMMENT = "# gpu-2 is in rack 7\n"


class Stack:
    """The stack `prod`. `state`: what its diagnosis finds; `scopes`: what was diagnosed."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, folder: Path, cluster: dict[str, Any], nodes: Iterable[str]
    ) -> None:
        monkeypatch.chdir(folder)
        Path("Pulumi.yaml").write_text("name: busbar\n")
        FILE.write_text(COMMENT + yaml.safe_dump({"config": {"busbar:cluster": cluster}}, sort_keys=False))
        monkeypatch.setattr(stackfile, "kubeconfig_of", lambda file: "")
        monkeypatch.setattr("busbar.operations.verify.connect", lambda *_: Foreign())
        self.state = State(key="", began=0, nodes=[*nodes], is_over=True, seconds=90, node_seconds=270)
        self.scopes: list[Scope] = []

        def run(diagnosis: Diagnosis) -> State:
            self.scopes.append(diagnosis.scope)
            return self.state

        monkeypatch.setattr(Diagnosis, "run", run)

    def pair(self, stage: Any, busbw: float | None, *nodes: str, reason: str = "") -> None:
        group = Group(stage, len(self.state.results), "in_group", nodes)
        self.state.results.append((group, busbw, reason))


def diagnose(*words: str) -> Any:
    return busbar("diagnose", "prod", *words)

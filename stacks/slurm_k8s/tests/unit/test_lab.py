"""The release of the operator that BUSBAR_LAB_SLURM_OPERATOR names to the lab."""

from __future__ import annotations

from pathlib import Path

import pytest

from lab.steps import LabError
from stacks.slurm_k8s.lab.tools import VARIABLE, checkout


def test_a_release_without_its_programs_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "VERSION").write_text("1.2.1\n")
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    with pytest.raises(
        LabError, match=r"bin/slurm-operator, .* missing\. Fix: name the sources of a release"
    ):
        checkout()

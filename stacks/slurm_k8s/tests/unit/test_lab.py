"""The lab builds operator 1.0, or takes the release that BUSBAR_LAB_SLURM_OPERATOR names."""

from __future__ import annotations

from pathlib import Path

import pytest

from lab.steps import LabError
from stacks.slurm_k8s.lab import prepare
from stacks.slurm_k8s.lab.images import operator_image
from stacks.slurm_k8s.lab.tools import VARIABLE, checkout, version


def release(folder: Path) -> Path:
    """The sources of a release with its programs, as far as the lab reads them."""
    texts = {"VERSION": "1.2.1\n", "bin/slurm-operator": "", "bin/slurm-operator-webhook": ""}
    texts |= {f"helm/{name}/Chart.yaml": f"name: {name}\n" for name in prepare.NAMES}
    for name, text in texts.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


def test_without_the_variable_the_lab_has_the_release_that_it_can_build(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    assert (checkout(), version()) == (None, "1.0.0")


def test_the_variable_names_programs_and_charts_of_another_release_which_are_used_as_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, str(release(tmp_path / "release")))
    assert operator_image.image("slurm-operator") == "docker.io/busbar-lab/slurm-operator:1.2.1"
    prepare.write_charts(tmp_path / "charts")
    assert (tmp_path / "charts/slurm/Chart.yaml").read_text() == "name: slurm\n"
    assert not (tmp_path / "charts/slurm/templates").exists()


def test_a_release_without_its_programs_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (release(tmp_path) / "bin/slurm-operator").unlink()
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    with pytest.raises(LabError, match="bin/slurm-operator missing"):
        checkout()

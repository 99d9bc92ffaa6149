"""The processes of a host, read while they end."""

import errno
import shutil
from pathlib import Path
from typing import Any

import pytest

from lab.hosts import cgroups


@pytest.mark.parametrize("code", [errno.ENOENT, errno.ENODEV])
def test_a_cgroup_that_ends_while_it_is_read_has_no_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    for name, pids in (("ends", "7\n"), ("lives", "8\n9\n")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "cgroup.procs").write_text(pids)
    read = Path.read_text

    def ending(path: Path, *given: Any, **more: Any) -> str:
        if path.parent.name == "ends":
            raise OSError(code, "it has ended")
        return read(path, *given, **more)

    monkeypatch.setattr(cgroups, "_tops", lambda name: [tmp_path])
    monkeypatch.setattr(Path, "read_text", ending)
    assert cgroups.processes("worker-1") == {8, 9}


def test_a_cgroup_that_goes_before_its_turn_has_no_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "cgroup.procs").write_text("7\n")
    read = Path.read_text

    def ending(path: Path, *given: Any, **more: Any) -> str:
        if path.parent != tmp_path:
            for other in {*tmp_path.iterdir()} - {path.parent}:
                shutil.rmtree(other)
        return read(path, *given, **more)

    monkeypatch.setattr(cgroups, "_tops", lambda name: [tmp_path])
    monkeypatch.setattr(Path, "read_text", ending)
    assert cgroups.processes("worker-1") == {7}

"""A healthy cluster's evidence, made once and copied for each test."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from busbar.config.stackfile import StackFile
from busbar.fabric.diagnosis.stages import StageLog
from busbar.fabric.localise import Group
from busbar.judge.archive import Archive
from busbar.judge.nccl.judgement import judge_archive
from stacks.accept.package import commands, document, evidence, running
from stacks.accept.package.evidence import Machines, machine_of
from stacks.accept.package.verify import NAMESPACE, sign
from stacks.accept.tests.unit import made


@pytest.fixture(autouse=True)
def machines(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every worker is the machine of its number whenever a stage asks; a test of the question undoes it."""

    def answers(on: running.Running, at: str) -> Machines:
        workers = [name for pool in on.pools.values() for name in pool.workers]
        hosts = {
            name: machine_of(made.host(int(name.rpartition("-")[2]))["also"])
            for name in workers
            if name.rpartition("-")[2].isdecimal()
        }
        return Machines(run=on.run, at=at, hosts=hosts)

    monkeypatch.setattr(running.Running, "ask_machines", answers)


@pytest.fixture
def stack(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a project, whose stack `prod` is the cluster."""
    file = StackFile(tmp_path / "Pulumi.prod.yaml", {}, frozenset())
    monkeypatch.setattr(commands, "load_stack", lambda stack, project: (file, made.site_of()[0]))
    return tmp_path


_LOGS: dict[bytes, Any] = {}
_GROUPS: dict[tuple[object, ...], tuple[Any, tuple[str, ...]]] = {}


@pytest.fixture(autouse=True)
def judged_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same log with the same record is judged once: nearly all logs of a test are those of `healthy`."""
    judge_group = StageLog._judged

    def of_archive(archive: Archive) -> Any:
        files = sorted(path for path in archive.folder.iterdir() if path.is_file())
        key = b"\0".join(part for path in files for part in (path.name.encode(), path.read_bytes()))
        if key not in _LOGS:
            _LOGS[key] = judge_archive(archive)
        return _LOGS[key]

    def of_group(log: StageLog, group: Group) -> Any:
        key = (*log._block, len(group.nodes), group.rail is None, log._slots, log._max_bytes)
        if key not in _GROUPS:
            known, log.hcas = log.hcas, ()
            _GROUPS[key] = judge_group(log, group), log.hcas
            log.hcas = known
        found, hcas = _GROUPS[key]
        log.hcas = log.hcas or hcas
        return found

    monkeypatch.setattr(evidence, "judge_archive", of_archive)
    monkeypatch.setattr(StageLog, "_judged", of_group)


@pytest.fixture(scope="session")
def healthy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Not to be changed."""
    return made.evidence(tmp_path_factory.mktemp("healthy"))


@pytest.fixture
def folder(healthy: Path, tmp_path: Path) -> Path:
    """A copy."""
    return Path(shutil.copytree(healthy, tmp_path / "acceptance"))


@pytest.fixture(scope="session")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two keys, and a file allowed_signers that knows both."""
    home = tmp_path_factory.mktemp("keys")
    lines = []
    for name in ("seller", "buyer", "stranger"):
        words = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", name, "-f", str(home / name)]
        subprocess.run(words, check=True)
        public = " ".join((home / f"{name}.pub").read_text().split()[:2])
        if name != "stranger":
            lines.append(f'{name}@example.com namespaces="{NAMESPACE}" {public}\n')
    (home / "signers").write_text("".join(lines))
    return home


@pytest.fixture(scope="session")
def accepted(healthy: Path) -> Path:
    """The document of a healthy cluster. Not to be changed."""
    document.write(healthy)
    return healthy


@pytest.fixture
def written(accepted: Path, tmp_path: Path) -> Path:
    """A copy with its document."""
    return Path(shutil.copytree(accepted, tmp_path / "written"))


@pytest.fixture
def signed(written: Path, keys: Path) -> Path:
    """A copy, signed by the seller."""
    sign(written, keys / "seller")
    return written

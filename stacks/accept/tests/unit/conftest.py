"""A healthy cluster's evidence, made once and copied for each test."""

import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from busbar.config.stackfile import StackFile
from busbar.fabric.diagnosis import stages
from busbar.judge.archive import Archive
from busbar.judge.nccl import Expectation, judge_log, read_lines
from busbar.judge.nccl.log.reader import ParsedLog
from busbar.judge.nccl.verdict import judge_archive
from stacks.accept.package import commands, document, evidence, running
from stacks.accept.package.document import NAMESPACE, sign
from stacks.accept.package.evidence import LOG_FILES, Machines, Parts
from stacks.accept.tests.unit import made


@pytest.fixture(autouse=True)
def machines(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every worker is the machine of its number whenever a stage asks; a test of the question undoes it."""

    def answers(on: running.Running, at: str) -> Machines:
        workers = [name for pool in on.pools.values() for name in pool.workers]
        hosts = {
            name: Parts(**made.host(int(name.rpartition("-")[2]))["also"]).identity
            for name in workers
            if name.rpartition("-")[2].isdecimal()
        }
        return Machines(run=on.begun.run, at=at, hosts=hosts)

    monkeypatch.setattr(running.Running, "ask_machines", answers)


@pytest.fixture
def stack(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a project, whose stack `prod` is the cluster."""
    file = StackFile(tmp_path / "Pulumi.prod.yaml", {}, frozenset())
    monkeypatch.setattr(commands, "load_stack", lambda stack, project: (file, made.site_of()[0]))
    return tmp_path


_KNOWN: dict[object, Any] = {}


@pytest.fixture(autouse=True)
def judged_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The judge of the core is asked once for the same log: it depends on its arguments alone.

    All code of this capability runs. `accepted` is made before, with the judge itself.
    """

    def once(key: object, judge: Callable[[], Any]) -> Any:
        if key not in _KNOWN:
            _KNOWN[key] = judge()
        return _KNOWN[key]

    def of_archive(archive: Archive) -> Any:
        log, source = (archive.folder / name for name in LOG_FILES)
        return once((log.read_bytes(), source.read_bytes()), lambda: judge_archive(archive))

    def of_block(lines: list[bytes]) -> Any:
        return once(tuple(lines), lambda: read_lines(lines))

    def of_log(log: ParsedLog, expectation: Expectation) -> Any:
        return once((id(log), expectation.model_dump_json()), lambda: judge_log(log, expectation))

    monkeypatch.setattr(evidence, "judge_archive", of_archive)
    monkeypatch.setattr(stages, "read_lines", of_block)
    monkeypatch.setattr(stages, "judge_log", of_log)


@pytest.fixture(scope="session")
def healthy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Not to be changed."""
    return made.evidence(tmp_path_factory.mktemp("healthy"))


def copied(good: Path, to: Path) -> Iterator[Path]:
    yield Path(shutil.copytree(good, to))
    shutil.rmtree(to, ignore_errors=True)


@pytest.fixture
def folder(healthy: Path, tmp_path: Path) -> Iterator[Path]:
    yield from copied(healthy, tmp_path / "folder")


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
    folder = Path(shutil.copytree(healthy, healthy.with_name("accepted")))
    document.write(folder)
    return folder


@pytest.fixture
def written(accepted: Path, tmp_path: Path) -> Iterator[Path]:
    yield from copied(accepted, tmp_path / "written")


@pytest.fixture
def signed(written: Path, keys: Path) -> Path:
    sign(written, keys / "seller")
    return written

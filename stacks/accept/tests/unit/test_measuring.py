"""The stages that run programs on hosts: stress, and shared storage."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from stacks.accept.package.evidence import Printed
from stacks.accept.package.running import Running, run_stage
from stacks.accept.package.subjects import storage, stress
from stacks.accept.tests.unit import made
from tests.support.cli import busbar
from tests.unit.hosts.bash import output

GOOD = made.stored()


class Hosts:
    """Workers that print what they are told to; what they were asked for."""

    def __init__(self, **answers: dict[str, Any]) -> None:
        self.answers, self.asked = answers, list[tuple[str, tuple[str, ...]]]()

    def __call__(self, on: Running, names: Iterable[str], verb: str, *_: Any, **values: str) -> Printed:
        chosen = tuple(names)
        self.asked.append((verb, chosen))
        found = {name: self.answers.get(name, self.answers.get("all", {})).get(verb, {}) for name in chosen}
        failed = {name: each for name, each in found.items() if isinstance(each, str)}
        return Printed(
            run=on.run, hosts={n: each for n, each in found.items() if n not in failed}, failed=failed
        )


def answering(hosts: Hosts) -> Any:
    return lambda on, *words, **values: hosts(on, *words, **values)


@pytest.fixture
def on(tmp_path: Path) -> Running:
    return made.running(tmp_path, storage="/mnt/data")


def free(monkeypatch: pytest.MonkeyPatch, *later: str) -> None:
    """Both workers are free at the beginning, and LATER after it."""
    kept = later or made.WORKERS
    monkeypatch.setattr(Running, "free_nodes", lambda on, pool, wait=True: made.WORKERS if wait else kept)


def test_all_nodes_are_stressed_at_once(on: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    hosts = Hosts(all={"stress": made.stressed()})
    monkeypatch.setattr(Running, "on_hosts", answering(hosts))
    free(monkeypatch)
    run_stage(stress.STAGE, on)
    assert hosts.asked == [("stress", made.WORKERS)]
    assert made.result(on.folder, "stress.h100.diag").result == "pass"


def test_a_node_whose_gpus_a_pod_took_meanwhile_has_no_result(
    on: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Running, "on_hosts", answering(Hosts(all={"stress": made.stressed()})))
    free(monkeypatch, "worker-1")
    run_stage(stress.STAGE, on)
    found = made.result(on.folder, "stress.h100.diag")
    assert (found.result, found.reason) == ("not run", "worker-2: a pod took GPUs of the node meanwhile")


def test_without_dcgm_on_any_node_the_stress_is_not_run_and_the_package_is_named(
    on: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    error = json.loads(output("accept/measure", "PATH=/usr/bin:/bin; stress"))["error"]
    monkeypatch.setattr(Running, "on_hosts", answering(Hosts(all={"stress": {"error": error, "diag": ""}})))
    free(monkeypatch)
    run_stage(stress.STAGE, on)
    found = made.result(on.folder, "stress.h100.diag")
    expected = "no DCGM: dcgmi is not installed (package datacenter-gpu-manager-4-core)"
    assert (found.result, found.reason) == ("not run", expected)


def test_storage_is_measured_on_one_node_and_on_all_where_the_folder_is_the_same(
    on: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    hosts = Hosts(all={"mount": made.stored(), "fio": made.fio()})
    monkeypatch.setattr(Running, "on_hosts", answering(hosts))
    run_stage(storage.STAGE, on)
    first, both = made.WORKERS[:1], made.WORKERS
    asked = [
        ("clear", first),
        ("mount", first),
        ("mount", both),
        ("fio", first),
        ("fio", both),
        ("clear", first),
    ]
    assert hosts.asked == asked
    assert made.result(on.folder, "storage.h100.read").value == 4.0


def test_a_folder_that_one_node_has_not_mounted_is_not_measured_and_left_empty(
    on: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    hosts = Hosts(all={"mount": made.stored(), "fio": made.fio()})
    hosts.answers["worker-2"] = {"mount": {"mount": "", "free_bytes": 0, "seen": ""}}
    monkeypatch.setattr(Running, "on_hosts", answering(hosts))
    run_stage(storage.STAGE, on)
    assert [verb for verb, _ in hosts.asked] == ["clear", "mount", "mount", "clear"]
    assert "worker-2: the folder is not there" in made.result(on.folder, "storage.h100.mount").reason


def test_a_node_that_does_not_answer_leaves_the_storage_unknown(
    on: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    hosts = Hosts(all={"mount": made.stored()})
    hosts.answers["worker-2"] = {"mount": "worker-2: no route to host"}
    monkeypatch.setattr(Running, "on_hosts", answering(hosts))
    run_stage(storage.STAGE, on)
    found = made.result(on.folder, "storage.h100.mount")
    assert (found.result, found.reason) == ("unknown", "worker-2: no route to host")


def test_without_a_folder_the_storage_is_not_run(on: Running) -> None:
    run_stage(storage.STAGE, replace(on, begun=made.begun(on.folder)))
    assert "--storage PATH" in made.result(on.folder, "storage.h100.read").reason


@pytest.mark.parametrize("path", ["mnt/data", "/", "//", "/mnt/\ndata"])
def test_a_folder_that_cannot_be_shared_storage_is_refused(path: str, stack: Path) -> None:
    done = busbar("accept", "run", "prod", "--storage", path)
    assert (done.exit_code, "expected the path of a folder" in done.stderr) == (64, True)


def script(call: str, folder: Path, **values: str) -> dict[str, Any]:
    done = output("accept/measure", call, FOLDER=str(folder), RUN="accept-1", **values)
    found: dict[str, Any] = json.loads(done)
    return found


def test_a_file_of_one_host_is_seen_in_the_folder_and_is_cleared(tmp_path: Path) -> None:
    assert script("mount_of", tmp_path)["seen"] == ""
    assert script("mount_of", tmp_path, LEAVE="true")["seen"] == "accept-1"
    found = script("mount_of", tmp_path)
    assert (found["seen"], found["free_bytes"] > 0, len(found["mount"].split())) == ("accept-1", True, 3)
    output("accept/measure", "VERB=clear; begin() { :; }; main", FOLDER=str(tmp_path), RUN="accept-1")
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_is_not_there_is_not_made(tmp_path: Path) -> None:
    missing = tmp_path / "missing"
    assert script("mount_of", missing, LEAVE="true") == {"mount": "", "free_bytes": 0, "seen": ""}
    assert not missing.exists()


def test_clocks_are_sampled_while_dcgm_runs_and_nothing_is_left_running(tmp_path: Path) -> None:
    for name, body in {
        "dcgmi": '[[ $* == --version ]] || { sleep 1; echo "{}"; exit 226; }',
        "nvidia-smi": 'echo "00000000:1B:00.0, 0x0000000000000004"',
    }.items():
        (tmp_path / name).write_text(f"#!/bin/bash\n{body}\n")
        (tmp_path / name).chmod(0o755)
    found = script(f"PATH={tmp_path}:$PATH SAMPLE_SECONDS=0.1; stress", tmp_path)
    assert (found["diag"], found["error"]) == ("{}", "dcgmi ended with exit code 226: ")
    count, line = found["clocks"].split(maxsplit=1)
    assert (int(count) > 2, line) == (True, "00000000:1B:00.0, 0x0000000000000004")

"""The stage of the cabling: which hosts are asked, and why there may be no fabric."""

from __future__ import annotations

import base64
import gzip
import json
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from stacks.accept.package import commands
from stacks.accept.package.evidence import Inventory, Printed
from stacks.accept.package.running import Running, run_stage
from stacks.accept.package.subjects import cabling as stage
from stacks.accept.package.subjects.cabling import read_design
from stacks.accept.tests.net import Net
from stacks.accept.tests.unit import made
from tests.support.cli import busbar
from tests.unit.hosts.bash import output

Answers = dict[str, Any]


def packed(text: str) -> dict[str, str]:
    return {"simulated": "", "error": "", "text": base64.b64encode(gzip.compress(text.encode())).decode()}


@pytest.fixture
def on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Running:
    return made.running(tmp_path, cabling=made.design(made.cabling()))


def answering(monkeypatch: pytest.MonkeyPatch, answers: Answers) -> list[str]:
    """The names of the hosts that are asked. ANSWERS: host -> what it prints, or why it prints nothing."""
    asked: list[str] = []

    def on_hosts(on: Running, names: Iterable[str], *_: Any) -> Printed:
        [name] = names
        asked.append(name)
        found = answers[name]
        if isinstance(found, str):
            return Printed(run=on.run, hosts={}, failed={name: found})
        return Printed(run=on.run, hosts={name: found})

    monkeypatch.setattr(Running, "on_hosts", on_hosts)
    return asked


def judged(on: Running) -> Any:
    made.inventory(on.folder)
    run_stage(stage.STAGE, on)
    return made.result(on.folder, "cabling.h100.rails")


def test_one_host_is_asked_and_sees_all_cables(on: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = answering(monkeypatch, {"worker-1": packed(made.cabling().text())})
    assert (judged(on).result, asked) == ("pass", ["worker-1"])


def test_a_host_that_does_not_answer_is_replaced_by_the_next(
    on: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = packed(made.cabling().text())
    asked = answering(monkeypatch, {"worker-1": "worker-1: no route to host", "worker-2": text})
    assert (judged(on).result, asked) == ("pass", ["worker-1", "worker-2"])


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        ({"error": "ibnetdiscover is not installed (package infiniband-diags)"}, "infiniband-diags"),
        ({"error": "ibnetdiscover ended with exit code 1: ibwarn: mad_rpc failed"}, "mad_rpc failed"),
        ("no route to host", "no route"),
        (packed("#\n" * (20 << 20)), "more than 8 MiB"),
        ({"text": "not base64!"}, "cannot be unpacked"),
        ({"text": base64.b64encode(b"no gzip").decode()}, "cannot be unpacked"),
    ],
)
def test_where_no_host_sees_the_fabric_the_rows_are_not_run_and_say_why(
    on: Running, monkeypatch: pytest.MonkeyPatch, answer: Any, why: str
) -> None:
    answering(monkeypatch, {"worker-1": answer, "worker-2": answer})
    found = judged(on)
    assert (found.result, why in found.reason) == ("not run", True), found.reason


def test_a_pool_without_infiniband_has_no_cabling_and_does_not_need_one(on: Running) -> None:
    pool = on.pools["h100"]
    ethernet = pool.model_copy(
        update={"required": pool.required.model_copy(update={"link_layer": "ethernet"})}
    )
    site = on.begun.site.model_copy(update={"pools": {"h100": ethernet}})
    begun = on.begun.model_copy(update={"site": site})
    assert stage.cabling(replace(on, begun=begun)) == {"h100": "the pool has no InfiniBand"}
    from stacks.accept.package import criteria

    rows = {row.id: row.required for row in criteria.default(site).rows}
    assert (rows["cabling.h100.rails"], rows["inventory.h100.hcas"]) == (False, True)


def test_the_cabling_as_built_is_printed_and_passes_as_the_design(
    on: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    answering(monkeypatch, {"worker-1": packed(made.cabling().text())})
    hosts = {f"worker-{number}": made.host(number) for number in (1, 2)}
    found = Inventory(run=on.run, hosts=hosts)  # type: ignore[arg-type]
    monkeypatch.setattr(stage, "ask_workers", lambda on: found)
    monkeypatch.setattr(commands, "load_stack", lambda stack, project: (on.file, on.cluster))
    done = busbar("accept", "cabling", "prod")
    assert (done.exit_code, done.stdout) == (0, made.design(made.cabling()))


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        ("no route to host", "no route to host"),
        (packed("#\n"), "worker-1: ibnetdiscover printed no switch"),
        (
            packed(Net.of({"other": {"mlx5_0": 7}}).text()),
            "no rail of a worker is in the fabric that worker-1 sees",
        ),
    ],
)
def test_without_a_fabric_the_command_ends_with_2(
    on: Running, monkeypatch: pytest.MonkeyPatch, answer: Any, why: str
) -> None:
    answering(monkeypatch, dict.fromkeys(made.WORKERS, answer))
    hosts = {f"worker-{number}": made.host(number) for number in (1, 2)}
    found = Inventory(run=on.run, hosts=hosts)  # type: ignore[arg-type]
    monkeypatch.setattr(stage, "ask_workers", lambda on: found)
    monkeypatch.setattr(commands, "load_stack", lambda stack, project: (on.file, on.cluster))
    done = busbar("accept", "cabling", "prod")
    assert (done.exit_code, why in " ".join(done.stderr.split())) == (2, True)


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (None, "No such file"),
        (b"\x7fELF\x80\xff", "not a text in UTF-8"),
        (b"node,hca\n", "its first line is not node,hca,switch,port. Fix: busbar accept cabling STACK"),
    ],
)
def test_a_design_that_is_not_valid_is_refused_before_anything_runs(
    on: Running, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, data: bytes | None, why: str
) -> None:
    monkeypatch.setattr(commands, "load_stack", lambda stack, project: (on.file, on.cluster))
    if data is not None:
        (tmp_path / "cabling.csv").write_bytes(data)
    done = busbar("accept", "run", "prod", "--soak", "1h", "--cabling", str(tmp_path / "cabling.csv"))
    assert (done.exit_code, why in " ".join(done.stderr.split())) == (64, True), done.stderr


def test_a_design_may_come_from_a_spreadsheet(tmp_path: Path) -> None:
    text = made.design(made.cabling())
    (tmp_path / "cabling.csv").write_bytes(b"\xef\xbb\xbf" + text.replace("\n", "\r\n").encode())
    found = commands._options(tmp_path / "cabling.csv", None, None)["cabling"]
    assert read_design(found) == read_design(text)


def test_a_run_is_continued_with_its_own_design_only(
    on: Running, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    net = made.cabling()
    net.swap(("worker-1 mlx5_0", 1), ("worker-1 mlx5_1", 1))
    (tmp_path / "cabling.csv").write_text(made.design(net))
    monkeypatch.setattr(commands, "load_stack", lambda stack, project: (on.file, on.cluster))
    home = tmp_path / ".busbar/prod/acceptance"
    home.mkdir(parents=True)
    on.folder.rename(home / "unfinished")
    done = busbar("accept", "run", "prod", "--soak", "1h", "--cabling", str(tmp_path / "cabling.csv"))
    assert (done.exit_code, "began with another --cabling. Fix: remove" in done.stderr) == (64, True)


def on_host(tmp_path: Path, body: str) -> dict[str, str]:
    """What the script prints where BODY is the program ibnetdiscover."""
    program = tmp_path / "ibnetdiscover"
    program.write_text(f"#!/bin/bash\n{body}\n")
    program.chmod(0o755)
    found: dict[str, str] = json.loads(output("accept/measure", f"PATH={tmp_path}:$PATH; fabric"))
    return found


def test_the_script_packs_the_output_and_says_what_was_simulated(tmp_path: Path) -> None:
    found = on_host(tmp_path, 'if [[ $* == --version ]]; then echo "44.0 (a simulator)"; else seq 100000; fi')
    text = gzip.decompress(base64.b64decode(found["text"])).decode()
    assert (text.split()[-1], found["error"], found["simulated"]) == ("100000", "", "44.0 (a simulator)")


def test_the_script_tells_why_the_tool_failed(tmp_path: Path) -> None:
    found = on_host(tmp_path, 'echo "ibwarn: \\"mad_rpc\\" failed" >&2; exit 1')
    assert found["error"] == 'ibnetdiscover ended with exit code 1: ibwarn: "mad_rpc" failed'


def test_the_script_names_the_package_of_a_tool_that_is_not_there() -> None:
    found = json.loads(output("accept/measure", "PATH=/usr/bin:/bin; fabric"))
    assert found["error"] == "ibnetdiscover is not installed (package infiniband-diags)"

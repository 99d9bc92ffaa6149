"""`busbar accept run` on four workers: a node, or a rail of one, that is 10 % slow is named and left out.

The bandwidths between the workers are injected (simulated); jobs, scripts and logs are real.
"""

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.lab.test_diagnose import HCAS, INJECTED, RAILS, SPREAD, TENTH, WORKERS, Site, fault, fault_on
from tests.lab.test_diagnose import site as site
from tests.support.lab import PROJECT, gpu_holder, read_until

pytestmark = pytest.mark.drill

RUN_SECONDS = 900
OF_NODES, OF_RAILS = ("pairs.", "collectives.h100.nodes"), ("rails.",)


@pytest.fixture
def home() -> Iterator[Path]:
    folder = PROJECT / ".busbar" / "dev" / "acceptance"
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


def words_of(site: Site, criteria: Path, rows: tuple[str, ...]) -> tuple[str, ...]:
    """The words of a run with the rows that begin so, all of them required."""
    busbar = (sys.executable, "-m", "busbar", "accept")
    printed = site.lab.run(*busbar, "criteria", "--for", "dev", cwd=site.stack.folder)
    found = yaml.safe_load(printed.stdout)
    pool = found["rows"][0]["id"].split(".")[1]
    wanted = tuple(row.replace("h100", pool) for row in rows)
    found["rows"] = [row for row in found["rows"] if row["id"].startswith(wanted)]
    # Over TCP the rails are not required.
    found["rows"] = [{**row, "required": True} for row in found["rows"]]
    criteria.write_text(yaml.safe_dump(found))
    return (*busbar, "run", "dev", "--criteria", str(criteria))


def run(site: Site, home: Path, criteria: Path, rows: tuple[str, ...], slow: Mapping[str, float]) -> Any:
    """The document of a run with some rows only. SLOW: WORKER/HCA -> its share of the injected bandwidth."""
    words = words_of(site, criteria, rows)
    with ExitStack() as faults:
        for worker in WORKERS:
            for hca in HCAS:
                gbps = INJECTED * slow.get(f"{worker}/{hca}", 1.0)
                file = f"{RAILS}/{hca}/busbw"
                faults.enter_context(
                    fault_on(site.lab, worker, f"echo {gbps} {SPREAD} >{file}", f"rm {file}")
                )
        done = site.lab.run(*words, cwd=site.stack.folder, seconds=RUN_SECONDS)
    print(done.stdout, done.stderr)
    assert site.left == ""
    [folder] = [path for path in home.iterdir() if path.is_dir()]
    again = site.lab.run(*words[:4], "verify", str(folder), cwd=site.stack.folder)
    print(again.stdout, again.stderr)
    assert (done.returncode, again.returncode) == (1, 1)
    assert "differs" not in again.stdout
    return json.loads((folder / "acceptance.json").read_text())


def test_a_node_that_is_10_percent_slow_is_named_and_left_out(site: Site, home: Path, tmp_path: Path) -> None:
    slow = {f"worker-2/{hca}": TENTH for hca in HCAS}
    found = run(site, home, tmp_path / "acceptance.yaml", OF_NODES, slow)
    rows = {row["id"].rpartition(".")[2]: row for row in found["rows"] if row["id"].startswith("pairs.")}
    assert (rows["slow"]["result"], rows["slow"]["nodes"]) == ("fail", ["worker-2"])
    assert rows["nodes"]["result"] == "pass"
    assert ([*found["left_out"]], found["holds_on"]) == (["worker-2"], 3)
    [count] = [row for row in found["rows"] if row["id"].startswith("collectives.")]
    assert (count["result"], count["value"], "not worker-2" in count["reason"]) == ("fail", 3, True)


def test_idle_takes_free_nodes_and_repeats_a_stage_that_made_room_for_others(
    site: Site, home: Path, tmp_path: Path
) -> None:
    rows = ("collectives.h100.nodes", "pairs.h100.nodes")
    words, busy = (*words_of(site, tmp_path / "acceptance.yaml", rows), "--idle"), "pod/training"

    def hold() -> None:
        site.lab.apply(gpu_holder("worker-1"))
        site.lab.kubectl(f"wait --for=condition=PodScheduled {busy} --timeout=60s")

    def accept() -> int:
        done = site.lab.run(*words, cwd=site.stack.folder, seconds=RUN_SECONDS)
        print(done.stdout, done.stderr)
        return done.returncode

    with fault(hold, lambda: site.lab.kubectl(f"delete {busy}")):
        assert accept() == 1
    [file] = home.glob("2*/acceptance.json")
    found = json.loads(file.read_text())["rows"]
    assert [(row["value"], "not worker-1" in row["reason"]) for row in found] == [(3, True)] * 2
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    process = subprocess.Popen(words, env=site.lab.environment, cwd=site.stack.folder, text=True, **pipes)
    read_until(process.stderr, "measuring all_gather")
    with fault(hold, lambda: site.lab.kubectl(f"delete {busy}")):
        _, text = process.communicate(timeout=RUN_SECONDS)
    print(text)
    assert (process.returncode, "made room for other pods" in text) == (2, True)
    assert (accept(), site.left) == (0, "")


def test_a_rail_that_is_10_percent_slow_is_named(site: Site, home: Path, tmp_path: Path) -> None:
    found = run(site, home, tmp_path / "acceptance.yaml", OF_RAILS, {f"worker-3/{HCAS[1]}": TENTH})
    [row] = [row for row in found["rows"] if row["id"].endswith(".slow")]
    assert (row["result"], row["nodes"]) == ("fail", ["worker-3"])
    assert row["reason"].startswith("rail 1 of worker-3: ")

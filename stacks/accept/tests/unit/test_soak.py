"""The rows of the soak, from made series and samples; and its jobs, which outlive the process."""

import base64
import gzip
import random
import re
import shlex
import shutil
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from busbar.exits import Misuse, NoVerdict
from busbar.kube.client import ApiError, JsonObject
from busbar.zstd import ZstdFile
from stacks.accept.package import running as running_module
from stacks.accept.package.criteria import default, stages_of
from stacks.accept.package.evidence import Evidence
from stacks.accept.package.running import Running, run_stage
from stacks.accept.package.site import Site
from stacks.accept.package.subjects import soak
from stacks.accept.package.subjects.soak import dots
from stacks.accept.tests.unit import made
from tests.unit.fabric.measure.foreign import MPIJOBS, Foreign, gpu_node, holder

HEALTHY = (390.0,) * made.INTERVALS


def row(folder: Path, kind: str) -> Any:
    return made.result(folder, f"soak.h100.{kind}")


def series(count: int, spread: float, seed: int) -> list[float]:
    chance = random.Random(seed)
    return [chance.gauss(390, 390 * spread) for _ in range(count)]


def is_named(values: list[float]) -> bool:
    """Whether the rows of wobble, drift or lowest interval fail."""
    deviation = soak.spread(values)
    length = soak.low_run(len(values), deviation, 0.025)
    loss, noise = soak.drift(values)
    low = min(values) < 0.9 * 390
    return (bool(length) and (soak.wobble(values, length)[0] > 0.025 or low)) or noise < 0.02 < loss


@pytest.mark.parametrize(("count", "spread"), [(12, 0.01), (144, 0.015), (864, 0.01)])
def test_at_most_one_of_100_healthy_soaks_is_named(count: int, spread: float) -> None:
    assert sum(is_named(series(count, spread, seed)) for seed in range(100)) <= 1


def test_a_wobble_of_5_percent_over_six_intervals_is_found_in_100_of_100() -> None:
    found = 0
    for seed in range(100):
        values = series(864, 0.01, seed)
        first = 8 * seed
        values[first : first + 6] = [0.95 * value for value in values[first : first + 6]]
        length = soak.low_run(len(values), soak.spread(values), 0.025)
        loss, begin = soak.wobble(values, length)
        found += loss > 0.025 and first - 1 <= begin <= first + 6
    assert found == 100


def test_a_lasting_loss_is_a_drift() -> None:
    values = [value * (1 - 0.03 * n / 864) for n, value in enumerate(series(864, 0.005, 1))]
    loss, noise = soak.drift(values)
    assert 0.02 < loss < 0.04 and noise < 0.02


def test_the_soak_over_time_shows_its_low_intervals_and_its_changes(folder: Path) -> None:
    made.segment(folder, [*HEALTHY[:6], 360.0, 360.0, *HEALTHY[:4]])
    made.samples(folder, "worker-2", (1200, {"k3s": "j"}))
    drawn = dots(Evidence(folder), "h100")
    assert [number for number, dot in enumerate(drawn) if dot.is_bad] == [6, 7]
    assert [number for number, dot in enumerate(drawn) if dot.changed] == [3]


def test_the_rows_of_a_soak_bring_the_stages_that_they_need_and_are_not_there_without_one() -> None:
    cluster, facts = made.site_of()
    with_soak, without = (default(each).rows for each in (facts, Site.of("prod", cluster)))
    rows = [each for each in with_soak if each.id.startswith(("soak.", "after."))]
    assert {"collectives", "nvlink", "pairs", "soak", "after"} <= stages_of(rows)
    assert not {row.id for row in rows} & {row.id for row in without}


class Soaked(Foreign):
    """A cluster whose jobs print the intervals of a soak. `lasts`: the next job does not end by itself."""

    def __init__(self) -> None:
        super().__init__(*(gpu_node(name) for name in made.WORKERS))
        self.runs, self.time, self.lasts, self.succeeds = self.begin, made.START, False, True
        self.jobs: list[JsonObject] = []

    def begin(self, job: JsonObject) -> None:
        self.jobs.append(job)
        job["metadata"]["creationTimestamp"] = at(self.time)
        if not self.lasts:
            self.end(job)

    failure = "", ""

    def end(self, job: JsonObject) -> None:
        [container] = job["spec"]["mpiReplicaSpecs"]["Launcher"]["template"]["spec"]["containers"]
        [collectives] = re.findall(r"^COLLECTIVES=\((.*)\)$", container["command"][-1], re.MULTILINE)
        count = sum(each.startswith("all_reduce") for each in shlex.split(collectives))
        hosts = [f"{job['metadata']['name']}-worker-{number}" for number in range(2)]
        log = made.soak_log(hosts, [390.0] * count)
        self.run_job(job, log if self.succeeds else log.replace(*self.failure, 1))
        self.time += 302 * count
        if not self.succeeds:
            job["status"]["conditions"] = [{"type": "Failed", "status": "True", "reason": "Error"}]
        job["status"]["completionTime"] = at(self.time)


def at(time: float) -> str:
    return datetime.fromtimestamp(time, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


@pytest.fixture
def gpus() -> Soaked:
    return Soaked()


@pytest.fixture
def on(gpus: Soaked, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Running:
    """A run before its soak; the samplers of its hosts write what those of healthy hosts write."""
    shutil.rmtree(folder / "evidence/soak")
    running = made.running(tmp_path, api=gpus)
    shutil.rmtree(running.folder)
    running = replace(running, folder=folder)
    running.__dict__["api"] = gpus
    verbs: list[str] = []

    def sample(on: Running, pool: str, verb: str, **values: str) -> dict[str, Any]:
        verbs.append(verb)
        found = dict[str, Any]()
        for node in made.WORKERS if verb == "fetch" else ():
            made.samples(folder, node, seconds=gpus.time - made.START)
            with ZstdFile(folder / f"evidence/soak/h100/{node}.samples.zst") as packed:
                found[node] = {"samples": base64.b64encode(gzip.compress(packed.read())).decode()}
        return found

    for module in (soak, running_module):
        monkeypatch.setattr(module, "now", lambda: at(gpus.time))
    monkeypatch.setattr(soak, "_sample", sample)
    running.__dict__["verbs"] = verbs
    return running


def rows(folder: Path) -> dict[str, str]:
    kinds = ("load", "hours", "wobble", "links", "gpus")
    return {kind: row(folder, kind).result for kind in kinds}


GOOD = dict.fromkeys(("load", "hours", "wobble", "links", "gpus"), "pass")


def test_a_job_that_outlives_its_process_is_followed_by_the_next_one(on: Running, gpus: Soaked) -> None:
    gpus.lasts = True

    def begin(job: JsonObject) -> None:
        gpus.begin(job)
        gpus.failures.append(ApiError("GET /x", 401, "Unauthorized"))

    gpus.runs = begin
    with pytest.raises(NoVerdict, match="continues here"):
        run_stage(soak.STAGE, on)
    (job,) = gpus.jobs
    assert "busbar/nccl-run" in job["metadata"]["labels"] and "stop" not in on.__dict__["verbs"]
    gpus.lasts = False
    gpus.hold(holder("worker-2", "own", 8))
    gpus.end(job)
    run_stage(soak.STAGE, on)
    assert (rows(on.folder), len(gpus.jobs)) == (GOOD, 1)
    assert on.__dict__["verbs"][-2:] == ["fetch", "stop"] and gpus.left == []


def test_a_job_whose_log_is_kept_is_removed_at_the_end(on: Running, gpus: Soaked) -> None:
    for node in made.WORKERS:
        made.samples(on.folder, node)
    made.segment(on.folder)
    job = {"labels": {"busbar/nccl-run": f"{made.RUN_NAME}-k0-000"}, "namespace": "ns", "name": "nccl-x"}
    gpus.add(f"{MPIJOBS}/namespaces/ns/mpijobs/nccl-x", {"metadata": job})
    gpus.time = made.START + 3660
    run_stage(soak.STAGE, on)
    assert (rows(on.folder), gpus.left, gpus.jobs) == (GOOD, [], [])


def test_a_job_that_stays_is_named(on: Running, gpus: Soaked, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: str, **preconditions: str) -> JsonObject:
        raise ApiError(f"DELETE {path}", 403, "forbidden")

    said: list[str] = []
    monkeypatch.setattr(gpus, "delete", refuse)
    foreign = replace(on, kubeconfig=Path("/k.yaml"), say=said.append)
    foreign.__dict__.update(api=gpus, verbs=[])
    with pytest.raises(NoVerdict):
        run_stage(soak.STAGE, foreign)
    assert [text for text in said if "-k0-000 --kubeconfig /k.yaml" in text]


def test_a_pool_without_an_all_reduce_is_not_soaked(on: Running, gpus: Soaked) -> None:
    shutil.rmtree(on.folder / "evidence/collectives")
    run_stage(soak.STAGE, on)
    assert (row(on.folder, "load").result, gpus.jobs) == ("not run", [])


@pytest.mark.parametrize(
    ("failure", "reason"),
    [
        (("launcher ends with exit code 0", "launcher ends with exit code 1"), "job 1 of 1: "),
        (
            ("all_reduce ended with exit code 0", "all_reduce ended with exit code 3"),
            "job 1: all_reduce ended with exit code 3",
        ),
    ],
)
def test_a_failure_ends_the_soak(on: Running, gpus: Soaked, failure: tuple[str, str], reason: str) -> None:
    gpus.succeeds, gpus.failure = False, failure
    run_stage(soak.STAGE, on)
    made.judged(on.folder, "soak.h100.load", "fail", reason)
    assert (gpus.left, len(gpus.jobs), on.__dict__["verbs"][-1]) == ([], 1, "stop")


def test_a_log_stays_below_8_mib() -> None:
    assert soak.runs_of(64, 1e9) == 144, "12 hours"
    assert soak.runs_of(3520, 1e9) * (92 * 3520 + 4096) <= 8 << 20
    assert soak.runs_of(3520, 1e9) >= 24, "2 hours"
    assert soak.runs_of(64, 301) == 2


@pytest.mark.parametrize("text", ["0h", "169h", "72", "1.5h"])
def test_a_length_out_of_range_is_refused(text: str) -> None:
    with pytest.raises(Misuse, match="expected 1h to 168h"):
        soak.hours_of(text)

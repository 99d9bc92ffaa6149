"""The rows of the soak, from made series and samples; and its jobs, which outlive the process."""

from __future__ import annotations

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
from busbar.fabric.localise import Group
from busbar.kube.client import ApiError, JsonObject
from busbar.zstd import ZstdFile
from stacks.accept.package import document
from stacks.accept.package import running as running_module
from stacks.accept.package.criteria import default, stages_of
from stacks.accept.package.evidence import Evidence
from stacks.accept.package.running import Running, run_stage
from stacks.accept.package.site import Site
from stacks.accept.package.subjects import soak
from stacks.accept.package.subjects.soak import dots
from stacks.accept.tests.unit import made
from tests.support.cli import busbar
from tests.unit.fabric.measure.foreign import MPIJOBS, Foreign, gpu_node, holder

PORT = {"hca": "mlx5_3", "port": 1}
HEALTHY = (390.0,) * made.INTERVALS


def row(folder: Path, kind: str) -> Any:
    return made.result(folder, f"soak.h100.{kind}")


def port(counter: str, value: int) -> dict[str, Any]:
    return {"ports": [{**PORT, "counter": counter, "value": value}]}


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


def test_a_flap_is_found_in_100_of_100() -> None:
    for seed in range(100):
        chance = random.Random(seed)
        samples: list[dict[str, Any]] = [{"t": 30 * n} for n in range(2000)]
        samples[0]["ports"] = port("link_downed", chance.randrange(1, 200))["ports"]
        at = chance.randrange(1, 2000)
        samples[at] |= port("link_downed", samples[0]["ports"][0]["value"] + 1)
        assert [event.kind for event in soak.watch(samples).events] == ["links"]


def test_a_lasting_loss_is_a_drift() -> None:
    values = [value * (1 - 0.03 * n / 864) for n, value in enumerate(series(864, 0.005, 1))]
    loss, noise = soak.drift(values)
    assert 0.02 < loss < 0.04 and noise < 0.02


@pytest.mark.parametrize(
    ("kind", "values", "result"),
    [
        ("wobble", [*HEALTHY[:6], 370.0, 370.0, *HEALTHY[:4]], "fail"),
        ("wobble", [*HEALTHY[:6], 370.0, *HEALTHY[:5]], "pass"),
        ("wobble", [370.0, 400.0] * 6, "unknown"),
        ("wobble", [*HEALTHY[:6], 340.0, *HEALTHY[:5]], "fail"),
        ("drift", [390.0 - n for n in range(12)], "fail"),
        ("drift", [370.0, 400.0] * 6, "unknown"),
        ("drift", HEALTHY[:9], "unknown"),
        ("wobble", HEALTHY[:9], "unknown"),
        ("hours", HEALTHY[:11], "unknown"),
    ],
)
def test_the_series_decides(folder: Path, kind: str, values: list[float], result: str) -> None:
    made.segment(folder, values)
    assert row(folder, kind).result == result, row(folder, kind).reason


REPORTED = {"xids": ["NVRM: Xid (PCI:0000:18:00): 79, pid=1"]}


@pytest.mark.parametrize(
    ("kind", "changes", "text"),
    [
        ("links", [(60, port("link_downed", 1))], "link_downed of mlx5_3 port 1 grew by 1"),
        ("links", [(60, port("local_link_integrity_errors", 2))], "local_link_integrity_errors of mlx5_3"),
        ("counters", [(60, port("symbol_error", 60)), (3000, port("symbol_error", 130))], "grew by 130 in"),
        ("gpus", [(60, REPORTED)], "worker-2: NVRM: Xid (PCI:0000:18:00): 79"),
        ("gpus", [(60, {"gpus": [["0000:18:00.0", 3, 0]]})], "GPU 0000:18:00.0 has 3 uncorrected ECC errors"),
        ("gpus", [(60, {"nvlink": "GPU 0:\n Link 0: Replay Errors: 3"})], "NVLink errors: Link 0: Replay"),
        ("throttling", [(60, {"gpus": [["0000:18:00.0", 0, 0x40]]})], "GPU 0000:18:00.0 is throttled: heat"),
        ("reboots", [(60, {"boot": "c"})], "worker-2: rebooted at 11-23 01:01:00"),
        ("reboots", [(60, {"k3s": "j"})], "worker-2: K3s restarted"),
        ("slowest", [(60, {"heat": [88, 1800]})], "worker-2: 1800 MHz, the others 1980"),
    ],
)  # fmt: skip
def test_a_change_in_the_samples_of_a_node_is_named(folder: Path, kind: str, changes: Any, text: str) -> None:
    made.samples(folder, "worker-2", *changes)
    made.judged(folder, f"soak.h100.{kind}", "fail", text)


@pytest.mark.parametrize(
    ("before", "changes", "result", "text"),
    [
        (7, [(60, {"boot": "c", **port("link_downed", 9)})], "pass", "nothing in the samples"),
        (200, [(60, port("link_downed", 2))], "fail", "grew by 2"),
        (255, [], "unknown", "perfquery -R"),
    ],
)
def test_a_counter_from_before_the_soak_or_a_reboot_is_no_growth_and_a_saturated_one_is_unknown(
    folder: Path, before: int, changes: Any, result: str, text: str
) -> None:
    made.samples(folder, "worker-2", *changes, **port("link_downed", before))
    made.judged(folder, "soak.h100.links", result, text)


OF_SAMPLES = ("links", "gpus", "throttling", "reboots", "counters", "slowest")


@pytest.mark.parametrize("kind", [*OF_SAMPLES, "hours"])
def test_a_row_of_samples_is_unknown_without_those_of_a_node(folder: Path, kind: str) -> None:
    (folder / "evidence/soak/h100/worker-2.samples.zst").unlink()
    made.judged(folder, f"soak.h100.{kind}", "unknown", "worker-2")


@pytest.mark.parametrize("kind", OF_SAMPLES)
def test_what_could_not_be_read_is_unknown(folder: Path, kind: str) -> None:
    key = {"links": "ports", "counters": "ports", "reboots": "k3s", "slowest": "heat"}.get(kind, "gpus")
    unread: dict[str, Any] = {key: None}
    made.samples(folder, "worker-2", (30, unread), **unread)
    assert row(folder, kind).result == "unknown"


def test_hours_without_samples_do_not_count(folder: Path) -> None:
    with ZstdFile(folder / "evidence/soak/h100/worker-2.samples.zst") as file:
        lines = file.read().decode().splitlines(keepends=True)
    made.samples_text(folder, "worker-2", "".join(lines[:60]))
    found = row(folder, "hours")
    assert (found.result, 0.3 < found.value < 0.6) == ("unknown", True)


def test_a_job_that_failed_fails_the_load(folder: Path) -> None:
    made.segment(
        folder, change=lambda record: record.update(outcome={"succeeded": False, "reasons": ["OOM"]})
    )
    assert row(folder, "load").result == "fail"


def test_a_job_with_fewer_intervals_or_nodes_than_planned_is_named(folder: Path) -> None:
    made.segment(folder, runs=14)
    assert row(folder, "load").reason == "job 1: 12 of 14 intervals"


def test_an_interval_that_wobbles_is_named_with_what_happened_meanwhile(folder: Path) -> None:
    made.segment(folder, [*HEALTHY[:6], 360.0, 360.0, *HEALTHY[:4]])
    made.samples(folder, "worker-2", (1900, {"gpus": [["0000:18:00.0", 0, 0x20]]}))
    assert "meanwhile worker-2: GPU 0000:18:00.0 is throttled: heat (soft" in row(folder, "wobble").reason


def _copy(folder: Path) -> None:
    own = folder / "evidence/soak/h100"
    shutil.copytree(own / "000", own / "001")


Forge = Any
_FLOOD = [(30 * n, port("x", n)) for n in range(1, 90)]
STRANGE = "cannot be judged"
FORGED: dict[str, tuple[Forge, str, str]] = {
    "a log of another segment": (_copy, "load", "is the log of job"),
    "more load than time": (
        lambda f: made.segment(f, ended="2026-11-23T01:40:00Z"), "hours", "s of load in 2400 s"),
    "segments at the same time": (
        lambda f: made.segment(f, part="001"), "hours", "began before the end"),
    "an end after that of the stage": (
        lambda f: made.segment(f, ended="2026-11-23T09:00:00Z"), "hours", "not in its stage"),
    "no time": (lambda f: made.segment(f, ended="yesterday"), "hours", "is not what busbar Segment writes"),
    "a segment left out": (
        lambda f: made.segment(f, part="002", began="2026-11-23T01:59:00Z"), "load", "expected 000 and on"),
    "samples of another run": (lambda f: made.samples(f, "worker-2", run="accept-ffffff"), "links", "is of"),
    "samples of another node": (lambda f: made.samples(f, "worker-2", whose="worker-1"), "links", "is of"),
    "samples of another machine": (
        lambda f: made.samples(f, "worker-2", machine="77777777"), "links", "another machine"),
    "samples of a foreign node": (lambda f: made.samples(f, "worker-9"), "links", "not of a worker"),
    "samples of another time": (
        lambda f: made.samples(f, "worker-2", (60, {"t": made.START + 9000})), "links", "not in its stage"),
    "no JSON": (lambda f: made.samples_text(f, "worker-2", "{" * 9), "links", STRANGE),
    "no object": (lambda f: made.samples_text(f, "worker-2", "[]\n"), "links", STRANGE),
    "values of another type": (
        lambda f: made.samples(f, "worker-2", (60, {"ports": {"a": 1}})), "links", STRANGE),
    "times that go back": (
        lambda f: made.samples(f, "worker-2", (60, {"t": made.START})), "links", STRANGE),
    "more changes than a sampler writes": (
        lambda f: made.samples(f, "worker-2", *_FLOOD), "links", STRANGE),
    "an endless line": (
        lambda f: made.samples_text(f, "worker-2", f'{{"xids": "{"x" * (1 << 20)}'), "links", STRANGE),
}  # fmt: skip


@pytest.mark.parametrize("forged", FORGED)
def test_forged_evidence_is_never_a_pass(folder: Path, forged: str, monkeypatch: pytest.MonkeyPatch) -> None:
    forge, kind, text = FORGED[forged]
    monkeypatch.setattr(soak, "MOST_EVENTS", 50)
    forge(folder)
    found = row(folder, kind)
    assert found.result == "unknown" and text in found.reason, found.reason


def test_the_page_shows_the_soak_over_time_with_its_low_intervals_and_changes(folder: Path) -> None:
    made.segment(folder, [*HEALTHY[:6], 360.0, 360.0, *HEALTHY[:4]])
    made.samples(folder, "worker-2", (1200, {"k3s": "j"}))
    found, texts = document.contents(folder)
    assert found["verdict"] == "refused"
    page = texts[document.REPORT]
    picture = page[page.index("Soak over time") :]
    good, low = picture.count('<circle class="onedot"'), picture.count('<circle class="baddot"')
    assert (good + low, low) == (made.INTERVALS, 2)
    upright = re.findall(r'class="cap" points="([\d.]+),34.0 \1,284.0"', picture)
    assert len(upright) == 1


def test_a_long_soak_is_drawn_with_a_part_of_its_intervals(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    count, span = 2016, 300.0
    values = [360.0 if n == 777 else 390.0 for n in range(count)]
    found = [soak.Interval(made.START + n * span, span, span, value) for n, value in enumerate(values)]
    monkeypatch.setattr(soak.Soak, "intervals", found)
    drawn = dots(Evidence(folder), "h100")
    assert len(drawn) <= 506 and [dot.busbw for dot in drawn if dot.is_bad] == [360.0]


def after(folder: Path) -> Any:
    return made.result(folder, "after.h100.nodes")


def test_a_node_that_is_slower_after_the_soak_is_named(folder: Path) -> None:
    alone = [Group("A", number, "node", (name,)) for number in range(2) for name in made.WORKERS]
    made.groups(folder, "after", "000", alone, lambda group: 0.8 if group.nodes == ("worker-2",) else 1.0)
    found = after(folder)
    assert (found.result, found.nodes) == ("fail", ["worker-2"])
    assert "worker-2 alone" in found.reason


def test_a_pair_that_gives_next_to_nothing_after_the_soak_fails(folder: Path) -> None:
    made.groups(folder, "after", "001", [Group("A", 0, "in_group", made.WORKERS)], lambda group: 0.01)
    assert after(folder).result == "fail"


def test_without_a_soak_there_are_no_rows_of_it() -> None:
    rows = default(Site.of("prod", made.site_of()[0])).rows
    assert not [row.id for row in rows if row.id.startswith(("soak.", "after."))]


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

    failure = "launcher ends with exit code 0", "launcher ends with exit code 1"

    def end(self, job: JsonObject) -> None:
        script = job["spec"]["mpiReplicaSpecs"]["Launcher"]["template"]["spec"]["containers"][0]["command"][
            -1
        ]
        [collectives] = re.findall(r"^COLLECTIVES=\((.*)\)$", script, re.MULTILINE)
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


def test_a_soak_ends_when_its_hours_have_load_and_samples(on: Running, gpus: Soaked) -> None:
    run_stage(soak.STAGE, on)
    assert rows(on.folder) == GOOD
    assert on.__dict__["verbs"] == ["start", "fetch", "stop"] and gpus.left == []


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


def test_a_job_whose_log_is_kept_is_removed_at_the_end(on: Running, gpus: Soaked) -> None:
    for node in made.WORKERS:
        made.samples(on.folder, node)
    made.segment(on.folder)
    job = {"labels": {"busbar/nccl-run": f"{made.RUN_NAME}-k0-000"}, "namespace": "ns", "name": "nccl-x"}
    gpus.add(f"{MPIJOBS}/namespaces/ns/mpijobs/nccl-x", {"metadata": job})
    gpus.time = made.START + 3660
    run_stage(soak.STAGE, on)
    assert (rows(on.folder), gpus.left, gpus.jobs) == (GOOD, [], [])


def test_a_job_that_cannot_be_removed_is_named_with_the_kubeconfig_of_its_cluster(
    on: Running, gpus: Soaked, monkeypatch: pytest.MonkeyPatch
) -> None:
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


def test_the_rows_of_a_soak_bring_the_stages_that_they_need() -> None:
    rows = [each for each in default(made.site_of()[1]).rows if each.id.startswith(("soak.", "after."))]
    assert {"collectives", "nvlink", "pairs", "soak", "after"} <= stages_of(rows)


def test_the_soak_ends_with_a_job_that_fails(on: Running, gpus: Soaked) -> None:
    gpus.succeeds = False
    run_stage(soak.STAGE, on)
    assert (row(on.folder, "load").result, len(gpus.jobs)) == ("fail", 1)
    assert on.__dict__["verbs"][-1] == "stop"


def test_an_interval_that_fails_ends_the_job_and_the_soak(on: Running, gpus: Soaked) -> None:
    gpus.succeeds = False
    gpus.failure = "all_reduce ended with exit code 0", "all_reduce ended with exit code 3"
    run_stage(soak.STAGE, on)
    found = row(on.folder, "load")
    assert (found.result, found.reason) == ("fail", "job 1: all_reduce ended with exit code 3")
    assert (gpus.left, len(gpus.jobs), on.__dict__["verbs"][-1]) == ([], 1, "stop")
    assert row(on.folder, "hours").result == "unknown"


def test_the_plan_has_the_hours_of_the_soak_and_says_what_goes_on(stack: Path) -> None:
    done = busbar("accept", "plan", "prod", "--soak", "72h")
    table = {words[0]: words[1:] for line in done.stdout.splitlines() if (words := line.split())}
    minutes, held, cost = map(int, table["soak"][1:])
    assert (done.exit_code, held, cost // minutes) == (0, 16, 2)
    assert 72 * 60 < minutes < 73 * 60 and "its job goes on" in done.stdout


def test_a_log_stays_below_8_mib() -> None:
    assert soak.runs_of(64, 1e9) == 144, "12 hours"
    assert soak.runs_of(3520, 1e9) * (92 * 3520 + 4096) <= 8 << 20
    assert soak.runs_of(3520, 1e9) >= 24, "2 hours"
    assert soak.runs_of(64, 301) == 2


@pytest.mark.parametrize("text", ["0h", "169h", "72", "3d", "1.5h", "-1h"])
def test_a_length_out_of_range_is_refused(text: str) -> None:
    with pytest.raises(Misuse, match="expected 1h to 168h"):
        soak.hours_of(text)

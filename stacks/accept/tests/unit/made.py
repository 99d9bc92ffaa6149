"""The evidence of a healthy cluster of two H100 workers, written as the stages write it; tests change it."""

import copy
import hashlib
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, replace
from datetime import datetime
from functools import cache
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from busbar import __version__
from busbar.collect.spec import expectation, settings_of
from busbar.config import Cluster, load
from busbar.config.cluster import Validation
from busbar.config.stackfile import StackFile
from busbar.fabric.diagnosis.stages import Work
from busbar.fabric.localise import Group, Known, plan, plan_rails
from busbar.fabric.paths import Found, Rail, RailPath
from busbar.judge import FIRST_LINE, LAST_LINE
from busbar.judge.archive import Archive, JobOutcome, Record
from busbar.manifests import mpijob, nccljob
from busbar.manifests.nccljob import NcclJob
from busbar.release import commit
from busbar.zstd import ZstdFile
from stacks.accept.package import criteria as contract
from stacks.accept.package import document, kinds
from stacks.accept.package import evidence as kept
from stacks.accept.package.running import Running
from stacks.accept.package.site import COLLECTIVES, Site, validation_of
from stacks.accept.package.subjects import STAGES
from stacks.accept.package.subjects.cabling import End, Fabric, write_design
from stacks.accept.package.subjects.collectives import RUNS
from stacks.accept.package.subjects.optional import PATHS_FILE, Paths
from stacks.accept.package.subjects.soak import SAMPLES
from stacks.accept.tests.net import Net
from stacks.training.tests.unit import made as proof
from tests.support.clusters import site
from tests.support.kube_cluster import Clock
from tests.support.reports import report
from tests.unit.judge.nccl.logs import Made

RUN_NAME = "accept-0a1b2c"
BEGAN, ENDED = "2026-11-23T01:00:00Z", "2026-11-23T02:00:00Z"
WORKERS: tuple[str, ...] = ("worker-1", "worker-2")
START = int(datetime.fromisoformat(BEGAN).timestamp())
SOAK_HOURS, INTERVALS = 1, 12
SOAK_ENDED = "2026-11-23T02:01:00Z"
Change = Callable[[dict[str, Any]], object]


def site_of() -> tuple[Cluster, Site]:
    """The cluster of WORKERS and its facts, not to be changed; one more worker is in quarantine."""
    return _site_of(WORKERS)


@cache
def _site_of(workers: tuple[str, ...]) -> tuple[Cluster, Site]:
    names = (*workers, f"worker-{len(workers) + 1}")
    made = site(servers=1, workers={"h100": len(names)}, validation={"profile": "h100-ib-8x400"})
    for name, worker in zip(names, made["hosts"]["workers"], strict=True):
        worker["name"] = name
    made["hosts"]["workers"][-1]["quarantine"] = "a new cable"
    found = load(made)
    return found, Site.of("prod", found, SOAK_HOURS)


def host(number: int) -> dict[str, Any]:
    links = "".join(f"\t Link {link}: 26.562 GB/s\n" for link in range(18))
    also = {
        "machine": hashlib.sha256(str(number).encode()).hexdigest(),
        "boot_id": f"boot-{number}",
        "serial": f"SN-{number}",
        "gpus": [
            {"uuid": f"GPU-{number}-{gpu}", "serial": f"16{number}{gpu}", "vbios": "96.00", "ecc": "Enabled"}
            for gpu in range(8)
        ],
        "hcas": [
            {"name": f"mlx5_{hca}", "port": 1, "guid": f"b8ce:f603:{number:04x}:{hca:04x}", "counters": True}
            for hca in range(8)
        ],
        "nvlinks": "".join(f"GPU {gpu}: NVIDIA H100 80GB HBM3 (UUID: G-{gpu})\n{links}" for gpu in range(8)),
        "simulated": "",
    }  # fmt: skip
    found: dict[str, Any] = report(machine=f"{number}" * 8, also=also).model_dump(mode="json")
    return copy.deepcopy(found)


def log(
    names: Sequence[str], hosts: list[str], peaks: dict[str, list[float]], *, warn: bool, iterations: int = 0
) -> str:
    """What the launcher prints for these runs; PEAKS: collective -> busbw of its runs, in order.

    With ITERATIONS they are those of a soak, of one size.
    """
    lines, next_ = [FIRST_LINE], {name: iter(values) for name, values in peaks.items()}
    for name in names:
        made = Made()
        made.hosts, made.name, made.peak = hosts, name, next(next_[name])
        made.low = made.high if iterations else made.low
        printed = [line for line in made.lines() if not (warn and "NCCL INFO" in line)]
        lines += [f"# busbar: measuring {name}", *printed, f"# busbar: {name} ended with exit code 0"]
    text = "".join(f"{line}\n" for line in [*lines, f"{LAST_LINE} 0"])
    return text.replace(" iters: 20 ", f" iters: {iterations} ") if iterations else text


def expected(name: str) -> float:
    return site_of()[1].pools["h100"].expected_gbps[name] or 0.0


def keep_log(
    folder: Path, where: str, job: NcclJob, validation: Validation, printed: Callable[[list[str]], str],
    change: Change, at: str = "2026-11-23T01:30:00Z",
) -> Path:  # fmt: skip
    """Keep what a job has printed on its hosts, with the record of it; the folder of both."""
    manifest, archive = mpijob.render(job), Archive(folder / kept.FOLDER / where)
    manifest["metadata"]["uid"] = f"u-{where}"
    wanted = expectation(validation, job, manifest["metadata"]["name"])
    with archive.new_log() as sink, ZstdFile(sink, "w") as file:
        file.write(printed(wanted["hosts"]).encode())
    record = Record(
        job_uid=f"u-{where}", pool=job.pool, kind="run", folder=str(archive.folder), nodes=job.nodes,
        measured_at=at, settings=dict(settings_of(manifest, wanted)), expectation=wanted,
        outcome=JobOutcome(True), complete=True,
    ).model_dump(mode="json")  # fmt: skip
    change(record)
    archive.mark_complete(record["job_uid"], record)
    return archive.folder


def job_of(
    names: Sequence[str], settings: dict[str, Any] | None = None, /, **env: str
) -> tuple[NcclJob, Validation]:
    """The job of these runs on all workers. SETTINGS: keys of the validation."""
    made, _ = site_of()
    validation = validation_of(made.validation_of("h100"), names, **env).model_copy(update=settings)
    return nccljob.resolve(made, "h100", WORKERS, validation=validation), validation


def collective(
    folder: Path, stage: str, *, factor: Callable[[str, int], float] = lambda name, number: 1.0,
    change: Change = lambda record: None, text: Callable[[str], str] = str, run: str = RUN_NAME,
) -> None:  # fmt: skip
    """The kept log of a stage. FACTOR: of a collective and the number of its run, by which busbw differs."""
    start = 0 if stage == "collectives" else 1
    names = [name for name in COLLECTIVES for _ in range(RUNS[name] - 1 if start else 1)]
    job, validation = job_of(names)
    peaks = {
        name: [round(expected(name) * factor(name, start + n), 2) for n in range(names.count(name))]
        for name in COLLECTIVES
    }
    job = replace(job, pool=f"{run}-{stage[0]}0")

    def printed(hosts: list[str]) -> str:
        return text(log(names, hosts, peaks, warn=bool(start)))

    keep_log(folder, f"{stage}/h100", job, validation, printed, change)


def groups(
    folder: Path, stage: str, part: str, planned: Iterable[Group],
    share: Callable[[Group], float] = lambda group: 1.0, change: Change = lambda record: None,
) -> None:  # fmt: skip
    """The kept log of a job of nodes, pairs or rails. SHARE: what a group reaches of the expected busbw."""
    pool, planned, where = site_of()[1].pools["h100"], [*planned], f"{stage}/h100/{part}"
    whole, validation = job_of(["all_reduce"])
    work = Work(planned, 600, tuple(f"mlx5_{rail}" for rail in range(8)), folder / kept.FOLDER / where)
    lines = [FIRST_LINE]
    for group in planned:
        one = Made()
        one.hosts, one.gpus, one.low = [*group.nodes], 8 if group.rail is None else 1, one.high
        one.peak = round(pool.group_gbps[group.kind] * share(group), 2)
        printed = [line for line in one.lines() if "NCCL INFO" not in line or "NET/IB : Using" in line]
        name = f"# busbar: group {group.name}"
        lines += [f"{name} begins", *printed, f"{name} ended with exit code 0 after 20 s"]
    text = "".join(f"{line}\n" for line in [*lines, f"{LAST_LINE} 0"])
    job = replace(work.run(whole), pool=f"{RUN_NAME}-{stage}0", stage=work.stage)
    keep_log(folder, where, job, validation, lambda hosts: text, change)


def nodes_pairs_rails(folder: Path) -> None:
    places, none = site_of()[1].pools["h100"].rail_groups, Known()
    alone = [Group("A", number, "node", (name,)) for number in range(3) for name in WORKERS]
    groups(folder, "nvlink", "000", alone)
    pairs = [each for each in plan("A", WORKERS, places) if len(each.nodes) == 2]
    groups(folder, "pairs", "000", pairs)
    groups(folder, "after", "000", alone)
    groups(folder, "after", "001", pairs)
    groups(folder, "rails", "000", plan_rails(WORKERS, places, none, rails=8))


def inventory(folder: Path, change: Change = lambda hosts: None, run: str = RUN_NAME) -> None:
    """The inventory; CHANGE gets host -> report."""
    hosts = {name: host(number) for number, name in enumerate(WORKERS, start=1)}
    change(hosts)
    kept.write_json(folder / kept.FOLDER / "inventory" / kept.HOSTS, {"run": run, "hosts": hosts})


def cabling() -> Net:
    rails = {
        name: {f"mlx5_{hca}": (0xB8CEF603 << 32) + (number << 16) + hca for hca in range(8)}
        for number, name in enumerate(WORKERS, 1)
    }
    return Net.of(rails)


def design(net: Net) -> str:
    return write_design(
        Fabric.read(net.text(), {End(*name.split()): guid for name, guid in net.hcas.items()})
    )


def printed(folder: Path, stage: str, hosts: dict[str, Any], run: str = RUN_NAME) -> None:
    kept.write_json(folder / kept.FOLDER / stage / kept.PRINTED, kept.Printed(run=run, hosts=hosts))


def paths(folder: Path, change: Callable[[Found], object] = lambda found: None) -> None:
    """The paths of both workers, with eight rails each."""
    found = Found()
    for peer, name in pairwise(["", *WORKERS]):
        found.rails[name] = {f"mlx5_{hca}": Rail(f"mlx5_{hca}/1", 400, 504.1) for hca in range(8)}
        for memory in ("host", "gpu", *(["partner"] if peer else [])):
            about = {"host": name, "memory": memory, "gpu": "0000:1b:00.0", "peer": peer, "gbps": 392.0}
            found.take([RailPath.model_validate({"rail": rail, **about}) for rail in found.rails[name]])
    change(found)
    kept.write_json(folder / kept.FOLDER / "paths" / PATHS_FILE, Paths(run=RUN_NAME, pools={"h100": found}))


def soak_log(hosts: list[str], values: Sequence[float], seconds: float = 300.5) -> str:
    """The log of a job of a soak: one interval per value in GB/s."""
    names, peaks = ["all_reduce"] * len(values), {"all_reduce": [*values]}
    iterations = round(seconds / (2 * (2**33 / 1e9) * 1.875 / 390))
    return log(names, hosts, peaks, warn=True, iterations=iterations)


def segment(
    folder: Path, values: Sequence[float] = (390.0,) * INTERVALS, part: str = "000", *, began: str = BEGAN,
    ended: str = SOAK_ENDED, change: Change = lambda record: None, **more: Any,
) -> None:  # fmt: skip
    """A job of the soak, with its kept log. MORE: fields of its Segment."""
    job, validation = job_of(["all_reduce"] * len(values), {"min_bytes": 1 << 33}, NCCL_DEBUG="WARN")
    job, where = replace(job, pool=f"{RUN_NAME}-k0-{part}"), f"{kept.SOAK}/h100/{part}"
    to = keep_log(folder, where, job, validation, lambda hosts: soak_log(hosts, values), change, began)
    about = {"run": RUN_NAME, "nodes": WORKERS, "runs": len(values), "iterations": 3637, "ended": ended}
    kept.write_json(to / kept.SEGMENT, {**about, **more})


def samples(
    folder: Path, node: str, *changes: tuple[int, dict[str, Any]], whose: str = "", seconds: int = 3660,
    **header: Any,
) -> None:  # fmt: skip
    """The samples of a healthy node, one every 30 s. CHANGES: seconds after the begin, and what is new."""
    machine = node.rpartition("-")[2] * 8
    first = {
        "run": RUN_NAME, "node": whose or node, "machine": machine, "boot": "b", "k3s": "i",
        "ports": [], "xids": [], "nvlink": "", "gpus": [["0000:18:00.0", 0, 0]], "heat": [60, 1980], **header,
    }  # fmt: skip
    lines = [{"t": START, **first}]
    for second in range(30, seconds, 30):
        new = [change for at, change in changes if second - 30 < at <= second]
        lines.append({"t": START + second, **{key: each[key] for each in new for key in each}})
    samples_text(folder, node, "".join(f"{json.dumps(line)}\n" for line in lines))


def samples_text(folder: Path, node: str, text: str) -> None:
    kept.write_packed(folder / kept.FOLDER / kept.SOAK / "h100" / f"{node}{SAMPLES}", text.encode())


def diag(change: Change = lambda tests: None, gpus: int = 8) -> str:
    """What `dcgmi diag -r 3 -j` of DCGM 4 prints where all passes; CHANGE gets test -> results."""
    names = {"software": "Deployment", "pcie": "Integration", "memory": "Hardware", "diagnostic": "Hardware"}
    names |= {"nvbandwidth": "Integration"}
    names |= dict.fromkeys(("memory_bandwidth", "targeted_stress", "targeted_power"), "Stress")
    tests: dict[str, Any] = {
        name: [
            {"entity_group": "GPU", "entity_group_id": 1, "entity_id": gpu, "status": "Pass"}
            for gpu in range(gpus)
        ]
        for name in names
    }
    change(tests)
    summary = {"test_summary": {"status": "Pass"}}
    categories = [
        {"category": names[name], "tests": [{"name": name, "results": results, **summary}]}
        for name, results in tests.items()
    ]
    return json.dumps({"DCGM Diagnostic": {"test_categories": categories}, "metadata": {"version": "4.6.0"}})


def stressed(**values: Any) -> dict[str, Any]:
    return {"error": "", "simulated": "", "diag": diag(), **values}


def fio(gbps: float = 2.0, iops: float = 20_000.0, error: int = 0) -> dict[str, Any]:
    none, rate = {"bw_bytes": 0, "iops": 0.0}, {"bw_bytes": int(gbps * 1e9), "iops": iops}
    jobs = [
        {"jobname": name, "error": error, "read": none, "write": none} | {part: rate}
        for name, part in (("write", "write"), ("read", "read"), ("iops", "read"))
    ]
    return {"error": "", "fio": json.dumps({"fio version": "fio-3.33", "jobs": jobs})}


def stored(**values: Any) -> dict[str, Any]:
    mount = {"mount": "/mnt/data 10.0.0.5:/data nfs4", "free_bytes": 10**13, "seen": RUN_NAME}
    return {**mount, "fio-1": fio(), "fio-2": fio(), **values}


def begun(folder: Path, facts: Site | None = None, /, **options: str) -> kept.Begun:
    """The run, by default on the cluster of WORKERS, and its criteria."""
    facts = facts or site_of()[1]
    release = {"version": __version__, "commit": commit()}
    start = kept.Begun(
        run=RUN_NAME, began=BEGAN, busbar=release, site=facts, rows=contract.offered(facts), options=options
    )
    kept.write_json(folder / kept.FOLDER / kept.RUN, start)
    (folder / document.CRITERIA).write_text(contract.text(contract.default(facts)))
    return start


def running(home: Path, *, api: Any = None, more: Any = None, **options: str) -> Running:
    """A run in HOME, on the cluster of API, that began with these options. MORE: fields of Running."""
    (home / "run").mkdir(exist_ok=True)
    start, (cluster, _) = begun(home / "run", **options), site_of()
    file = StackFile(home / "Pulumi.prod.yaml", {}, frozenset())
    fields: dict[str, Any] = {"say": lambda text: None, "clock": Clock(), "idle": False, **(more or {})}
    made = Running(home / "run", start, file, cluster, **fields)
    made.__dict__["api"] = api
    return made


def stage(folder: Path, name: str, **more: Any) -> None:
    about = {"run": RUN_NAME, "stage": name, "began": BEGAN, "ended": ENDED, **more}
    kept.write_json(folder / kept.FOLDER / name / kept.STAGE, about)


def machines(folder: Path, name: str, change: Change = lambda hosts: None, **about: Any) -> None:
    """The workers as a stage has met them; CHANGE gets host -> machine."""
    parts = {worker: kept.Parts(**host(number)["also"]) for number, worker in enumerate(WORKERS, 1)}
    hosts = {worker: each.identity.model_dump() for worker, each in parts.items()}
    change(hosts)
    met = {"run": RUN_NAME, "at": BEGAN, "hosts": hosts, **about}
    kept.write_json(folder / kept.FOLDER / name / "machines-000.json.zst", met)


def training(
    folder: Path, change: Change = lambda source: None, of: Callable[[list[Any]], list[Any]] = list
) -> Path:
    """The proof of a training run on both workers; OF changes its records."""
    text = b"".join(proof.lines(of([*proof.first(), *proof.second()]))).decode()
    machines = {name: host(number)["also"]["machine"][:8] for number, name in enumerate(WORKERS, 1)}
    archive, wanted = Archive(folder), proof.expected(nodes=WORKERS[:2], machines=machines)
    with archive.new_log() as sink, ZstdFile(sink, "w") as file:
        file.write(text.replace("gpu-1", WORKERS[0]).replace("gpu-2", WORKERS[1]).encode())
    source: dict[str, Any] = {
        "expectation": wanted.model_dump(mode="json", exclude_none=True), "outcome": asdict(JobOutcome(True)),
        "measured_at": "2026-11-23T01:30:00Z",
    }  # fmt: skip
    change(source)
    archive.mark_complete("u-training", source)
    return folder


def evidence(folder: Path) -> Path:
    begun(folder, cabling=design(cabling()), storage="/mnt/data")
    for name in (each.name for each in STAGES):
        stage(folder, name)
        machines(folder, name, at=ENDED if name == "machines" else BEGAN)
    (folder / kept.FOLDER / "inventory" / "machines-000.json.zst").unlink()
    inventory(folder)
    printed(folder, "stress", {name: stressed() for name in WORKERS})
    nodes = len(WORKERS)
    more = {f"fio-{width}": fio() for width in (nodes // 2, nodes)}
    printed(folder, "storage", {name: stored(**more) for name in WORKERS})
    printed(folder, "cabling", {"worker-1": {"text": cabling().text()}})
    paths(folder)
    collective(folder, "collectives")
    collective(folder, "repeats")
    nodes_pairs_rails(folder)
    training(folder / kept.FOLDER / "training" / "h100")
    segment(folder)
    for node in WORKERS:
        samples(folder, node)
    return folder


@cache
def _rows(workers: tuple[str, ...]) -> dict[str, kinds.Row]:
    return {row.id: row for row in contract.default(_site_of(workers)[1]).rows}


def result(folder: Path, row: str) -> SimpleNamespace:
    return SimpleNamespace(**kinds.result(_rows(WORKERS)[row], kept.Evidence(folder), {}))


def judged(folder: Path, row: str, outcome: str, reason: str) -> SimpleNamespace:
    """The result of a row, which must have this outcome, and this text in its reason."""
    found = result(folder, row)
    assert (found.result, reason in found.reason) == (outcome, True), found.reason
    return found


def sums(folder: Path) -> None:
    """Write SHA256SUMS anew, as a forger would."""
    files = kept.files_of(folder).items()
    text = document.sums_of({path: kept.sha256(file) for path, file in files if document.is_listed(path)})
    (folder / document.SUMS).write_text(text)

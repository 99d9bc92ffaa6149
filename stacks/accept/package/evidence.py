"""The evidence of a run: files that the stages have written, read in bounded memory."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
import stat
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache, cached_property
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

from pydantic import BaseModel, Field, ValidationError

from busbar.exits import Failed, NoVerdict
from busbar.fabric.diagnosis.stages import StageLog
from busbar.fabric.localise import Group
from busbar.judge.archive import JOB, LOG, SOURCE, Archive, Record
from busbar.judge.nccl import Verdict
from busbar.judge.nccl.log.records import Run, number
from busbar.judge.nccl.log.tables import infer
from busbar.judge.nccl.verdict import judge_archive
from busbar.models import OutputModel
from busbar.preflight.report import Report
from busbar.writing import write_whole
from busbar.zstd import ZstdError, ZstdFile
from stacks.accept.package.site import Site

FOLDER = "evidence"
INVENTORY = "inventory"
RUN, STAGE, HOSTS, PRINTED = "run.json", "stage.json", "hosts.json.zst", "printed.json.zst"
MACHINES_FILES = "machines-*.json.zst"
LOG_FILES = (LOG, SOURCE)
# The last stage, whose rows say whether the machines are still the same.
MACHINES = "machines"
SOAK, SEGMENT = "soak", "segment.json"
# The stages of jobs over all nodes, with the letter in the names of their jobs.
WHOLE = {"collectives": "c", "repeats": "r", SOAK: "k"}
# Kubernetes writes times in this form.
TIME = "%Y-%m-%dT%H:%M:%SZ"
SKEW_SECONDS = 300
# 440 reports have 7 MB.
MAX_JSON = 16 << 20
_PATH = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*(/[A-Za-z0-9_][A-Za-z0-9._-]*){0,5}")


class Untrusted(Failed):
    """A folder, or a file in it, is not what it must be; one sentence."""


class Contradiction(Untrusted):
    """A log, or its record, says otherwise than the run: whoever kept it has changed the yardstick."""


class OfRun(OutputModel):
    """A file of a run."""

    run: str


class Begun(OfRun):
    """The run, written when it begins. `busbar`: version and commit of the release that ran it.

    `rows`: the ids of its default criteria. `options`: given beside the criteria, such as the cabling.
    """

    began: str = Field(pattern=r"^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}Z$")
    busbar: dict[str, str]
    site: Site
    rows: tuple[str, ...]
    options: dict[str, str] = Field(default={})

    def job(self, stage: str, pool: str, part: str = "") -> str:
        """The begin of the names of a stage's jobs in a pool; PART: of a segment of a soak."""
        number = [*self.site.pools].index(pool)
        return f"{self.run}-{WHOLE.get(stage, stage)}{number}{part and f'-{part}'}"


class Stage(OfRun):
    """A stage, written when it has ended. `notes`: pool -> why it was not run there."""

    stage: str
    began: str
    ended: str
    notes: dict[str, str] = Field(default={})

    @property
    def limits(self) -> tuple[float, float]:
        """The times (epoch) between which its evidence must be. Raises ValueError."""
        return time_of(self.began) - SKEW_SECONDS, time_of(self.ended) + SKEW_SECONDS


Each = TypeVar("Each")
Read = TypeVar("Read", bound=OfRun)


class OfHosts(OfRun, Generic[Each]):
    """The answers of hosts in a stage. `failed`: host -> why it has told nothing."""

    hosts: dict[str, Each]
    failed: dict[str, str] = Field(default={})

    def silent(self, workers: Iterable[str], what: str = "no result") -> list[str]:
        """The workers that have told nothing, each with the reason."""
        return [self.failed.get(name, f"{name}: {what}") for name in workers if name not in self.hosts]

    def add(self, other: OfHosts[Each]) -> None:
        """Take the answers of other hosts in."""
        self.hosts.update(other.hosts)
        self.failed.update(other.failed)


class Gpu(OutputModel):
    """A GPU as nvidia-smi prints it."""

    uuid: str
    serial: str
    vbios: str
    ecc: str


class Hca(OutputModel):
    """A port of an HCA. `vf`: a new GUID after each boot. `counters`: whether those of errors can be read."""

    name: str
    port: int
    guid: str
    vf: bool = False
    counters: bool = False


class Parts(OutputModel):
    """The output of host/inventory.sh. `nvlinks`: as `nvidia-smi nvlink -s` prints them; None if unread."""

    machine: str = ""
    boot_id: str = ""
    serial: str = ""
    gpus: tuple[Gpu, ...] = ()
    hcas: tuple[Hca, ...] = ()
    nvlinks: str | None = None
    simulated: str = ""

    @property
    def identity(self) -> Machine:
        """The machine with these parts."""
        gpus = tuple(f"GPU {each.uuid} (serial {each.serial})" for each in self.gpus)
        hcas = tuple(f"HCA {each.guid}" for each in self.hcas if not each.vf)
        return Machine(machine=self.machine, boot=self.boot_id, gpus=gpus, hcas=hcas)


class Told(Report):
    """The report of a worker, with the output of host/inventory.sh."""

    also: Parts = Parts()  # type: ignore[assignment]  # a dict for the core


Inventory = OfHosts[Told]
Printed = OfHosts[dict[str, Any]]  # the output of a script of accept


class Machine(OutputModel):
    """A worker in a stage, by its machine id (as sha256) and boot id, and by the serials of its parts."""

    machine: str
    boot: str
    gpus: tuple[str, ...] = ()
    hcas: tuple[str, ...] = ()


class Machines(OfHosts[Machine]):
    """The workers as a stage has met them."""

    at: str


class Changes(NamedTuple):
    """The changes. `known`: all that was shown. `exchanged`: its place in Evidence.met, and what it is."""

    exchanged: dict[str, tuple[int, str]]
    reboots: dict[str, list[str]]
    known: dict[str, Machine]


@dataclass(frozen=True)
class Judged:
    """A kept log, judged by this release. `runs`: collective -> its runs with a bandwidth."""

    verdict: Verdict
    record: Record
    runs: dict[str, list[Run]]

    def busbw(self, collective: str) -> list[float]:
        """GB/s of each run of a collective."""
        return [run.busbw or 0.0 for run in self.runs.get(collective, ())]

    def by_size(self, collective: str) -> dict[int, list[float]]:
        """Message size -> out-of-place GB/s of each run of a collective."""
        found: dict[int, list[float]] = {}
        for row in (row for run in self.runs.get(collective, ()) for row in run.rows):
            if (busbw := number(row.out_of_place.busbw)) is not None:
                found.setdefault(row.size, []).append(busbw)
        return found


@dataclass(frozen=True)
class Runs:
    """The runs of a job of nodes or pairs: GB/s, or None. `hcas`: by rail, the names that NCCL printed."""

    results: dict[Group, float | None]
    hcas: tuple[str, ...]


def digest_of(machine_id: str) -> str:
    """A machine id as host/inventory.sh tells it."""
    return hashlib.sha256(f"{machine_id}\nbusbar\n".encode()).hexdigest()


def files_of(folder: Path) -> dict[str, Path]:
    """Path below FOLDER -> file. Raises Untrusted for other than plain files, NoVerdict for unreadable."""
    found: dict[str, Path] = {}
    for root, folders, names in os.walk(folder, onerror=_unread):
        for name in (*folders, *names):
            path = Path(root, name)
            relative = path.relative_to(folder).as_posix()
            mode = path.lstat().st_mode
            if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
                raise Untrusted(f"{relative!r} is a symbolic link or a special file, expected plain files")
            if not _PATH.fullmatch(relative):
                raise Untrusted(f"{relative!r} is not a name that busbar writes")
            if stat.S_ISREG(mode):
                found[relative] = path
            if not os.access(path, os.R_OK):
                _unread(PermissionError(0, "no permission to read it", str(path)))
    return dict(sorted(found.items()))


def _unread(error: OSError) -> None:
    fix = "chmod -R a+rX the folder, or run as its owner"
    raise NoVerdict(f"{error.filename} cannot be read: {error.strerror}. Fix: {fix}")


def sha256(path: Path) -> str:
    """The digest of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def read_json(path: Path) -> Any:
    """A JSON file, also packed. Raises Untrusted."""
    try:
        with ZstdFile(path) if path.suffix == ".zst" else path.open("rb") as file:
            data = file.read(MAX_JSON + 1)
        # A text that is cut at the limit is not JSON.
        return json.loads(data[:MAX_JSON])
    except (ValueError, RecursionError, EOFError, OSError, ZstdError) as error:
        raise Untrusted(f"{path.name} cannot be read: {type(error).__name__}") from None


class Evidence:
    """The evidence below a folder; all methods raise Untrusted. `running`: a stage that counts as ended."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / FOLDER
        self.running: Stage | None = None
        self._judged: dict[tuple[str, str, str], Judged] = {}
        self._stage, self.runs = cache(self._read_stage), cache(self._read_runs)

    @cached_property
    def begun(self) -> Begun:
        """The run."""
        if found := self.read(Begun, RUN):
            return found
        raise Untrusted(f"{FOLDER}/{RUN} is missing")

    @cached_property
    def inventory(self) -> Inventory:
        """The inventory; of no host without one."""
        return self.read(Inventory, f"{INVENTORY}/{HOSTS}") or Inventory(run=self.begun.run, hosts={})

    def printed(self, stage: str) -> Printed:
        """The output of the hosts in a stage; of no host without it."""
        return self.read(Printed, f"{stage}/{PRINTED}") or Printed(run=self.begun.run, hosts={})

    def stage(self, name: str) -> Stage | None:
        """A stage that has ended; None if it has not."""
        return self.running if self.running and self.running.stage == name else self._stage(name)

    def _read_stage(self, name: str) -> Stage | None:
        found = self.read(Stage, f"{name}/{STAGE}")
        if found and (found.stage != name or not self.begun.began <= found.began <= found.ended):
            raise Untrusted(f"{name}/{STAGE} is of {found.stage!r}, {found.began} to {found.ended}")
        return found

    @cached_property
    def met(self) -> list[tuple[str, Machines]]:
        """Each stage with the workers as it has met them, in order of time."""
        found: list[tuple[str, Machines]] = []
        if self.inventory.hosts and (first := self.stage(INVENTORY)):
            hosts = {name: report.also.identity for name, report in self.inventory.hosts.items()}
            found.append((INVENTORY, Machines(run=self.begun.run, at=first.began, hosts=hosts)))
        for path in sorted(self.folder.glob(f"*/{MACHINES_FILES}")):
            name, where = path.parent.name, f"{path.parent.name}/{path.name}"
            stage, asked = self.stage(name), self.read(Machines, where)
            if stage and asked:
                if not stage.began <= asked.at <= stage.ended:
                    raise Untrusted(f"{where} is of {asked.at}, not in its stage")
                found.append((name, asked))
        # Times are whole seconds, and the question of the end comes last.
        return sorted(found, key=lambda each: (each[1].at, each[0] == MACHINES))

    @cached_property
    def changes(self) -> Changes:
        """The changes of all workers, from stage to stage."""
        found = Changes({}, {}, {})
        for place, (stage, asked) in enumerate(self.met):
            for name, now in asked.hosts.items():
                if name in found.exchanged:
                    continue
                was, since = found.known.setdefault(name, now), f"since stage {stage} ({asked.at})"
                other = [part for part in now.gpus if was.gpus and part not in was.gpus]
                other += [part for part in now.hcas if was.hcas and part not in was.hcas]
                if now.machine != was.machine:
                    found.exchanged[name] = place, f"{name} is another machine {since}"
                elif other:
                    found.exchanged[name] = place, f"{name} has another {other[0]} {since}"
                if was.boot and now.boot not in ("", was.boot):
                    found.reboots.setdefault(name, []).append(f"{name} before stage {stage}")
                shown = {key: getattr(was, key) or getattr(now, key) for key in ("gpus", "hcas")}
                found.known[name] = was.model_copy(update={"boot": now.boot or was.boot, **shown})
        return found

    def exchanged(self, pool: str, last: float = float("inf")) -> list[str]:
        """The workers of a pool that were exchanged up to a place in `met`, each with what is another one."""
        found, workers = self.changes.exchanged, self.begun.site.pools[pool].workers
        in_order = sorted(found[name] for name in workers if name in found)
        return [what for place, what in in_order if place <= last]

    def doubt(self, stage: str, pool: str) -> str:
        """Why a stage may have run on other machines than the first one; empty if nothing says so."""
        places = [place for place, (name, _) in enumerate(self.met) if name == stage]
        if not places:
            return f"{stage} has no record of its machines"
        # A worker that is another one now may have been exchanged while the stage before ran.
        return "; ".join(self.exchanged(pool, places[-1] + 1))

    def judged(self, stage: str, pool: str, part: str = "") -> Judged | None:
        """The log of a pool, or of a segment, judged again; None without a complete one."""
        key = stage, pool, part
        if key not in self._judged:
            with self._opened(*key) as (archive, where, record):
                found = judge_archive(archive) if record else None
                if record is None or found is None:
                    return None
                log, verdict = found
                for names in log.evidence.hcas_of_host.values():
                    self._know(f"{where}/{LOG}", pool, names)
            runs: dict[str, list[Run]] = {}
            for run in log.runs:
                if run.busbw is not None and (name := infer(run).name):
                    runs.setdefault(name, []).append(run)
            self._judged[key] = Judged(verdict, record, runs)
        return self._judged[key]

    def _read_runs(self, stage: str, pool: str) -> list[Runs]:
        """The runs on one or two nodes of a stage, judged again: those of its jobs, in order."""
        return [self._runs_of(stage, pool, part) for part in self.parts(stage, pool)]

    def results(self, pool: str, *stages: str) -> dict[Group, float | None]:
        """The results of all runs of these stages."""
        jobs = (job for stage in stages for job in self.runs(stage, pool))
        return {group: busbw for job in jobs for group, busbw in job.results.items()}

    def parts(self, stage: str, pool: str) -> list[str]:
        """The names of the folders of the jobs of a stage, in order."""
        return sorted(path.name for path in (self.folder / stage / pool).glob("*/"))

    def _runs_of(self, stage: str, pool: str, part: str) -> Runs:
        with self._opened(stage, pool, part) as (archive, where, record):
            if record is None:
                raise Untrusted(f"{where} has no complete log")
            places, nodes = self.begun.site.pools[pool].rail_groups, {*record.nodes}

            def group_of(name: str) -> Group | None:
                group = Group.of_name(name, places)
                return group if group and nodes.issuperset(group.nodes) else None

            slots, size = record.expectation["gpus_per_node"], record.expectation["max_bytes"]
            log = StageLog(group_of, record.nodes, slots, size, lambda missing: {})
            for line in archive.log_lines():
                log.line(line)
            self._know(f"{where}/{LOG}", pool, log.hcas)
        return Runs({group: result.busbw for group, result in log.results.items()}, log.hcas)

    @contextmanager
    def _opened(self, stage: str, pool: str, part: str) -> Iterator[tuple[Archive, str, Record | None]]:
        """A folder of a job, its path, and the record of its complete log. Any fault raises Untrusted."""
        where = f"{stage}/{pool}{part and f'/{part}'}"
        archive = Archive(self.folder / where)
        with judging(where):
            yield archive, where, self._record(archive, where, stage, pool, part)

    def _record(self, archive: Archive, where: str, stage: str, pool: str, part: str) -> Record | None:
        """The record of a complete log, which is of this run; None without one."""
        has_log = all((archive.folder / name).is_file() for name in LOG_FILES)
        record = Record.model_validate(read_json(archive.folder / SOURCE)) if has_log else None
        if record is None or not record.complete:
            return None
        job, ended = record.settings.get(JOB, ""), self.stage(stage)
        workers = [f"{job}-worker-{index}" for index in range(len(record.nodes))]
        of = self.begun.job(stage, pool, part if stage == SOAK else "")
        if f"-{of}-" not in job or record.expectation.get("hosts") != workers:
            raise Untrusted(f"{where} is the log of job {job[:80]!r}, expected one of {self.begun.run}")
        if not record.nodes or not {*record.nodes} <= {*self.begun.site.pools[pool].workers}:
            raise Untrusted(f"{where} was measured on other nodes than workers of pool {pool}")
        self._compare(where, pool, record, stage)
        # The cluster's clock says when a job was created.
        if not ended or not ended.limits[0] <= time_of(record.measured_at or "") <= ended.limits[1]:
            raise Untrusted(f"{where} was measured at {record.measured_at}, not in its stage")
        return record

    def _compare(self, where: str, pool: str, record: Record, stage: str) -> None:
        """Compare the expectation of a log with that of the site. Raises Contradiction."""
        facts, given = self.begun.site.pools[pool], record.expectation
        wanted = {**facts.expectation, "nodes": len(record.nodes)}
        if stage not in ("collectives", "repeats"):
            wanted["min_bytes"] = wanted["max_bytes"]
        if stage not in WHOLE:
            # A diagnosis has rings, and rails by the names that NCCL gave them.
            wanted |= {"algorithm": "ring", "hcas": given.get("hcas")}
        own = {key: value for key, value in given.items() if key not in ("hosts", "collectives")}
        for key in sorted(wanted.keys() | own.keys()):
            if own.get(key) != wanted.get(key):
                said = f"says {key} {own.get(key)!r}, the run began with {wanted.get(key)!r}"
                raise Contradiction(f"{where}/{SOURCE} {said}"[:400])
        self._know(where, pool, given.get("hcas") or ())

    def reports(self, pool: str) -> dict[str, Told]:
        """The reports of the workers of a pool."""
        hosts = self.inventory.hosts
        return {name: hosts[name] for name in self.begun.site.pools[pool].workers if name in hosts}

    def _know(self, where: str, pool: str, names: Iterable[str]) -> None:
        """Compare the names of HCAs with those of the inventory, where it has any. Raises Contradiction."""
        reports = self.reports(pool).values()
        known = {each.name for report in reports for each in report.hcas}
        known |= {each.name for report in reports for each in report.also.hcas}
        parts = {part.partition(":")[0] for name in names for part in name.split("+")}
        if known and (unknown := sorted(parts - known)):
            raise Contradiction(f"{where} names the HCA {unknown[0][:80]}, which no worker of {pool} has")

    def read(self, model: type[Read], path: str) -> Read | None:
        """A file of this run; None without it."""
        if not (self.folder / path).is_file():
            return None
        try:
            found = model.model_validate(read_json(self.folder / path))
        except ValidationError as error:
            first = str(error).splitlines()[0][:120]
            raise Untrusted(f"{path} is not what busbar writes: {first}") from None
        if not isinstance(found, Begun) and found.run != self.begun.run:
            raise Untrusted(f"{path} is of run {found.run!r}, expected {self.begun.run!r}")
        return found


@contextmanager
def judging(where: str) -> Iterator[None]:
    """Read and judge a log. Raises Untrusted for any fault of a reader."""
    try:
        yield
    except Untrusted:
        raise
    except Exception as error:  # hostile bytes make a reader raise anything
        raise Untrusted(f"{where} cannot be judged: {type(error).__name__}") from None


def or_none(read: Callable[[], Each]) -> Each | None:
    """What is read, or None where it cannot be trusted: its rows say why."""
    with suppress(Untrusted):
        return read()
    return None


def time_of(text: str) -> float:
    """The seconds since the epoch of a time of TIME's form. Raises ValueError."""
    return datetime.strptime(text, TIME).replace(tzinfo=UTC).timestamp()


def unpacked(text: object, most: int) -> bytes:
    """Unpack what a script packed with gzip and base64, until it is above MOST. Raises NoVerdict."""
    try:
        return zlib.decompressobj(31).decompress(base64.b64decode(str(text), validate=True), most + 1)
    except (ValueError, zlib.error) as error:
        raise NoVerdict(f"the output of a host cannot be unpacked: {error}") from None


def write_json(path: Path, value: Any) -> None:
    """Write JSON, or a model, as a whole, packed if the name ends with .zst."""
    made = value.model_dump(mode="json") if isinstance(value, BaseModel) else value
    text = json.dumps(made, indent=1)
    if path.suffix == ".zst":
        write_packed(path, text.encode())
    else:
        write_whole(path, text + "\n")


def write_packed(path: Path, data: bytes) -> None:
    """Write a packed file as a whole."""
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_name(f".{path.name}")
    with ZstdFile(new, "w") as file:
        file.write(data)
    new.replace(path)

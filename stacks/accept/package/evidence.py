"""The evidence of a run: files that the stages have written, read in bounded memory."""

from __future__ import annotations

import hashlib
import json
import os
import pkgutil
import re
import stat
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cached_property, partial
from pathlib import Path
from typing import Any, TypeVar

from pydantic import Field, ValidationError

from busbar.capability import capabilities
from busbar.exits import Failed, NoVerdict
from busbar.fabric.diagnosis.stages import StageLog, group_begins
from busbar.fabric.localise import Group
from busbar.judge.archive import JOB, LOG, SOURCE, Archive, Record
from busbar.judge.nccl import Verdict
from busbar.judge.nccl.judgement import judge_archive
from busbar.judge.nccl.log.records import Run, amount, number
from busbar.judge.nccl.log.tables import infer
from busbar.models import OutputModel
from busbar.preflight.report import Report
from busbar.writing import write_whole
from busbar.zstd import ZstdError, ZstdFile
from stacks.accept.package.site import Site
from stacks.accept.package.soak import Interval, Watched, watch
from stacks.accept.package.wiring import Fabric, Row, read_design

FOLDER = "evidence"
INVENTORY = "inventory"
RUN, STAGE, HOSTS, PRINTED = "run.json", "stage.json", "hosts.json.zst", "printed.json.zst"
LOG_FILES = (LOG, SOURCE)
DCGM_IMAGE = "dcgm-image"
SOAK, SEGMENT, SAMPLES = "soak", "segment.json", ".samples.zst"
# Kubernetes writes times in this form.
TIME = "%Y-%m-%dT%H:%M:%SZ"
SKEW = timedelta(minutes=5)
# 440 reports have 7 MB.
MAX_JSON = 16 << 20
# The limit is that of all files together: zstd may make GB of a few KB.
MAX_UNPACKED = 2 << 30
# A line of a sample, with 100 Xids.
MAX_SAMPLE = 256 << 10
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

    `rows`: the ids of its default criteria. `options`: what the command was given beside the criteria, such
    as the text of the cabling's design.
    """

    began: str
    busbar: dict[str, str]
    site: Site
    rows: tuple[str, ...]
    options: dict[str, str] = Field(default={})


class Stage(OfRun):
    """A stage, written when it has ended. `notes`: pool -> why it was not run there."""

    stage: str
    began: str
    ended: str
    notes: dict[str, str] = Field(default={})


class Inventory(OfRun):
    """The reports of the workers (busbar.preflight.report). `failed`: host -> why there is none."""

    hosts: dict[str, Report]
    failed: dict[str, str] = Field(default={})


class Printed(OfRun):
    """The output of a script of accept on hosts. `failed`: host -> why there is none."""

    hosts: dict[str, dict[str, Any]]
    failed: dict[str, str] = Field(default={})


class Machine(OutputModel):
    """A worker in a stage, by its machine id (as sha256) and boot id, and by the serials of its parts."""

    machine: str
    boot: str
    gpus: tuple[str, ...] = ()
    hcas: tuple[str, ...] = ()


class Machines(OfRun):
    """The workers as a stage has met them. `failed`: host -> why it is not known who it is."""

    at: str
    hosts: dict[str, Machine]
    failed: dict[str, str] = Field(default={})


class Segment(OfRun):
    """A job of a soak, written before it begins. `ended`: by the cluster's clock; empty until then.

    `failed`: how an interval has ended; the job was removed then, and its log is not kept.
    """

    nodes: tuple[str, ...]
    runs: int
    iterations: int
    ended: str = ""
    failed: str = ""


Read = TypeVar("Read", bound=OfRun)


@dataclass(frozen=True)
class Judged:
    """A kept log, judged by this release. `busbw`: collective -> GB/s of each of its tables.

    `by_size`: collective -> message size in bytes -> out-of-place busbw of each table in GB/s. `seconds`:
    collective -> of each table the time of an iteration at the largest message, and of all its iterations.
    """

    verdict: Verdict
    record: Record
    busbw: dict[str, list[float]]
    by_size: dict[str, dict[int, list[float]]]
    seconds: dict[str, list[tuple[float, float]]]


@dataclass(frozen=True)
class Runs:
    """The runs of a job on one or two nodes each, judged by this release: GB/s, or None without a result.

    `hcas`: their names by rail, as NCCL printed them.
    """

    results: dict[Group, float | None]
    hcas: tuple[str, ...]
    record: Record


def machine_of(also: Mapping[str, Any]) -> Machine:
    """The machine in an output of the script of the inventory."""
    gpus = (f"GPU {each.get('uuid')} (serial {each.get('serial')})" for each in parts_of(also, "gpus"))
    hcas = (f"HCA {each.get('guid')}" for each in parts_of(also, "hcas") if each.get("vf") is not True)
    machine, boot = (str(also.get(key) or "") for key in ("machine", "boot_id"))
    return Machine(machine=machine, boot=boot, gpus=tuple(gpus), hcas=tuple(hcas))


def parts_of(also: Mapping[str, Any], key: str) -> list[dict[str, Any]]:
    """The GPUs or HCAs in an output of the script of the inventory."""
    found = also.get(key)
    return [each for each in found if isinstance(each, dict)] if isinstance(found, list) else []


def machines_files(folder: Path) -> list[Path]:
    """The files on the machines of a stage, and the one to be written next."""
    there = sorted(folder.glob("machines-*.json.zst"))
    return [*there, folder / f"machines-{len(there):03}.json.zst"]


def files_of(folder: Path) -> dict[str, Path]:
    """Path below FOLDER -> file, of all files. Raises Untrusted for anything but plain files and folders.

    Raises NoVerdict where one of them cannot be read.
    """
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


def unpacked_bytes(path: Path) -> int:
    """The size of a packed file when unpacked, counted up to a little more than MAX_UNPACKED."""
    size = 0
    with ZstdFile(path) as file:
        while size <= MAX_UNPACKED and (chunk := file.read(1 << 20)):
            size += len(chunk)
    return size


class Evidence:
    """The evidence below a folder. Everything is read when it is asked for; all methods raise Untrusted."""

    def __init__(
        self,
        folder: Path,
        running: Stage | None = None,
        known: dict[tuple[str, str, str], Judged] | None = None,
    ) -> None:
        self.folder = folder / FOLDER
        self._running = running
        self._runs: dict[tuple[str, str], list[Runs]] = {}
        self._judged = {} if known is None else known
        self._watched: dict[str, dict[str, Watched]] = {}

    @cached_property
    def begun(self) -> Begun:
        """The run."""
        if found := self._read(Begun, RUN):
            return found
        raise Untrusted(f"{FOLDER}/{RUN} is missing")

    @cached_property
    def inventory(self) -> Inventory | None:
        """The inventory; None without one."""
        return self._read(Inventory, f"{INVENTORY}/{HOSTS}")

    def printed(self, stage: str) -> Printed | None:
        """The output of the hosts in a stage; None without it."""
        return self._read(Printed, f"{stage}/{PRINTED}")

    @cached_property
    def fabric(self) -> Fabric:
        """The fabric that ibnetdiscover has seen."""
        found = self.printed("cabling")
        texts = [str(each.get("text")) for each in found.hosts.values()] if found else []
        try:
            return Fabric.read("".join(texts))
        except ValueError as error:
            raise Untrusted(str(error)) from None

    @cached_property
    def design(self) -> list[Row]:
        """The rows of the cabling's design; none without one."""
        text = self.begun.options.get("cabling")
        try:
            return read_design(text) if text else []
        except ValueError as error:
            raise Untrusted(f"the design of the cabling: {error}") from None

    def stage(self, name: str) -> Stage | None:
        """A stage that has ended; None if it has not. The stage that asks counts as ended."""
        found = self._read(Stage, f"{name}/{STAGE}")
        if self._running and self._running.stage == name:
            found = self._running
        if found and (found.stage != name or not self.begun.began <= found.began <= found.ended):
            raise Untrusted(f"{name}/{STAGE} is of {found.stage!r}, {found.began} to {found.ended}")
        return found

    @cached_property
    def met(self) -> list[tuple[str, Machines]]:
        """Each stage with the workers as it has met them, in order of time."""
        found: list[tuple[str, Machines]] = []
        if self.inventory and (first := self.stage(INVENTORY)):
            hosts = {name: machine_of(report.also) for name, report in self.inventory.hosts.items()}
            found.append((INVENTORY, Machines(run=self.begun.run, at=first.began, hosts=hosts)))
        for folder in sorted(self.folder.iterdir()):
            for path in machines_files(folder)[:-1]:
                stage, asked = self.stage(folder.name), self._read(Machines, f"{folder.name}/{path.name}")
                if stage and asked and not stage.began <= asked.at <= stage.ended:
                    raise Untrusted(f"{folder.name}/{path.name} is of {asked.at}, not in its stage")
                found += [(folder.name, asked)] if asked else []
        return sorted(found, key=lambda each: each[1].at)

    def exchanged(self, pool: str) -> list[tuple[int, str]]:
        """The place in `met` where a worker of the pool was not what it had been, and what has changed."""
        found, before = dict[str, tuple[int, str]](), dict[str, Machine]()
        for place, (stage, asked) in enumerate(self.met):
            for name in self.begun.site.pools[pool].workers:
                if (now := asked.hosts.get(name)) is None or name in found:
                    continue
                was = before.setdefault(name, now)
                since = f"since stage {stage} ({asked.at})"
                if now.machine != was.machine:
                    found[name] = place, f"{name} is another machine {since}"
                for old, new in ((was.gpus, now.gpus), (was.hcas, now.hcas)):
                    if old and (other := [part for part in new if part not in old]):
                        found.setdefault(name, (place, f"{name} has another {other[0]} {since}"))
                before[name] = was.model_copy(
                    update={"gpus": was.gpus or now.gpus, "hcas": was.hcas or now.hcas}
                )
        return sorted(found.values())

    def doubt(self, stage: str, pool: str) -> str:
        """Why a stage may have run on other machines than the first one; empty if nothing says so."""
        places = [place for place, (name, _) in enumerate(self.met) if name == stage]
        if not places:
            return f"{stage} has no record of its machines"
        # A worker that is another one now may have been exchanged while the stage before ran.
        return "; ".join(what for place, what in self.exchanged(pool) if place <= places[-1] + 1)

    def judged(self, stage: str, pool: str, part: str = "") -> Judged | None:
        """The log of a pool, or of a segment, judged again; None without a complete one."""
        key = stage, pool, part
        if key not in self._judged and (found := self._judge(*key)):
            self._judged[key] = found
        return self._judged.get(key)

    def runs(self, stage: str, pool: str) -> list[Runs]:
        """The runs on one or two nodes of a stage, judged again: those of its jobs, in order."""
        folder = self.folder / stage / pool
        if (stage, pool) not in self._runs:
            parts = sorted(path.name for path in folder.iterdir() if path.is_dir()) if folder.is_dir() else []
            self._runs[stage, pool] = [self._read_runs(stage, pool, part) for part in parts]
        return self._runs[stage, pool]

    def _read_runs(self, stage: str, pool: str, part: str) -> Runs:
        archive, where = Archive(self.folder / stage / pool / part), f"{stage}/{pool}/{part}"
        if not _has_log(archive):
            raise Untrusted(f"{where} has no complete log")
        with _judging(archive, where):
            record = Record.model_validate(archive.record())
            if not record.complete:
                raise Untrusted(f"{where} has no complete log")
            self._bind(where, pool, record, self.stage(stage), "", stage)
            places, nodes = self.begun.site.pools[pool].rail_groups, {*record.nodes}
            names = dict.fromkeys(filter(None, map(group_begins, archive.log_lines())))
            named = (Group.of_name(name, places) for name in names)
            groups = [group for group in named if group and nodes.issuperset(group.nodes)]
            given = record.expectation or {}
            slots, size = given["gpus_per_node"], given["max_bytes"]
            log = StageLog(groups, record.nodes, slots, size, lambda missing: {})
            for line in archive.log_lines():
                log.line(line)
            self._know(f"{where}/{LOG}", pool, log.hcas)
        found = {group: log.results[group.name].busbw for group in groups if group.name in log.results}
        return Runs(found, log.hcas, record)

    def segment(self, pool: str, part: str) -> Segment | None:
        """A segment of the soak; None before it."""
        return self._read(Segment, f"{SOAK}/{pool}/{part}/{SEGMENT}")

    def segments(self, pool: str) -> list[Judged | None]:
        """The segments of the soak of a pool, in order; None for one without a complete log."""
        folder = self.folder / SOAK / pool
        parts = sorted(path.name for path in folder.iterdir() if path.is_dir()) if folder.is_dir() else []
        if parts != [f"{number:03}" for number in range(len(parts))]:
            raise Untrusted(f"{SOAK}/{pool} has the segments {', '.join(parts)[:80]}, expected 000 and on")
        return [self.judged(SOAK, pool, part) for part in parts]

    def intervals(self, pool: str) -> list[Interval]:
        """The intervals of the soak in order of time: those of a segment share its time evenly."""
        found: list[Interval] = []
        for index, log in enumerate(self.segments(pool)):
            segment = self.segment(pool, f"{index:03}")
            if log is None or segment is None or not segment.ended or "all_reduce" not in log.busbw:
                continue
            where, stage = f"{SOAK}/{pool}/{index:03}", self.stage(SOAK)
            try:
                texts = (log.record.measured_at or "", segment.ended, stage.ended if stage else "")
                began, ended, latest = (time_of(text).timestamp() for text in texts)
            except ValueError:
                raise Untrusted(f"{where} ended at {segment.ended!r}, not a time in its stage") from None
            loads = [seconds for _, seconds in log.seconds["all_reduce"]]
            span = (ended - began) / len(loads)
            # The times of the cluster are whole seconds.
            if sum(loads) > ended - began + 2:
                raise Untrusted(f"{where} has {sum(loads):.0f} s of load in {ended - began:.0f} s")
            if ended > latest + SKEW.total_seconds():
                raise Untrusted(f"{where} ended at {segment.ended!r}, not a time in its stage")
            if found and began < found[-1].at + found[-1].span - 2:
                raise Untrusted(f"{where} began before the end of the segment before it")
            found += [
                Interval(began + place * span, span, seconds, busbw)
                for place, (seconds, busbw) in enumerate(zip(loads, log.busbw["all_reduce"], strict=True))
            ]
        return found

    def watched(self, pool: str) -> dict[str, Watched]:
        """The samples of the soak by node; without a node that has none."""
        if pool not in self._watched:
            folder, found = self.folder / SOAK / pool, dict[str, Watched]()
            for path in sorted(folder.iterdir()) if folder.is_dir() else ():
                name = path.name.removesuffix(SAMPLES)
                if path.is_dir():
                    continue
                if name == path.name or name not in self.begun.site.pools[pool].workers:
                    raise Untrusted(f"{SOAK}/{pool}/{path.name} is not of a worker of the pool")
                try:
                    found[name] = watch(self._samples(path, name))
                except Untrusted:
                    raise
                except Exception as error:  # as for logs
                    what = f"{path.name} is not what a sampler writes: {type(error).__name__}"
                    raise Untrusted(what) from None
            self._watched[pool] = found
        return self._watched[pool]

    def _samples(self, path: Path, node: str) -> Iterator[dict[str, Any]]:
        stage = self.stage(SOAK)
        limits = stage and (time_of(stage.began) - SKEW, time_of(stage.ended) + SKEW)
        report = self.inventory.hosts.get(node) if self.inventory else None
        with ZstdFile(path) as file:
            for number, line in enumerate(iter(partial(file.readline, MAX_SAMPLE), b"")):
                sample: dict[str, Any] = json.loads(line)
                if number == 0 or "run" in sample:
                    whose = sample.get("run"), sample.get("node")
                    if whose != (self.begun.run, node):
                        raise Untrusted(f"{path.name} is of {whose!r}, expected {(self.begun.run, node)!r}")
                    if report and report.machine != sample["machine"]:
                        raise Untrusted(f"{path.name} is of another machine than the inventory's {node}")
                if not limits or not limits[0].timestamp() <= sample["t"] <= limits[1].timestamp():
                    raise Untrusted(f"{path.name} has a sample of {sample['t']!r}, not in its stage")
                yield sample

    def _judge(self, stage: str, pool: str, part: str) -> Judged | None:
        archive = Archive(self.folder / stage / pool / part)
        if not _has_log(archive):
            return None
        with _judging(archive, f"{stage}/{pool}"):
            found, record = judge_archive(archive), Record.model_validate(archive.record())
            if found is None or not record.complete:
                return None
            self._bind(f"{stage}/{pool}", pool, record, self.stage(stage), part)
            for names in found[0].evidence.hcas_of_host.values():
                self._know(f"{stage}/{pool}/{LOG}", pool, names)
        judged = Judged(found[1], record, {}, {}, {})
        for run in found[0].runs:
            if run.rows and (name := infer(run).name) and run.busbw is not None:
                judged.busbw.setdefault(name, []).append(run.busbw)
                judged.seconds.setdefault(name, []).append(_seconds(run))
                sizes = judged.by_size.setdefault(name, {})
                for row in run.rows:
                    if (value := number(row.out_of_place.busbw)) is not None:
                        sizes.setdefault(row.size, []).append(value)
        return judged

    def training(self, pool: str) -> Any:
        """The verdict on the training run of a pool, judged again by its capability; None without one."""
        where, stage = f"training/{pool}", self.stage("training")
        archive = Archive(self.folder / where)
        if stage is None or not _has_log(archive):
            return None
        with _judging(archive, where) as kept:
            if not {*kept["expectation"]["nodes"]} <= {*self.begun.site.pools[pool].workers}:
                raise Untrusted(f"{where} ran on other nodes than workers of pool {pool}")
            # An update of another stack runs it, between the begin of this run and the end of its stage.
            begin, end = time_of(self.begun.began) - SKEW, time_of(stage.ended) + SKEW
            if not begin <= time_of(str(kept["measured_at"])) <= end:
                raise Untrusted(f"{where} began at {str(kept['measured_at'])[:80]}, not during this run")
            [judge] = [each.judge for each in capabilities() if each.name == "training" and each.judge]
            return pkgutil.resolve_name(judge)(archive.folder)

    def _bind(
        self, where: str, pool: str, record: Record, stage: Stage | None, part: str, of_stage: str = ""
    ) -> None:
        """Compare job, nodes and time of a log with those of this run, and of a stage of its own name."""
        job = record.settings.get(JOB, "")
        workers = [f"{job}-worker-{index}" for index in range(len(record.nodes))]
        number = [*self.begun.site.pools].index(pool)
        of = f"{segment_of(self.begun.run, number, part)}-" if part else f"{self.begun.run}-"
        of = f"{stage_job(self.begun.run, of_stage, number)}-" if of_stage else of
        if f"-{of}" not in job or (record.expectation or {}).get("hosts") != workers:
            raise Untrusted(f"{where} is the log of job {job[:80]!r}, expected one of {self.begun.run}")
        if not record.nodes or not {*record.nodes} <= {*self.begun.site.pools[pool].workers}:
            raise Untrusted(f"{where} was measured on other nodes than workers of pool {pool}")
        self._compare(where, pool, record, of_stage or where.partition("/")[0])
        # The cluster's clock says when a job was created.
        limits = stage and (time_of(stage.began) - SKEW, time_of(stage.ended) + SKEW)
        if not limits or not limits[0] <= time_of(record.measured_at or "") <= limits[1]:
            raise Untrusted(f"{where} was measured at {record.measured_at}, not in its stage")

    def _compare(self, where: str, pool: str, record: Record, stage: str) -> None:
        """Compare the expectation of a log with that of the site. Raises Contradiction."""
        facts, given = self.begun.site.pools[pool], record.expectation
        wanted = {**facts.expectation, "nodes": len(record.nodes)}
        if stage not in ("collectives", "repeats"):
            wanted["min_bytes"] = wanted["max_bytes"]
        if stage not in ("collectives", "repeats", SOAK):
            # A diagnosis has rings, and rails by the names that NCCL gave them.
            wanted |= {"algorithm": "ring", "hcas": given.get("hcas")}
        own = {key: value for key, value in given.items() if key not in ("hosts", "collectives")}
        for key in sorted(wanted.keys() | own.keys()):
            if own.get(key) != wanted.get(key):
                said = f"says {key} {own.get(key)!r}, the run began with {wanted.get(key)!r}"
                raise Contradiction(f"{where}/{SOURCE} {said}"[:400])
        self._know(where, pool, given.get("hcas") or ())

    def _know(self, where: str, pool: str, names: Iterable[str]) -> None:
        """Compare the names of HCAs with those of the inventory, where it has any. Raises Contradiction."""
        hosts = self.inventory.hosts if self.inventory else {}
        reports = [hosts[name] for name in self.begun.site.pools[pool].workers if name in hosts]
        known = {each.name for report in reports for each in report.hcas}
        known |= {str(each.get("name")) for report in reports for each in parts_of(report.also, "hcas")}
        parts = {part.partition(":")[0] for name in names for part in name.split("+")}
        if known and (unknown := sorted(parts - known)):
            raise Contradiction(f"{where} names the HCA {unknown[0][:80]}, which no worker of {pool} has")

    def _read(self, model: type[Read], path: str) -> Read | None:
        if not (self.folder / path).is_file():
            return None
        try:
            found = model.model_validate(read_json(self.folder / path))
        except ValidationError as error:
            first = str(error).splitlines()[0][:120]
            raise Untrusted(f"{path} is not what busbar {model.__name__} writes: {first}") from None
        if not isinstance(found, Begun) and found.run != self.begun.run:
            raise Untrusted(f"{path} is of run {found.run!r}, expected {self.begun.run!r}")
        return found


def _has_log(archive: Archive) -> bool:
    return all((archive.folder / name).is_file() for name in LOG_FILES)


@contextmanager
def _judging(archive: Archive, where: str) -> Iterator[Any]:
    """Judge a log, given its record. Raises Untrusted for any fault of a reader."""
    try:
        kept = read_json(archive.folder / SOURCE)
        yield kept
    except Untrusted:
        raise
    except Exception as error:  # hostile bytes make a reader raise anything
        raise Untrusted(f"{where} cannot be judged: {type(error).__name__}") from None


def stage_job(run: str, stage: str, pool: int) -> str:
    """The run of a stage of nodes, pairs and rails, by the number of its pool."""
    return f"{run}-{stage}{pool}"


def segment_of(run: str, pool: int, part: str = "") -> str:
    """The run of a segment of the soak, by the number of its pool; without PART the begin of all."""
    return f"{run}-k{pool}{part and f'-{part}'}"


def _seconds(run: Run) -> tuple[float, float]:
    """The time of an iteration at the largest message, and of all iterations of the table."""
    banner, largest = run.preamble.banner, run.largest_row.size
    each = [(row.size, sum(amount(half.time) for half in row.measurements) / 1e6) for row in run.rows]
    iterations = (banner.iterations if banner else None) or 0
    return max(time for size, time in each if size == largest), iterations * sum(time for _, time in each)


def time_of(text: str) -> datetime:
    """A time of TIME's form. Raises ValueError."""
    return datetime.strptime(text, TIME).replace(tzinfo=UTC)


def write_json(path: Path, value: Any) -> None:
    """Write JSON as a whole, packed if the name ends with .zst."""
    text = json.dumps(value, indent=1)
    if path.suffix != ".zst":
        write_whole(path, text + "\n")
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_name(f".{path.name}")
    with ZstdFile(new, "w") as file:
        file.write(text.encode())
    new.replace(path)

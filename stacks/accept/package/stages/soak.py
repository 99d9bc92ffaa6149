"""The soak: hours of load in jobs that outlive this process, while each host writes samples."""

from __future__ import annotations

import base64
import re
import zlib
from typing import Any

from busbar.exits import Misuse
from busbar.text import listed
from busbar.zstd import ZstdFile
from stacks.accept.package import soak
from stacks.accept.package.evidence import (
    SAMPLES,
    SEGMENT,
    SOAK,
    Evidence,
    Judged,
    Segment,
    Stage,
    Untrusted,
    segment_of,
    write_json,
)
from stacks.accept.package.site import validation_of
from stacks.accept.package.stages.collectives import (
    RUN_SECONDS,
    START_SECONDS,
    clean_up,
    keep_logs,
    plan_when_free,
)
from stacks.accept.package.stages.measuring import measure_on
from stacks.accept.package.stages.running import Planned, Running, now

LEAST_HOURS, MOST_HOURS = 1, 168
# kubelet serves only the current file of a log, of 10 MiB. A run prints 92 bytes per rank, and its table.
LOG_BYTES, RANK_BYTES, RUN_BYTES, SEGMENT_SECONDS = 8 << 20, 92, 4096, 12 * 3600
FAILED = re.compile(r"^\w+ ended with exit code [1-9]")
SCRIPT_SECONDS, MOST_BYTES = 60, 16 << 20


def hours_of(text: str) -> float:
    """The length of a soak, from a text such as 72h. Raises Misuse."""
    number = text.removesuffix("h")
    if text == number or not number.isdecimal() or not LEAST_HOURS <= int(number) <= MOST_HOURS:
        raise Misuse(f"--soak {text}: expected {LEAST_HOURS}h to {MOST_HOURS}h, such as 72h")
    return float(number)


def runs_of(ranks: int, seconds: float) -> int:
    """How many intervals the next job has, for SECONDS of load."""
    of_log = LOG_BYTES // (RANK_BYTES * ranks + RUN_BYTES)
    wanted = -(-seconds // soak.INTERVAL_SECONDS)
    return int(max(min(wanted, of_log, SEGMENT_SECONDS // soak.INTERVAL_SECONDS), 1))


def soak_all(on: Running) -> dict[str, str]:
    """Soak pool after pool, from where an earlier call has ended. Raises NoVerdict."""
    notes, before = dict[str, str](), Evidence(on.folder)
    for number, pool in enumerate(on.site.pools):
        first = before.judged("collectives", pool)
        if first and (times := first.seconds.get("all_reduce")):
            _soak(on, number, pool, max(round(soak.INTERVAL_SECONDS / max(times[0][0], 1e-6)), 1))
        else:
            notes[pool] = "the stage collectives has no complete all_reduce of this pool"
    return notes


def _soak(on: Running, number: int, pool: str, iterations: int) -> None:
    before, wanted = Evidence(on.folder), on.site.pools[pool]
    asked = 3600 * wanted.soak_hours
    known = dict[tuple[str, str, str], Judged]()
    while True:
        so_far = Stage(run=on.run, stage=SOAK, began=before.begun.began, ended=now())
        done = Evidence(on.folder, so_far, known)
        try:
            logs, intervals, watched = done.segments(pool), done.intervals(pool), done.watched(pool)
        except Untrusted as error:
            on.say(f"warning: {error}")
            break
        load = sum(each.seconds for each in intervals)
        # The last job may not have ended. One that has failed is the end of the soak.
        last = done.segment(pool, f"{len(logs) - 1:03}") if logs else None
        unfinished = last if last and not last.ended else None
        number_of_job = len(logs) - bool(unfinished)
        has_failed = any(not (log and log.record.outcome.succeeded) for log in logs[:number_of_job])
        left = asked - (soak.covered(intervals, watched) if watched else load)
        on.say(f"pool {pool}: {load / 3600:.3g} of {asked / 3600:g} h of load")
        if has_failed or left <= 0 or load > 1.1 * asked + soak.INTERVAL_SECONDS:
            break
        runs = runs_of(len(wanted.workers) * wanted.required.gpus, left)
        segment = unfinished or Segment(run=on.run, nodes=(), runs=runs, iterations=iterations)
        limit = round(START_SECONDS + segment.runs * (1.5 * soak.INTERVAL_SECONDS + RUN_SECONDS))
        _sample(on, pool, "start", LIMIT_SECONDS=str(2 * limit), SAMPLE_SECONDS=str(soak.SAMPLE_SECONDS))
        part = f"{number_of_job:03}"
        _run(on, pool, part, segment_of(on.run, number, part), segment, limit)
        _fetch(on, pool)
    # A process that was killed after the end of a job has left it.
    clean_up(on, [segment_of(on.run, number)])
    _sample(on, pool, "stop")


def _run(on: Running, pool: str, part: str, job: str, segment: Segment, limit: int) -> None:
    """Run a job, or follow the one that an earlier call has left, and keep its log."""
    from busbar.fabric.measure import CannotMeasure, LeftBehind, measure
    from busbar.fabric.measure.run import find

    folder = on.at(SOAK) / pool / part
    own = on.cluster.validation_of(pool)
    made = validation_of(own, ["all_reduce"] * segment.runs, NCCL_DEBUG="WARN", NCCL_RUN_DIAGNOSTICS="1")
    size = {"min_bytes": own.max_bytes, "iterations": segment.iterations, "deadline_seconds": limit}
    validation = made.model_copy(update=size)
    begun_on = segment.nodes if any(each.run == job for each in find(on.api)) else ()
    planned = plan_when_free(on, pool, job, validation, begun_on=begun_on)
    segment = segment.model_copy(update={"nodes": planned.job.nodes})

    def note(**values: str) -> None:
        write_json(folder / SEGMENT, segment.model_copy(update=values).model_dump(mode="json"))

    note()

    def note_end(_: object) -> None:
        path, manifest = planned.objects({})[-1]
        status = on.api.get(f"{path}/{manifest['metadata']['name']}").get("status") or {}
        conditions = [each.get("lastTransitionTime") or "" for each in status.get("conditions") or ()]
        note(ended=status.get("completionTime") or max(conditions, default="") or now())

    failed: list[str] = []

    def say(text: str) -> None:
        on.say(text)
        # Without a node each further interval would wait for it until its logins time out.
        if FAILED.search(text):
            failed.append(text)
            raise CannotMeasure(failed)

    try:
        measure(on.api, planned, str(folder), on.clock, say, note_end, on.options, outlives=True)
    except LeftBehind as left:
        on.say(f"warning: {left}")
    except CannotMeasure:
        if not failed:
            raise
        note(ended=now(), failed=failed[0])
    keep_logs(folder)


def _sample(on: Running, pool: str, verb: str, **values: str) -> dict[str, dict[str, Any]]:
    """Run the sampler's script on the workers of a pool. Returns the facts of those that have run it."""
    workers = on.site.pools[pool].workers
    found = measure_on(on, workers, verb, SCRIPT_SECONDS, script="soak", RUN=on.run, **values)
    if found.failed:
        on.say(f"warning: sampler: {verb}: {listed([*found.failed.values()], 3)}")
    return found.hosts


def _fetch(on: Running, pool: str) -> None:
    """Fetch the samples so far. Of a host that is not responding those fetched before are kept."""
    for name, facts in _sample(on, pool, "fetch").items():
        if text := zlib.decompressobj(31).decompress(base64.b64decode(facts["samples"]), MOST_BYTES):
            path = on.at(SOAK) / pool / f"{name}{SAMPLES}"
            new = path.with_name(f".{path.name}")
            with ZstdFile(new, "w") as file:
                file.write(text)
            new.replace(path)


STAGE = Planned(SOAK, soak_all, True, lambda nodes: START_SECONDS, continues=True, logs_in=True)

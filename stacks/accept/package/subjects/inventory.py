"""The inventory: every worker is asked for its parts, and those of a pool must be alike and stay the same."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import filterfalse

from busbar import finding
from busbar.exits import NoVerdict
from busbar.hosts import scripts
from busbar.hosts.inventory import Host
from busbar.hosts.remote import Hosts
from busbar.preflight.cross_checks import port_mismatches
from busbar.preflight.hardware_checks import check_hardware
from busbar.preflight.health_checks import check_health
from busbar.preflight.host_checks import host_facts
from busbar.preflight.network_checks import choose_rails
from busbar.preflight.spec import Answer, query
from busbar.preflight.survey import CONCURRENT, query_all
from busbar.text import counted, listed
from stacks.accept.package.evidence import HOSTS, MACHINES, Inventory, Told, time_of, write_json
from stacks.accept.package.kinds import Finding, Outcome, Question, but, counting, kind, on_each, sentences
from stacks.accept.package.running import Planned, Running
from stacks.accept.package.site import Pool

# The parts of preflight's report; each is None where its program failed.
COUNTERS = ("xids", "ecc", "remapped_rows", "nvlink")
LINK = re.compile(r"Link \d+: (\S+)")
# nvidia-smi prints [N/A], [Unknown Error], [GPU requires reset] and the like.
NO_VALUE = re.compile(r"(N/A|0|\[.*\])?")
_MTUS = {"active MTU", "MTU of the network interface"}
# Hours in which a run must end, with the soak besides; and those that criteria may allow.
AGE_HOURS, MOST_HOURS = 168.0, 2160.0


def _twice(named: Mapping[str, Sequence[str]]) -> list[str]:
    """The names with a value that is there more than once."""
    counts = Counter(value for values in named.values() for value in values)
    return [name for name, values in named.items() if any(counts[value] > 1 for value in values)]


@counting("inventory.nodes", "nodes that answer, with machine id and boot id")
def _nodes(asked: Question) -> Finding:
    reports, found = asked.reports, asked.evidence.inventory
    if not found.hosts:
        return Finding("unknown", "there is no inventory")
    known = {name: each.also for name, each in reports.items() if each.also.machine and each.also.boot_id}
    for key in ("machine", "boot_id"):
        if twice := _twice({name: [getattr(also, key)] for name, also in known.items()}):
            return Finding("fail", f"the same {key} on {listed(twice)}")
    why = [found.failed.get(name, f"{name}: no report") for name in asked.pool.workers if name not in known]
    return Finding("pass", f"{counted(len(known), 'node')}{but(why)}", len(known))


def expected_rate(pool: Pool, _: str) -> dict[str, float]:
    """The yardstick of a row on the rate of rails."""
    return {"rate_gbps": pool.required.rate_gbps}


def _unique(asked: Question, values: Callable[[Told], list[str]], what: str) -> Finding:
    """The smallest number of values of a node, all of which are known, and no other of the cluster has."""
    every = {name: values(report) for name, report in asked.evidence.inventory.hosts.items()}
    named = {name: every[name] for name in asked.pool.workers if name in every}
    if silent := [name for name in asked.pool.workers if name not in every]:
        return Finding("unknown", f"no report of {listed(silent)}")
    if lacking := [name for name, found in named.items() if any(map(NO_VALUE.fullmatch, found))]:
        return Finding("unknown", f"{what} is not known on {listed(lacking)}")
    if twice := [name for name in _twice(every) if name in named]:
        return Finding("fail", f"the same {what} twice, on {listed(twice)}")
    fewest = min(named, key=lambda name: len(named[name]))
    return Finding("pass", f"{len(named[fewest])} on {fewest}, the node with the fewest", len(named[fewest]))


@kind(
    "inventory.gpus", "GPUs with serial and UUID", "GPUs per node", lambda pool: pool.required.gpus,
    "pools.NAME.gpus",
)  # fmt: skip
def _gpus(asked: Question) -> Finding:
    by_uuid = _unique(asked, lambda report: [gpu.uuid for gpu in report.also.gpus], "uuid")
    by_serial = _unique(asked, lambda report: [gpu.serial for gpu in report.also.gpus], "serial")
    return by_serial if by_uuid.result == "pass" else by_uuid


@kind(
    "inventory.hcas", "rails at their rate, with GUID", "rails per node", lambda pool: pool.required.rails,
    "pools.NAME.rails", expects=expected_rate,
)  # fmt: skip
def _hcas(asked: Question) -> Finding:
    def guids(report: Told) -> list[str]:
        known = {(each.name, each.port): each.guid for each in report.also.hcas}
        rails = choose_rails(report.hcas, asked.pool.required).ports.values()
        return [known.get((rail.name, rail.port), "") for rail in rails]

    return _unique(asked, guids, "guid")


@kind(
    "inventory.hardware", "GPUs, HCAs, Fabric Manager and GPUDirect RDMA as configured",
    expects=lambda pool, _: {"gpu": pool.required.gpu_model, "transport": pool.required.transport},
)  # fmt: skip
@on_each
def _hardware(pool: Pool, report: Told) -> Iterator[tuple[Outcome, str]]:
    # Where nvidia-smi works, the driver is on the host, whatever the stack says.
    is_there = pool.required.driver_on_host or (report.gpus is not None and report.gpus.status == "ok")
    for each in check_hardware(pool.required.model_copy(update={"driver_on_host": is_there}), report):
        if each.kind == "error":
            yield "fail", each.what


@kind("inventory.health", "no Xid, ECC error, remapped row, NVLink error, narrow PCIe link or port error")
@on_each
def _health(pool: Pool, report: Told) -> Iterator[tuple[Outcome, str]]:
    unread = [key for key in COUNTERS if getattr(report.health, key, None) is None]
    rails = {(each.name, each.port) for each in choose_rails(report.hcas, pool.required).ports.values()}
    dark = [each.name for each in report.also.hcas if (each.name, each.port) in rails and not each.counters]
    if unread := [*unread, *(f"errors of {name}" for name in dark)]:
        yield "unknown", f"not read: {listed(unread, 8)}"
    required = pool.required.model_copy(update={"driver_on_host": True})
    for each in () if unread else check_health(required, report):
        yield "fail", each.what


@kind("inventory.ecc", "ECC is on for every GPU")
@on_each
def _ecc(pool: Pool, report: Told) -> Iterator[tuple[Outcome, str]]:
    modes = Counter(gpu.ecc for gpu in report.also.gpus)
    if modes["Disabled"]:
        yield "fail", f"ECC is off on {modes['Disabled']} of {modes.total()} GPUs"
    elif modes.keys() != {"Enabled"}:
        yield "unknown", "the mode of ECC is not known"


@kind("inventory.nvlinks", "every NVLink is up, those of a GPU at one speed")
@on_each
def _nvlinks(pool: Pool, report: Told) -> Iterator[tuple[Outcome, str]]:
    gpus = _speeds(report)
    if len(gpus) != pool.required.gpus:
        yield "unknown", f"nvidia-smi nvlink -s tells of {len(gpus)} GPUs"
    # PCIe cards without a bridge have no NVLinks that are up either.
    linked = any(gpus) or (report.fabric_manager is not None and report.fabric_manager.nvswitches > 0)
    for number, speeds in enumerate(gpus):
        if linked and not speeds:
            yield "fail", f"no NVLink of GPU {number} is up"
        elif len({*speeds}) > 1 or "<inactive>" in speeds:
            kinds = ", ".join(f"{count} at {speed}" for speed, count in Counter(speeds).items())
            yield "fail", f"NVLinks of GPU {number}: {kinds} (GB/s)"


def _speeds(report: Told) -> list[list[str]]:
    """The speeds of the NVLinks of each GPU."""
    text = report.also.nvlinks
    if text == "" and report.gpus is not None and len(report.gpus.list) == 1:
        return [[]]  # nvidia-smi prints nothing about a GPU without peers: an H200 in a VM, driver 580.
    parts = re.split(r"^GPU \d+:", text or "", flags=re.MULTILINE)[1:]
    return [LINK.findall(part) for part in parts]


@kind("inventory.same", "the same driver, VBIOS, HCA firmware, NVLinks, MTU and P_Keys on all nodes")
def _same(asked: Question) -> Finding:
    required, reports = asked.pool.required, asked.reports
    kinds: dict[str, dict[str, list[str]]] = {}
    lacking = [name for name in asked.pool.workers if name not in reports]
    for name, report in reports.items():
        found = {
            "driver": {gpu.driver for gpu in report.gpus.list} if report.gpus else set(),
            "VBIOS": {gpu.vbios for gpu in report.also.gpus},
            "NVLinks per GPU": {f"{len(each)}x" for each in _speeds(report)},
        }
        if required.rails:
            found["HCA firmware"] = {port.fw for port in choose_rails(report.hcas, required).ports.values()}
        for key, values in found.items():
            if not values or any(map(NO_VALUE.fullmatch, values)):
                lacking.append(f"{name} ({key})")
            for value in filterfalse(NO_VALUE.fullmatch, values):
                kinds.setdefault(key, {}).setdefault(value, []).append(name)
    for key, by_value in kinds.items():
        if len(by_value) > 1:
            texts = (f"{value} on {listed(names)}" for value, names in by_value.items())
            return Finding("fail", f"{key}: {'; '.join(texts)}")
    facts = {name: host_facts(required, report) for name, report in reports.items()}
    if apart := [f"{each.host} {each.what}" for each in port_mismatches({asked.name: [*facts]}, facts)]:
        return Finding("fail", sentences(apart))
    for name, each in facts.items():
        if not all(_MTUS & port.keys() for port in each.get("ports", {}).values()):
            lacking.append(f"{name} (active MTU)")
    if lacking:
        return Finding("unknown", f"not known of {listed(lacking)}")
    return Finding("pass", ", ".join(f"{key} {next(iter(values))}" for key, values in kinds.items()))


@kind(f"{MACHINES}.same", "the same machines, GPUs and HCAs from the first stage to the last")
def _same_machines(asked: Question) -> Finding:
    met, workers, changes = asked.evidence.met, asked.pool.workers, asked.evidence.changes
    if exchanged := asked.evidence.exchanged(asked.name):
        return Finding("fail", sentences(exchanged))
    if not met or met[-1][0] != MACHINES:
        return Finding("unknown", "nobody was asked at the end")
    last = met[-1][1]
    if twice := _twice({name: [each.boot] for name, each in last.hosts.items() if each.boot}):
        return Finding("fail", f"the same boot on {listed(twice)}: they are one machine")
    if silent := last.silent(workers, "no answer"):
        return Finding("unknown", f"not known at the end: {sentences(silent)}")
    known = {name: {*last.hosts[name].gpus, *last.hosts[name].hcas} for name in workers}
    if lost := [
        f"{name} does not show {part} any more"
        for name in workers
        for part in changes.known[name].gpus + changes.known[name].hcas
        if part not in known[name]
    ]:
        return Finding("unknown", sentences(lost))
    by = "" if any(each.gpus for each in last.hosts.values()) else ", by machine id alone"
    reboots = [text for name in workers for text in changes.reboots.get(name, ())]
    named = f"; rebooted: {sentences(reboots)}" if reboots else ""
    return Finding("pass", f"{counted(len(workers), 'node')}, asked {len(met)} times{by}{named}")


@kind(
    f"{MACHINES}.age", "time from the begin of the run to its end", "h",
    lambda pool: AGE_HOURS + pool.soak_hours, "7 days, and the soak", MOST_HOURS, least=False,
)  # fmt: skip
def _age(asked: Question) -> Finding:
    stage, begun = asked.evidence.stage(MACHINES), asked.evidence.begun
    if stage is None:
        return Finding("unknown", "the run has not ended")
    hours = (time_of(stage.ended) - time_of(begun.began)) / 3600
    return Finding("pass", f"{hours:.3g} h, from {begun.began} to {stage.ended}", round(hours, 3))


def ask_workers(on: Running) -> Inventory:
    """Ask every worker that is not in quarantine; nothing is changed. Raises NoVerdict if none answers."""
    workers = {name for pool in on.pools.values() for name in pool.workers}
    also = scripts.part("accept/inventory")

    async def ask(hosts: Hosts, host: Host) -> Answer | finding.Finding:
        return await query(hosts, host, on.spec.values(host), also=also)

    chosen = [host for host in on.spec.hosts if host.name in workers]
    answers = asyncio.run(query_all(on.spec.login, chosen, ask))
    reports = {name: each.report for name, each in answers.items() if isinstance(each, Answer)}
    found = Inventory(
        run=on.begun.run,
        hosts={name: Told.model_validate(each.model_dump()) for name, each in reports.items()},
        failed={n: f"{n}: {each.what}" for n, each in answers.items() if isinstance(each, finding.Finding)},
    )
    if not found.hosts:
        raise NoVerdict(f"no worker answers: {sentences([*found.failed.values()])}")
    return found


def inventory(on: Running) -> dict[str, str]:
    """Keep the reports of all workers."""
    write_json(on.at("inventory") / HOSTS, ask_workers(on))
    return {}


# A preflight of CONCURRENT hosts takes 20 s.
STAGE = Planned("inventory", inventory, False, lambda nodes: 20 * -(-nodes // CONCURRENT), logs_in=True)
# Every stage asks the workers who they are, and this one asks once more at the end.
AT_THE_END = Planned(MACHINES, lambda on: {}, False, lambda nodes: 10)

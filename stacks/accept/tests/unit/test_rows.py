"""Every kind of row: passes with good evidence, fails with bad, and is unknown without it."""

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from busbar.config import load
from busbar.exits import Misuse
from busbar.fabric.localise import Group, Known, plan_rails
from busbar.fabric.paths import Found, Rail
from stacks.accept.package import criteria as contract
from stacks.accept.package import document
from stacks.accept.package.evidence import FOLDER, LOG_FILES, Evidence, read_json, write_json
from stacks.accept.package.kinds import KINDS, Question, Row, verdict
from stacks.accept.package.site import Site
from stacks.accept.package.subjects import soak
from stacks.accept.tests.net import Net
from stacks.accept.tests.unit import made
from stacks.training.tests.unit.made import changed
from tests.support import h200
from tests.support.clusters import site

Change = Callable[[Path], object]
Hosts = dict[str, Any]
ROWS = {row.parts[3]: row.id for row in contract.default(made.site_of()[1]).rows}
OF_INVENTORY = [kind for kind in ROWS if kind.startswith("inventory.")]
OF_PRINTED = [kind for kind in ROWS if kind.startswith(("stress.", "storage."))]
OF_SAMPLES = [f"soak.{name}" for name in ("links", "gpus", "throttling", "reboots", "counters", "slowest")]


def of_stage(kind: str) -> str:
    return kind.partition(".")[0]


def test_every_kind_of_row_is_among_those_that_are_tested_here() -> None:
    assert KINDS.keys() == ROWS.keys()


def results(folder: Path) -> set[tuple[str, str]]:
    return {(row["result"], row["reason"]) for row in document.contents(folder)[0]["rows"]}


def test_a_healthy_cluster_passes_every_row_by_its_evidence(accepted: Path) -> None:
    found = read_json(accepted / document.ACCEPTANCE)
    assert {row["id"]: row["result"] for row in found["rows"] if row["result"] != "pass"} == {}
    assert all(row["evidence"] for row in found["rows"]) and found["verdict"] == "accepted"


def test_a_row_whose_stage_has_not_ended_was_not_run(folder: Path) -> None:
    for path in (folder / FOLDER).glob("*/stage.json"):
        path.unlink()
    assert {result for result, _ in results(folder)} == {"not run"}


def test_a_row_that_its_stage_could_not_run_says_why(folder: Path) -> None:
    for stage in {of_stage(kind) for kind in ROWS}:
        made.stage(folder, stage, notes={"h100": "no such pool now"})
    assert results(folder) == {("not run", "no such pool now")}


def test_a_pool_without_workers_passes_no_row(folder: Path) -> None:
    found = read_json(folder / "evidence/run.json")
    found["site"]["pools"]["h100"]["workers"] = []
    write_json(folder / "evidence/run.json", found)
    rows = {kind: made.result(folder, row) for kind, row in ROWS.items()}
    unknown = {kind for kind, row in rows.items() if row.reason == "the pool has no workers"}
    assert unknown == {kind for kind in ROWS if not kind.endswith(".nodes")} | {"after.nodes"}
    assert rows["inventory.nodes"].result == "fail"


def lost(path: str) -> Change:
    def lose(folder: Path) -> None:
        where = folder / FOLDER / path
        shutil.rmtree(where) if where.is_dir() else where.unlink()

    return lose


def copied(path: str, to: str) -> Change:
    return lambda folder: shutil.copytree(folder / FOLDER / path, folder / FOLDER / to)


def hosts_are(change: Callable[[Hosts], object]) -> Change:
    return lambda folder: made.inventory(folder, change)


def worker_2(change: Callable[[Hosts], object]) -> Change:
    return hosts_are(lambda hosts: change(hosts["worker-2"]))


def part(*way: Any) -> Callable[..., Change]:
    def change(**values: Any) -> Change:
        def update(report: Any) -> None:
            for key in way:
                report = report[key]
            report.update(values)

        return worker_2(update)

    return change


gpu, own, hca, health = part("also", "gpus", 0), part("also"), part("hcas", 0), part("health")


def same(*where: str | int) -> Change:
    """A value of worker-2's own report is that of worker-1."""

    def change(hosts: Hosts) -> None:
        one, other = hosts["worker-1"]["also"], hosts["worker-2"]["also"]
        for key in where[:-1]:
            one, other = one[key], other[key]
        other[where[-1]] = one[where[-1]]

    return hosts_are(change)


def without_links(gpus: int) -> Change:
    """No NVLink of the first GPUs is up; the text is of a B200 (leptonai/gpud#1085)."""
    down = "NVML: Unable to retrieve NVLink information as all links are inActive\n"

    def change(report: Hosts) -> None:
        first, *each = re.split(r"(?=^GPU )", report["also"]["nvlinks"], flags=re.MULTILINE)
        cut = [part.partition("\n")[0] + "\n" + down for part in each[:gpus]]
        report["also"]["nvlinks"] = first + "".join([*cut, *each[gpus:]])

    return worker_2(change)


def slow_link(report: Hosts) -> None:
    links = report["also"]["nvlinks"].replace("Link 7: 26.562 GB/s", "Link 7: <inactive>", 1)
    report["also"]["nvlinks"] = links


silent = hosts_are(lambda hosts: hosts.pop("worker-2"))
no_guid = worker_2(lambda report: report["also"]["hcas"][0].update(guid=""))
fewer_hcas = worker_2(lambda report: report["hcas"].pop())
no_gpus = own(gpus=[])
narrow = worker_2(lambda report: report["health"]["links"][1].update(width="8"))
CABLES = ("cabling.rails", "cabling.speed")


def without_counters(path: Path) -> None:
    """An HCA whose driver has no counters of errors."""
    worker_2(lambda found: found["also"]["hcas"][3].update(counters=False))(path)


INVENTORY = [
    ("inventory.nodes", "fail", "worker-2", same("machine")),
    ("inventory.nodes", "fail", "1 node; not worker-2: no report", silent),
    ("inventory.gpus", "fail", "7 on worker-2", worker_2(lambda report: report["also"]["gpus"].pop())),
    ("inventory.gpus", "fail", "the same uuid twice, on worker-1, worker-2", same("gpus", 3)),
    ("inventory.gpus", "fail", "the same serial twice", same("gpus", 3, "serial")),
    ("inventory.gpus", "unknown", "serial is not known on worker-2", gpu(serial="[N/A]")),
    ("inventory.gpus", "unknown", "serial is not known on worker-2", gpu(serial="[GPU requires reset]")),
    ("inventory.gpus", "unknown", "is of run 'accept-f'", lambda path: made.inventory(path, run="accept-f")),
    ("inventory.gpus", "unknown", "not what busbar writes", worker_2(lambda found: found.update(also=[]))),
    ("inventory.hcas", "fail", "7 on worker-2", fewer_hcas),
    ("inventory.hcas", "fail", "the same guid twice, on worker-1, worker-2", same("hcas", 3, "guid")),
    ("inventory.hcas", "unknown", "worker-2", no_guid),
    ("inventory.hardware", "fail", "worker-2", fewer_hcas),
    ("inventory.same", "fail", "VBIOS: 96.00 on worker-1, worker-2; 96.01 on worker-2", gpu(vbios="96.01")),
    ("inventory.same", "fail", "firmware", hca(fw="28.39.1002")),
    ("inventory.same", "fail", "2048", hca(active_mtu="2048")),
    ("inventory.same", "unknown", "worker-2 (VBIOS)", gpu(vbios="[N/A]")),
    ("inventory.ecc", "fail", "worker-2: ECC is off on 1 of 8 GPUs", gpu(ecc="Disabled")),
    ("inventory.ecc", "unknown", "worker-2: the mode of ECC", gpu(ecc="[N/A]")),
    ("inventory.ecc", "unknown", "worker-2", no_gpus),
    ("inventory.nvlinks", "fail", "worker-2: NVLinks of GPU 0: 17 at 26.562, 1 at <in", worker_2(slow_link)),
    ("inventory.nvlinks", "fail", "worker-2: no NVLink of GPU 0 is up", without_links(1)),
    ("inventory.nvlinks", "fail", "worker-2: no NVLink of GPU 0 is up", without_links(8)),
    ("inventory.nvlinks", "unknown", "worker-2", own(nvlinks=None)),
    ("inventory.health", "fail", "worker-2", health(xids=["NVRM: Xid (PCI:0000:1b:00): 79, pid=1"])),
    ("inventory.health", "fail", "worker-2", narrow),
    ("inventory.health", "unknown", "worker-2: not read: xids", health(xids=None)),
    ("inventory.health", "unknown", "worker-2: not read: errors of mlx5_3", without_counters),
    *((kind, "unknown", "worker-2 mlx5_0", no_guid) for kind in CABLES),
    *((kind, "unknown", "worker-2", silent) for kind in (*OF_INVENTORY[1:], *CABLES)),
    *((kind, "unknown", "", lost("inventory/hosts.json.zst")) for kind in OF_INVENTORY),
]  # fmt: skip


def cabled(change: Callable[[Net], object]) -> Change:
    """The fabric after a change of its cables, by the design from before."""

    def write(folder: Path) -> None:
        net = made.cabling()
        change(net)
        made.printed(folder, "cabling", {"worker-1": {"text": net.text()}})

    return write


def slower(end: tuple[str, int], rate: str) -> Change:
    return cabled(lambda net: net.plug(end, net.unplug(end), rate))


def undesigned(groups: dict[str, str], then: Change = lambda folder: None) -> Change:
    """The run of a stack with these rail groups, and without a design."""

    def write(folder: Path) -> None:
        made.begun(folder)
        found = read_json(folder / "evidence/run.json")
        found["site"]["pools"]["h100"]["rail_groups"] = groups
        write_json(folder / "evidence/run.json", found)
        then(folder)

    return write


def cut(net: Net) -> None:
    """A leaf that has lost all uplinks: it is not seen, and neither is what is plugged into it."""
    for cable in [cable for cable in net.cables if any(end[0] == "leaf-0-4" for end in cable)]:
        del net.cables[cable]


def without_a_rail(folder: Path) -> None:
    text = made.design(made.cabling())
    made.begun(folder, cabling="".join(line for line in text.splitlines(True) if "2,mlx5_3" not in line))


GROUPS = {"worker-1": "su-1", "worker-2": "su-1"}
RAIL, OTHER, UPLINK = ("worker-2 mlx5_3", 1), ("worker-2 mlx5_5", 1), ("leaf-0-4", 33)
LEAF, NO_LINK = "the leaf of mlx5_4, which no node has a link to", "mlx5_3 of worker-2, without a link"
MORE = "the link from leaf-0-1 port 60 to leaf-0-2 port 60"
swapped, out = cabled(lambda net: net.swap(RAIL, OTHER)), cabled(lambda net: net.unplug(RAIL))
no_leaf = cabled(cut)
more = cabled(lambda net: net.plug(("leaf-0-1", 60), ("leaf-0-2", 60)))
CABLING = [
    ("cabling.rails", "fail", "worker-2 mlx5_3 and worker-2 mlx5_5 are swapped", swapped),
    ("cabling.rails", "fail", "worker-2 mlx5_3 has no link, expected leaf-0-3 port 2", out),
    ("cabling.speed", "unknown", NO_LINK, out),
    ("cabling.uplinks", "unknown", NO_LINK, out),
    ("cabling.uplinks", "fail", "leaf-0-4 port 33 has no link", cabled(lambda net: net.unplug(UPLINK))),
    ("cabling.speed", "fail", "worker-2 mlx5_3: 1xHDR, 50 Gb/s", slower(RAIL, "1xHDR")),
    ("cabling.speed", "fail", "leaf-0-4 port 33 to spine-0 port 5: 4xHDR", slower(UPLINK, "4xHDR")),
    ("cabling.rails", "fail", "leaf-0-4 is not in the fabric: it has lost its uplinks, or its 2", no_leaf),
    ("cabling.speed", "unknown", LEAF, no_leaf),
    ("cabling.uplinks", "fail", "", no_leaf),
    ("cabling.rails", "unknown", "the leaf of mlx5_4", undesigned(GROUPS, no_leaf)),
    ("cabling.uplinks", "unknown", "the leaf of mlx5_4", undesigned(GROUPS, no_leaf)),
    ("cabling.uplinks", "fail", f"{MORE} is not in the design", more),
    ("cabling.uplinks", "fail", f"{MORE} joins two leaves", undesigned(GROUPS, more)),
    ("cabling.rails", "pass", "cables exchanged on one leaf", undesigned(GROUPS)),
    ("cabling.rails", "unknown", "mlx5_3 of su-1", undesigned(GROUPS, swapped)),  # one of two is not most
    ("cabling.uplinks", "pass", "cables exchanged between them are not seen", undesigned(GROUPS, swapped)),
    ("cabling.rails", "not run", "there is no design", undesigned({})),
    ("cabling.speed", "pass", "", undesigned({})),
    ("cabling.rails", "unknown", "worker-2 mlx5_3 (not in the design)", without_a_rail),
    *(
        (f"cabling.{kind}", "unknown", "", lambda folder, text=text: made.printed(
            folder, "cabling", {"worker-1": {"text": text}}
        ))
        for kind in ("rails", "uplinks", "speed")
        for text in (None, "", "\x7fELF", Net({}).text(), "[1] x\n" * 100_000)
    ),
]  # fmt: skip


def second(stage: str, values: Hosts) -> Change:
    """A stage in which worker-2 has printed this, and worker-1 is good."""
    good = made.stressed() if stage == "stress" else made.stored()
    return lambda folder: made.printed(folder, stage, {"worker-1": good, "worker-2": values})


def nothing_printed(stage: str) -> Change:
    return lambda folder: made.printed(folder, stage, {})


def diag(change: Callable[[Hosts], object] = lambda tests: None, gpus: int = 8) -> Change:
    return second("stress", made.stressed(diag=made.diag(change, gpus)))


def printing(text: str) -> Change:
    return second("stress", made.stressed(diag=text))


def failing(test: str, severity: int | None) -> Change:
    """A failure of a test on a GPU. SEVERITY: None for an older release, whose warning is a text."""
    known = [{"warning": "Persistence mode is off", "error_id": 1, "error_severity": severity}]
    warnings = "Persistence mode is off" if severity is None else known
    return diag(lambda tests: tests[test][3].update(status="Fail", warnings=warnings))


def skipped(tests: Hosts) -> None:
    for result in tests["pcie"]:
        result |= {"status": "Skip", "info": ["not allowed on this SKU"]}


def older(folder: Path) -> None:
    """A release of DCGM that lists its GPUs in one result."""

    def together(tests: Hosts) -> None:
        tests.update({name: [{"gpu_ids": "0,1,2,3,4,5,6,7", "status": "PASS"}] for name in tests})

    old = made.stressed(diag=made.diag(together).replace("DCGM Diagnostic", "DCGM GPU Diagnostic"))
    made.printed(folder, "stress", {"worker-1": old, "worker-2": old})


PERSISTENCE = "worker-2: memory fails: Persistence mode is off (GPU 3)"
STRESS = [
    ("stress.diag", "fail", PERSISTENCE, failing("memory", 2)),
    ("stress.diag", "fail", PERSISTENCE, failing("memory", None)),
    ("stress.diag", "fail", "software fails: configuration, not hardware: Pers", failing("software", 5)),
    ("stress.diag", "fail", "worker-2: nvbandwidth fails", failing("nvbandwidth", 2)),
    ("stress.diag", "not run", "worker-2: pcie: Skip ['not allowed on this SKU']", diag(skipped)),
    ("stress.diag", "not run", "diagnostic is not in the out", diag(lambda found: found.pop("diagnostic"))),
    ("stress.diag", "not run", "power passed on 7 of 8", diag(lambda found: found["targeted_power"].pop())),
    ("stress.diag", "not run", "passed on 7 of 8 GPUs", diag(gpus=7)),
    ("stress.diag", "unknown", "no GPUs", printing('{"DCGM Diagnostic": {"runtime_error": "no GPUs"}}')),
    ("stress.diag", "unknown", "other JSON than expected", printing("[" * 100_000)),
    ("stress.diag", "unknown", "other JSON", printing('{"DCGM Diagnostic": {"test_categories": [{}]}}')),
    ("stress.diag", "not run", "worker-2: dcgmi printed nothing", printing("")),
    ("stress.diag", "pass", "good on 2 nodes", older),
    *((kind, "unknown", "", lost(f"{of_stage(kind)}/printed.json.zst")) for kind in OF_PRINTED),
    *((kind, "unknown", "", nothing_printed(of_stage(kind))) for kind in OF_PRINTED),
]  # fmt: skip


def stored(**values: Any) -> Change:
    return second("storage", made.stored(**values))


def on_root(folder: Path) -> None:
    made.printed(folder, "storage", dict.fromkeys(made.WORKERS, made.stored(mount="/ /dev/sda1 ext4")))


def slow_together(folder: Path) -> None:
    one, other = (made.stored(**{"fio-2": made.fio(gbps)}) for gbps in (0.5, 0.25))
    made.printed(folder, "storage", {"worker-1": one, "worker-2": other})


OTHER_MOUNT = "/mnt/data 10.0.0.6:/data nfs4"
FIGURES = (
    made.fio(error=28), {"error": "fio is not installed (package fio)"}, None, {"error": "", "fio": "{"},
    {"error": "", "fio": "[" * 100_000}, {"error": "", "fio": '{"jobs": 1}'}, made.fio(0.0, 0.0),
    {"error": "", "fio": made.fio()["fio"].replace("20000", "9" * 400)},
)  # fmt: skip
STORAGE = [
    ("storage.mount", "fail", "worker-2: the folder is not there", stored(mount="")),
    ("storage.mount", "fail", f"worker-2: {OTHER_MOUNT}, most nodes have", stored(mount=OTHER_MOUNT)),
    ("storage.mount", "fail", "worker-2: does not see the file of another node", stored(seen="")),
    ("storage.mount", "fail", "1 GB are free, expected 4", stored(free_bytes=1 << 30)),
    ("storage.mount", "fail", "on the root file system", on_root),
    ("storage.read", "not run", "the folder is not the same on all nodes", stored(seen="")),
    ("storage.write", "fail", "2 on 1 node, 0.75 on 2 nodes; expected at least 1.9 GB/s", slow_together),
    *(
        (f"storage.{kind}", "unknown", "worker-2", stored(**{"fio-2": figure}))
        for kind, figures in (("write", FIGURES), ("read", FIGURES[:1]), ("iops", FIGURES[-2:]))
        for figure in figures
    ),
]  # fmt: skip


def log(stage: str, name: str = "", value: float = 1.0, runs: range = range(0), **more: Any) -> Change:
    """A log of a stage, in which these runs of a collective reach another value."""
    return lambda folder: made.collective(
        folder, stage, factor=lambda each, number: value if each == name and number in runs else 1.0, **more
    )


def replacing(old: str, new: str) -> Change:
    return log("collectives", text=lambda text: text.replace(old, new))


def wrong(text: str) -> str:
    head, mark, rest = text.rpartition("# busbar: measuring alltoall")
    lines = rest.split("\n")
    row = next(n for n, line in enumerate(lines) if line.lstrip()[:1].isdigit())
    lines[row] = lines[row].rstrip()[:-1] + "7"
    return head + mark + "\n".join(lines)


def cut_off(text: str) -> str:
    return text.rpartition("# busbar: measuring alltoall")[0] + text.splitlines(keepends=True)[-1]


def record(change: Callable[[Hosts], object]) -> Change:
    return log("collectives", change=change)


ALL_REDUCE, SPREAD = "repeats.h100.all_reduce.busbw", "repeats.h100.alltoall.spread"
PROOF, DIAG = "collectives.proof", "w-0:1:1 [0] NCCL DIAG [INFO] p2p: only 52/56 passed"
LOGS = [
    (ALL_REDUCE, "pass", "median of 10 runs 400", log("repeats", "all_reduce", 0.7, range(1, 5))),
    (ALL_REDUCE, "fail", "70.0 % of 400", log("repeats", "all_reduce", 0.7, range(1, 8))),
    (ALL_REDUCE, "fail", "not credible", log("repeats", "all_reduce", 1.6, range(3, 4))),
    (SPREAD, "fail", "in 3 runs, 5.99 %", log("repeats", "alltoall", 0.94, range(2, 3))),
    ("repeats.h100.all_reduce.spread", "pass", ", 0 %", log("repeats", "alltoall", 0.94, range(2, 3))),
    ("repeats.log", "fail", "correctness", log("repeats", text=wrong)),
    ("repeats.log", "unknown", "number of runs: alltoall", log("repeats", text=cut_off)),
    ("repeats.h100.alltoall.busbw", "unknown", "2 runs with a bandwidth", log("repeats", text=cut_off)),
    (ALL_REDUCE, "pass", "100.0 %", log("repeats", text=cut_off)),
    (PROOF, "fail", "gdrdma", replacing("/GDRDMA", "")),
    (PROOF, "fail", "found a path that does not work", replacing("# nThread", f"{DIAG}\n# nThread")),
    (PROOF, "unknown", "the log of job", log("collectives", run="accept-ffffff")),
    (PROOF, "unknown", "the log of job", record(lambda kept: kept["settings"].update(job="nccl-c0-1"))),
    (PROOF, "unknown", "the log of", record(lambda kept: kept["expectation"].update(hosts=["w-0"]))),
    (PROOF, "unknown", "other nodes", record(lambda kept: kept.update(nodes=["worker-9"] * 2))),
    (PROOF, "unknown", "not in its", record(lambda kept: kept.update(measured_at="2026-11-20T01:30:00Z"))),
    (PROOF, "unknown", "cannot be judged", record(lambda kept: kept.update(measured_at=None))),
    (PROOF, "unknown", "no complete log", record(lambda kept: kept.update(complete=False))),
    *(
        (kind, "unknown", "", lost(f"{of_stage(kind)}/h100/{name}"))
        for kind in ROWS if kind.startswith(("collectives.", "repeats."))
        for name in LOG_FILES
    ),
    *((kind, "unknown", "", lost("collectives/h100")) for kind in ("repeats.busbw", "repeats.spread")),
]  # fmt: skip


def path(change: Callable[[Found], object]) -> Change:
    return lambda folder: made.paths(folder, change)


def slow_path(found: Found) -> None:
    slow = (each.memory == "gpu" and each.host == "worker-2" for each in found.paths)
    found.paths = [
        each.model_copy(update={"gbps": 41.0}) if is_slow else each
        for each, is_slow in zip(found.paths, slow, strict=True)
    ]


def slow_hca(found: Found) -> None:
    found.rails["worker-1"].update(mlx5_0=Rail("a", 1, 1))


def pairs(share: float = 1.0, **more: Any) -> Change:
    one = [Group("A", 1, "in_group", made.WORKERS)]
    return lambda folder: made.groups(folder, "pairs", "000", one, lambda group: share, **more)


def slow_rails(folder: Path) -> None:
    made.groups(folder, "rails", "000", plan_rails(made.WORKERS, {}, Known(), rails=8), lambda group: 0.8)


def no_log(folder: Path) -> None:
    (folder / FOLDER / "pairs/h100/000/nccl.log.zst").write_bytes(b"no log")


def after_alone(folder: Path) -> None:
    alone = [Group("A", number, "node", (name,)) for number in range(2) for name in made.WORKERS]
    made.groups(folder, "after", "000", alone, lambda group: 0.8 if group.nodes == ("worker-2",) else 1.0)


def after_pairs(folder: Path) -> None:
    made.groups(folder, "after", "001", [Group("A", 0, "in_group", made.WORKERS)], lambda group: 0.01)


def trained(**values: Any) -> Change:
    where = "evidence/training/h100"
    return lambda folder: made.training(folder / where, lambda kept: kept.update(values))


def over_tcp(folder: Path) -> None:
    """A training stack that expects TCP."""
    where = folder / "evidence/training/h100"
    made.training(where, lambda kept: kept["expectation"]["fabric"].update(transport="socket"))


def resumed(folder: Path) -> None:
    """From another checkpoint than the one that was written."""
    where = folder / "evidence/training/h100"
    made.training(where, of=lambda records: changed(records, "resume", sha256="cd" * 32))


def elsewhere(folder: Path) -> None:
    """The proof of another cluster whose workers have the same names."""
    where = folder / "evidence/training/h100"
    made.training(where, lambda kept: kept["expectation"]["machines"].update({"worker-2": "0" * 8}))


def not_complete(folder: Path) -> None:
    path = folder / "evidence/training/h100/source.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "job_uid": None}))


GPU_PATH = "worker-2 mlx5_0 with GPU 0000:1b:00.0: 41 Gb/s, expected at least 380 Gb/s; see the way between"
OTHERS = [
    ("paths.slow", "fail", GPU_PATH, path(slow_path)),
    ("paths.slow", "not run", "worker-1: no", path(lambda found: found.not_run.append("worker-1: no"))),
    ("paths.slow", "not run", "worker-1: no result; worker-2: no", path(lambda found: found.paths.clear())),
    ("paths.slow", "unknown", "of another rate", path(slow_hca)),
    ("paths.slow", "unknown", "cannot be judged: KeyError", path(lambda found: found.rails.clear())),
    ("nvlink.busbw", "unknown", "no run of worker-1", lost("nvlink/h100/000")),
    ("pairs.slow", "fail", "one of worker-1, worker-2: 320 of 400 GB/s", pairs(0.8)),
    ("pairs.slow", "unknown", "is the log of job", copied("rails/h100/000", "pairs/h100/001")),
    ("pairs.slow", "unknown", "has no complete log", pairs(change=lambda kept: kept.update(complete=False))),
    ("pairs.slow", "unknown", "cannot be judged", pairs(change=lambda kept: kept.update(expectation=[]))),
    ("pairs.slow", "unknown", "cannot be judged", no_log),
    ("pairs.slow", "unknown", "no run has a result", lost("pairs/h100/000")),
    ("rails.slow", "fail", "all rails: the median run reaches 80%", slow_rails),
    ("rails.slow", "unknown", "no run has a result", lost("rails/h100/000")),
    ("rails.slow", "unknown", "rails/h100/000 has no complete log", lost("rails/h100/000/source.json")),
    ("after.nodes", "fail", "worker-2 alone", after_alone),
    ("after.nodes", "fail", "pairs: 4 GB/s, 400 before", after_pairs),
    ("after.nodes", "unknown", "worker-1", lost("pairs/h100")),
    ("after.nodes", "unknown", "worker-1", lost("after/h100")),
    ("after.nodes", "unknown", "no runs of worker-1, worker-2", lost("after/h100/000")),
    ("training.proof", "unknown", "not during this run", trained(measured_at="2026-11-22T01:30:00Z")),
    ("training.proof", "unknown", "on other nodes", trained(expectation={"nodes": ["worker-3"]})),
    ("training.proof", "fail", "says transport 'socket', the run began with 'gpudirect-rdma'", over_tcp),
    ("training.proof", "pass", "GB/s, expected at least 70 % of 3", trained()),
    ("training.proof", "unknown", "cannot be judged", trained(outcome={"colour": "red"})),
    ("training.proof", "fail", "", resumed),
    ("training.checkpoint", "fail", "", resumed),
    ("training.proof", "unknown", "", lost("training/h100/source.json")),
    ("training.proof", "unknown", "no complete log of the training run", lost("training/h100/nccl.log.zst")),
    ("training.proof", "unknown", "no complete log of the training run", not_complete),
    ("training.proof", "unknown", "ran on other machines than the workers", elsewhere),
    ("training.checkpoint", "unknown", "", lost("training/h100/source.json")),
]  # fmt: skip


def series(*values: float, **more: Any) -> Change:
    return lambda folder: made.segment(folder, values, **more)


def sampled(*changes: tuple[int, Hosts], node: str = "worker-2", **more: Any) -> Change:
    return lambda folder: made.samples(folder, node, *changes, **more)


def sampled_text(text: str) -> Change:
    return lambda folder: made.samples_text(folder, "worker-2", text)


def port(counter: str, value: int) -> Hosts:
    return {"ports": [{"hca": "mlx5_3", "port": 1, "counter": counter, "value": value}]}


def gpus(errors: int | None, bits: int | None) -> Hosts:
    return {"gpus": [["0000:18:00.0", errors, bits]]}


def unread(key: str) -> Change:
    nothing: Hosts = {key: None}
    return sampled((30, nothing), **nothing)


def failed(record: Hosts) -> None:
    record.update(outcome={"succeeded": False, "reasons": ["OOM"]})


LOW, GOOD = (370.0,), (390.0,)
UNREAD = [*zip(OF_SAMPLES, ("ports", "gpus", "gpus", "k3s", "ports", "heat"), strict=True)]
INTEGRITY = "local_link_integrity_errors"
LOST_SAMPLES = lost("soak/h100/worker-2.samples.zst")
SYMBOLS = [(60, port("symbol_error", 60)), (3000, port("symbol_error", 130))]
APART = [(30, port("symbol_error", 100)), (3630, port("symbol_error", 200))]
SOAK = [
    ("soak.wobble", "fail", "5.1% in 2 intervals from 11-23 01:30", series(*GOOD * 6, *LOW * 2, *GOOD * 4)),
    ("soak.wobble", "pass", "", series(*GOOD * 6, *LOW, *GOOD * 5)),
    ("soak.wobble", "unknown", "too wide to see a wobble", series(*(370.0, 400.0) * 6)),
    ("soak.wobble", "fail", "12.8% in 1 interval", series(*GOOD * 6, 340.0, *GOOD * 5)),
    ("soak.wobble", "unknown", "9 intervals, at least 10", series(*GOOD * 9)),
    ("soak.drift", "fail", "from the first to the last third", series(*(390.0 - n for n in range(12)))),
    ("soak.drift", "unknown", "show a drift of more than", series(*(370.0, 400.0) * 6)),
    ("soak.hours", "unknown", "in 11 intervals", series(*GOOD * 11)),
    ("soak.hours", "unknown", "0.500807 h with samples, of 1.002 h", sampled(seconds=1800)),
    ("soak.load", "fail", "job 1 of 1: ", series(*GOOD * 12, change=failed)),
    ("soak.load", "fail", "job 1: 12 of 14 intervals", series(*GOOD * 12, runs=14)),
    ("soak.links", "fail", "link_downed of mlx5_3 port 1 grew by 1", sampled((60, port("link_downed", 1)))),
    ("soak.links", "fail", f"{INTEGRITY} of mlx5_3", sampled((60, port(INTEGRITY, 2)))),
    ("soak.counters", "fail", "grew by 130 in", sampled(*SYMBOLS)),
    ("soak.counters", "pass", "grew by 100 in an hour", sampled(*APART)),
    ("soak.gpus", "fail", "worker-2: NVRM: Xid 79", sampled((60, {"xids": ["NVRM: Xid 79"]}))),
    ("soak.gpus", "fail", "GPU 0000:18:00.0 has 3 uncorrected ECC errors", sampled((60, gpus(3, 0)))),
    ("soak.gpus", "fail", "NVLink errors: Link 0: R", sampled((60, {"nvlink": "GPU 0:\n Link 0: Replay"}))),
    ("soak.throttling", "fail", "GPU 0000:18:00.0 is throttled: heat", sampled((60, gpus(0, 0x40)))),
    ("soak.throttling", "unknown", "gpus could not be read on worker-2", sampled((60, gpus(0, None)))),
    ("soak.gpus", "unknown", "gpus could not be read on worker-2", sampled((60, gpus(None, 0)))),
    ("soak.gpus", "fail", "GPU 0000:18:00.0 is not listed any more", sampled((60, {"gpus": []}))),
    ("soak.reboots", "fail", "worker-2: rebooted at 11-23 01:01:00", sampled((60, {"boot": "c"}))),
    ("soak.reboots", "fail", "worker-2: K3s restarted", sampled((60, {"k3s": "j"}))),
    ("soak.slowest", "fail", "worker-2: 1800 MHz, the others 1980", sampled((60, {"heat": [88, 1800]}))),
    ("soak.slowest", "unknown", "heat could not be read on worker-2", sampled((60, {"heat": None}))),
    # A counter from before the soak or from before a reboot is no growth, and a saturated one shows none.
    ("soak.links", "pass", "nothing in the samples", sampled(
        (60, {"boot": "c", **port("link_downed", 9)}), **port("link_downed", 7)
    )),
    ("soak.links", "fail", "grew by 2", sampled((60, port("link_downed", 2)), **port("link_downed", 200))),
    ("soak.links", "unknown", "perfquery -R", sampled(**port("link_downed", 255))),
    *((kind, "unknown", "worker-2", LOST_SAMPLES) for kind in (*OF_SAMPLES, "soak.hours")),
    *((kind, "unknown", "could not be read on", unread(key)) for kind, key in UNREAD),
    *(
        (f"soak.{kind}", "unknown", "", lost(f"soak/h100/000/{name}"))
        for kind in ("load", "hours", "wobble", "drift") for name in (*LOG_FILES, "segment.json")
    ),
]  # fmt: skip
FORGED = [
    ("soak.load", "is the log of job", copied("soak/h100/000", "soak/h100/001")),
    ("soak.hours", "s of load in 2400 s", series(*GOOD * 12, ended="2026-11-23T01:40:00Z")),
    ("soak.hours", "began before the end", series(*GOOD * 12, part="001")),
    ("soak.hours", "not in its stage", series(*GOOD * 12, ended="2026-11-23T09:00:00Z")),
    ("soak.hours", "is not what busbar writes", series(*GOOD * 12, ended="yesterday")),
    ("soak.load", "expected 000 and on", series(*GOOD * 12, part="002", began="2026-11-23T01:59:00Z")),
    ("soak.links", "is of ('accept-ffffff', 'worker-2')", sampled(run="accept-ffffff")),
    ("soak.links", "is of ('accept-0a1b2c', 'worker-1')", sampled(whose="worker-1")),
    ("soak.links", "another machine", sampled(machine="77777777")),
    ("soak.links", "not of a worker", sampled(node="worker-9")),
    ("soak.links", "not in its stage", sampled((60, {"t": made.START + 9000}))),
    ("soak.links", "cannot be judged", sampled((60, {"ports": {"a": 1}}))),
    ("soak.links", "cannot be judged", sampled(*((30 * n, port("x", n)) for n in range(1, 90)))),
    ("soak.links", "cannot be judged", sampled_text("{" * 9)),
    ("soak.links", "cannot be judged", sampled_text("[]\n")),
    ("soak.links", "cannot be judged", sampled_text(f'{{"xids": "{"x" * (1 << 20)}')),
]  # fmt: skip
SOAK += [(row, "unknown", reason, change) for row, reason, change in FORGED]
TABLE = [*INVENTORY, *CABLING, *STRESS, *STORAGE, *LOGS, *OTHERS, *SOAK]


@pytest.mark.parametrize(("row", "result", "reason", "change"), TABLE)
def test_the_evidence_decides_its_row(
    folder: Path, row: str, result: str, reason: str, change: Change, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(soak, "MOST_EVENTS", 50)
    change(folder)
    made.judged(folder, ROWS.get(row, row), result, reason)


def test_nodes_that_fail_a_row_alone_are_named_and_a_pair_names_none(folder: Path) -> None:
    after_alone(folder)
    pairs(0.8)(folder)
    assert made.result(folder, ROWS["after.nodes"]).nodes == ["worker-2"]
    assert made.result(folder, ROWS["pairs.slow"]).nodes == []


def test_an_interval_that_wobbles_is_named_with_what_happened_meanwhile(folder: Path) -> None:
    series(*GOOD * 6, 360.0, 360.0, *GOOD * 4)(folder)
    sampled((1900, gpus(0, 0x20)))(folder)
    reason = "meanwhile worker-2: GPU 0000:18:00.0 is throttled: heat (soft"
    made.judged(folder, ROWS["soak.wobble"], "fail", reason)


def test_workers_with_a_single_gpu_have_no_nvlink(folder: Path) -> None:
    def change(hosts: Hosts) -> None:
        for each in hosts.values():
            each["gpus"]["list"], each["also"]["gpus"] = each["gpus"]["list"][:1], each["also"]["gpus"][:1]
            each["also"]["nvlinks"] = h200.NVIDIA_SMI["nvlink -s"]
            each["fabric_manager"] = {"version": "", "active": False, "nvswitches": 0}

    made.inventory(folder, change)
    pool = made.site_of()[1].pools["h100"]
    pool = pool.model_copy(update={"required": pool.required.model_copy(update={"gpus": 1})})
    for kind, reason in (("inventory.nvlinks", "good on 2 nodes"), ("inventory.same", "NVLinks per GPU 0x")):
        found = KINDS[kind].find(Question(Row(id=ROWS[kind]), pool, Evidence(folder)))
        assert (found.result, reason in found.reason) == ("pass", True), found.reason


def test_fewer_nodes_than_were_agreed_on_fail_and_are_counted(folder: Path) -> None:
    path = folder / "acceptance.yaml"
    agreed = yaml.safe_load(path.read_text())
    agreed["rows"] = [row for row in agreed["rows"] if row["id"] == "inventory.h100.nodes"]
    agreed["rows"][0]["threshold"] = 3.0
    path.write_text(json.dumps(agreed))
    found = document.contents(folder)[0]
    assert found["rows"][0]["reason"] == "2 nodes; expected at least 3 nodes"
    assert (found["verdict"], found["holds_on"], found["bought"]) == ("refused", 2, 3)


def site_with(workers: int, quarantined: int) -> Site:
    given = site(servers=1, workers={"h100": workers}, validation={"profile": "h100-ib-8x400"})
    for worker in given["hosts"]["workers"][:quarantined]:
        worker["quarantine"] = "a new cable"
    given["validation"]["enabled"] = quarantined < workers
    return Site.of("prod", load(given), soak_hours=1.0)


def test_rows_that_need_two_nodes_are_there_where_two_are() -> None:
    kinds = {row.parts[3] for row in contract.default(site_with(1, 0)).rows}
    assert kinds & {"pairs.slow", "pairs.nodes", "rails.slow", "rails.nodes", "soak.slowest"} == set()
    assert {"collectives.proof", "nvlink.busbw", "machines.same"} <= kinds


def test_over_tcp_no_rail_is_required() -> None:
    config = site(workers={"h100": 2}, validation={"transport": "socket", "expected_busbw_gbps": 0.02})
    rows = {row.id: row.required for row in contract.default(Site.of("dev", load(config))).rows}
    assert [rows[row] for row in ("rails.h100.slow", "pairs.h100.slow")] == [False, True]


def test_a_pool_whose_workers_are_all_in_quarantine_has_no_rows_but_those_agreed_on(tmp_path: Path) -> None:
    with pytest.raises(Misuse, match=r"every worker of prod is in quarantine\. Fix: end a quarantine"):
        contract.default(site_with(2, 2))
    agreed = contract.default(site_with(2, 0)).rows
    text = contract.text(contract.Criteria(version=1, rows=[row for row in agreed if not row.expected]))
    (tmp_path / "acceptance.yaml").write_text(text)
    assert contract.read(tmp_path / "acceptance.yaml", site_with(2, 2)).rows


def test_a_required_row_decides_and_another_does_not() -> None:
    good, bad, open_ = ({"result": each, "required": True} for each in ("pass", "fail", "not run"))
    optional = {**bad, "required": False}
    assert verdict([good, optional]) == "accepted"
    assert verdict([good, open_]) == "undecided"
    assert verdict([good, open_, bad]) == "refused"
    assert verdict([optional]) == verdict([]) == "undecided"

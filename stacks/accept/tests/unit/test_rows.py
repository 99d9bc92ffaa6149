"""Every kind of row: passes with good evidence, fails with bad, and is unknown without it."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from busbar.config import load
from busbar.exits import Misuse
from busbar.fabric.paths import Found, Rail
from stacks.accept.package import criteria as contract
from stacks.accept.package import document
from stacks.accept.package.evidence import LOG_FILES, Evidence, read_json, write_json
from stacks.accept.package.kinds import KINDS, Question, Row, verdict
from stacks.accept.package.site import Site
from stacks.accept.tests.net import Net
from stacks.accept.tests.unit import made
from tests.support import h200
from tests.support.clusters import site

Hosts = dict[str, Any]
ROWS = {row.parts[3]: row.id for row in contract.default(made.site_of()[1]).rows}
OF_LOGS = [kind for kind in ROWS if kind.startswith(("collectives.", "repeats."))]
OF_INVENTORY = [kind for kind in ROWS if kind.startswith("inventory.")]
OF_PRINTED = [kind for kind in ROWS if kind.startswith(("stress.", "storage."))]


def of_stage(kind: str) -> str:
    return kind.partition(".")[0]


def also(key: str, **values: Any) -> Callable[[Hosts], None]:
    """Change the first device in a list of worker-2's own report."""
    return lambda hosts: hosts["worker-2"]["also"][key][0].update(values)


def own(**values: Any) -> Callable[[Hosts], None]:
    return lambda hosts: hosts["worker-2"]["also"].update(values)


def of_preflight(part: str, **values: Any) -> Callable[[Hosts], None]:
    return lambda hosts: hosts["worker-2"][part].update(values)


def fewer(part: str, *, of_script: bool = False) -> Callable[[Hosts], None]:
    def change(hosts: Hosts) -> None:
        report = hosts["worker-2"]
        (report["also"] if of_script else report)[part].pop()

    return change


def test_every_kind_of_row_is_among_those_that_are_tested_here() -> None:
    assert KINDS.keys() == ROWS.keys()


def results(folder: Path) -> dict[str, tuple[str, str]]:
    """Row -> result and reason."""
    return {row["id"]: (row["result"], row["reason"]) for row in document.contents(folder)[0]["rows"]}


def test_a_healthy_cluster_passes_every_row_by_its_evidence(accepted: Path) -> None:
    found = read_json(accepted / document.ACCEPTANCE)
    # Two nodes are too few to compare one with the others.
    others = {"collectives.h100.diagnostics": "not run", "nvlink.h100.hcas": "unknown"}
    assert {row["id"]: row["result"] for row in found["rows"] if row["result"] != "pass"} == others
    assert all(row["evidence"] for row in found["rows"]) and found["verdict"] == "accepted"


def test_a_row_whose_stage_has_not_ended_was_not_run(folder: Path) -> None:
    for path in (folder / "evidence").glob("*/stage.json"):
        path.unlink()
    assert {result for result, _ in results(folder).values()} == {"not run"}


def test_a_row_that_its_stage_could_not_run_says_why(folder: Path) -> None:
    for stage in {of_stage(kind) for kind in ROWS}:
        made.stage(folder, stage, notes={"h100": "no such pool now"})
    assert {*results(folder).values()} == {("not run", "no such pool now")}


SAMPLED = ("soak.load", "soak.hours", "soak.wobble", "soak.drift")
LOST = [
    *((kind, "inventory/hosts.json.zst") for kind in OF_INVENTORY),
    *(
        (kind, f"{of_stage(kind)}/h100/{name}")
        for kind in OF_LOGS
        for name in ("nccl.log.zst", "source.json")
    ),
    *((kind, f"{of_stage(kind)}/printed.json.zst") for kind in OF_PRINTED),
    *((kind, f"soak/h100/000/{name}") for kind in SAMPLED for name in (*LOG_FILES, "segment.json")),
    ("repeats.busbw", "collectives/h100"),
    ("repeats.spread", "collectives/h100"),
    ("nvlink.busbw", "nvlink/h100/000"),
    ("pairs.slow", "pairs/h100/000"),
    ("rails.slow", "rails/h100/000"),
    ("rails.slow", "rails/h100/000/source.json"),
    ("training.proof", "training/h100/source.json"),
    ("training.checkpoint", "training/h100/source.json"),
    ("after.nodes", "pairs/h100"),
    ("after.nodes", "after/h100"),
]


@pytest.mark.parametrize(("kind", "lost"), LOST)
def test_a_row_is_unknown_without_its_evidence(folder: Path, kind: str, lost: str) -> None:
    path = folder / "evidence" / lost
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    assert made.result(folder, ROWS[kind]).result == "unknown"


@pytest.mark.parametrize("kind", OF_PRINTED)
def test_a_row_is_unknown_where_no_host_has_printed_anything(folder: Path, kind: str) -> None:
    made.printed(folder, of_stage(kind), {})
    assert made.result(folder, ROWS[kind]).result == "unknown"


def without(hosts: Hosts) -> None:
    del hosts["worker-2"]


def test_a_node_that_does_not_answer_is_one_too_few(folder: Path) -> None:
    made.inventory(folder, without)
    found = made.result(folder, ROWS["inventory.nodes"])
    assert (found.result, found.value) == ("fail", 1)


def swapped(hosts: Hosts) -> None:
    hosts["worker-2"]["also"]["gpus"][3] = hosts["worker-1"]["also"]["gpus"][3]


def same_port(hosts: Hosts) -> None:
    hosts["worker-2"]["also"]["hcas"][3]["guid"] = hosts["worker-1"]["also"]["hcas"][3]["guid"]


def of_one_machine(hosts: Hosts) -> None:
    hosts["worker-2"]["also"]["machine"] = hosts["worker-1"]["also"]["machine"]


def narrow(hosts: Hosts) -> None:
    hosts["worker-2"]["health"]["links"][1]["width"] = "8"


def hca(**values: str) -> Callable[[Hosts], None]:
    return lambda hosts: hosts["worker-2"]["hcas"][0].update(values)


def slow_link(hosts: Hosts) -> None:
    also = hosts["worker-2"]["also"]
    also["nvlinks"] = also["nvlinks"].replace("Link 7: 26.562 GB/s", "Link 7: <inactive>", 1)


def without_links(gpus: int) -> Callable[[Hosts], None]:
    """No NVLink of the first GPUs is up; the text is of a B200 (leptonai/gpud#1085)."""
    down = "NVML: Unable to retrieve NVLink information as all links are inActive\n"

    def change(hosts: Hosts) -> None:
        first, *each = re.split(r"(?=^GPU )", hosts["worker-2"]["also"]["nvlinks"], flags=re.MULTILINE)
        lost = [part.partition("\n")[0] + "\n" + down for part in each[:gpus]]
        hosts["worker-2"]["also"]["nvlinks"] = first + "".join([*lost, *each[gpus:]])

    return change


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


@pytest.mark.parametrize(
    ("kind", "result", "change"),
    [
        ("inventory.nodes", "fail", of_one_machine),
        ("inventory.gpus", "fail", fewer("gpus", of_script=True)),
        ("inventory.gpus", "fail", swapped),
        ("inventory.gpus", "unknown", also("gpus", serial="[N/A]")),
        ("inventory.gpus", "unknown", also("gpus", uuid="")),
        ("inventory.hcas", "fail", fewer("hcas")),
        ("inventory.hcas", "fail", same_port),
        ("inventory.hcas", "unknown", also("hcas", guid="")),
        ("inventory.hcas", "unknown", fewer("hcas", of_script=True)),
        ("inventory.hardware", "fail", fewer("hcas")),
        ("inventory.same", "fail", also("gpus", vbios="96.01")),
        ("inventory.same", "fail", hca(fw="28.39.1002")),
        ("inventory.same", "fail", hca(active_mtu="2048")),
        ("inventory.same", "unknown", also("gpus", vbios="[N/A]")),
        ("inventory.same", "unknown", own(gpus=[])),
        ("inventory.ecc", "fail", also("gpus", ecc="Disabled")),
        ("inventory.ecc", "unknown", also("gpus", ecc="[N/A]")),
        ("inventory.ecc", "unknown", own(gpus=[])),
        ("inventory.nvlinks", "fail", slow_link),
        ("inventory.nvlinks", "fail", without_links(1)),
        ("inventory.nvlinks", "fail", without_links(8)),
        ("inventory.nvlinks", "unknown", own(nvlinks=None)),
        ("inventory.nvlinks", "unknown", own(nvlinks="")),
        ("inventory.health", "fail", of_preflight("health", xids=["NVRM: Xid (PCI:0000:1b:00): 79, pid=1"])),
        ("inventory.health", "fail", narrow),
        ("inventory.health", "unknown", of_preflight("health", xids=None)),
        ("inventory.health", "unknown", of_preflight("health", ecc=None)),
        ("cabling.rails", "unknown", also("hcas", guid="")),
        ("cabling.speed", "unknown", also("hcas", guid="")),
        *((kind, "unknown", without) for kind in (*OF_INVENTORY[1:], "cabling.rails", "cabling.speed")),
    ],
)
def test_a_fault_of_a_node_fails_and_a_fact_that_it_does_not_tell_leaves_the_row_unknown(
    folder: Path, kind: str, result: str, change: Callable[[Hosts], None]
) -> None:
    made.inventory(folder, change)
    made.judged(folder, ROWS[kind], result, "worker-2")


def cabled(change: Callable[[Net], object]) -> Callable[[Path], None]:
    """The fabric after a change of its cables, by the design from before."""

    def write(folder: Path) -> None:
        net = made.cabling()
        change(net)
        made.printed(folder, "cabling", {"worker-1": {"text": net.text()}})

    return write


RAIL, OTHER, UPLINK = ("worker-2 mlx5_3", 1), ("worker-2 mlx5_5", 1), ("leaf-0-4", 33)


def slower(end: tuple[str, int], rate: str) -> Callable[[Net], object]:
    return lambda net: net.plug(end, net.unplug(end), rate)


@pytest.mark.parametrize(
    ("kind", "change", "named"),
    [
        ("rails", lambda net: net.swap(RAIL, OTHER), "worker-2 mlx5_3 and worker-2 mlx5_5 are swapped"),
        ("rails", lambda net: net.unplug(RAIL), "worker-2 mlx5_3 has no link, expected leaf-0-3 port 2"),
        ("uplinks", lambda net: net.unplug(UPLINK), "leaf-0-4 port 33 has no link"),
        ("speed", slower(RAIL, "1xHDR"), "worker-2 mlx5_3: 1xHDR, 50 Gb/s"),
        ("speed", slower(UPLINK, "4xHDR"), "leaf-0-4 port 33 to spine-0 port 5: 4xHDR"),
    ],
)
def test_a_fault_of_the_cabling_fails_its_row_and_is_named(
    folder: Path, kind: str, change: Callable[[Net], object], named: str
) -> None:
    cabled(change)(folder)
    made.judged(folder, f"cabling.h100.{kind}", "fail", named)


def lost(net: Net, leaf: str) -> None:
    """A leaf that has lost all uplinks: it is not seen, and neither is what is plugged into it."""
    for cable in [cable for cable in net.cables if any(end[0] == leaf for end in cable)]:
        del net.cables[cable]


def test_a_leaf_without_uplinks_is_named_and_what_is_behind_it_is_not_known(folder: Path) -> None:
    cabled(lambda net: lost(net, "leaf-0-4"))(folder)
    rails, speed = made.result(folder, "cabling.h100.rails"), made.result(folder, "cabling.h100.speed")
    assert rails.reason.startswith("leaf-0-4 is not in the fabric: it has lost its uplinks, or its 2 cables")
    assert (rails.result, rails.reason.count("mlx5_"), speed.result) == ("fail", 0, "unknown")
    assert "the leaf of mlx5_4, which no node has a link to" in speed.reason
    assert made.result(folder, "cabling.h100.uplinks").result == "fail", "the design has its uplinks"
    undesigned(folder, {"worker-1": "su-1", "worker-2": "su-1"})
    for row in ("cabling.h100.rails", "cabling.h100.uplinks"):
        made.judged(folder, row, "unknown", "the leaf of mlx5_4")


def test_a_rail_without_a_link_leaves_speed_and_uplinks_unknown(folder: Path) -> None:
    cabled(lambda net: net.unplug(RAIL))(folder)
    for row in ("cabling.h100.speed", "cabling.h100.uplinks"):
        made.judged(folder, row, "unknown", "mlx5_3 of worker-2, without a link")


def test_an_additional_cable_between_leaves_is_named(folder: Path) -> None:
    cabled(lambda net: net.plug(("leaf-0-1", 60), ("leaf-0-2", 60)))(folder)
    link = "the link from leaf-0-1 port 60 to leaf-0-2 port 60"
    made.judged(folder, "cabling.h100.uplinks", "fail", f"{link} is not in the design")
    undesigned(folder, {"worker-1": "su-1", "worker-2": "su-1"})
    made.judged(folder, "cabling.h100.uplinks", "fail", f"{link} joins two leaves")


def test_fewer_nodes_than_were_agreed_on_fail_and_are_counted(folder: Path) -> None:
    path = folder / "acceptance.yaml"
    agreed = yaml.safe_load(path.read_text())
    agreed["rows"] = [row for row in agreed["rows"] if row["id"] == "inventory.h100.nodes"]
    agreed["rows"][0]["threshold"] = 3.0
    path.write_text(yaml.safe_dump(agreed))
    found = document.contents(folder)[0]
    assert found["rows"][0]["reason"] == "2 nodes; expected at least 3 nodes"
    assert (found["verdict"], found["holds_on"], found["bought"]) == ("refused", 2, 3)


def site_with(workers: int, quarantined: int) -> Site:
    given = site(servers=1, workers={"h100": workers}, validation={"profile": "h100-ib-8x400"})
    for worker in given["hosts"]["workers"][:quarantined]:
        worker["quarantine"] = "a new cable"
    given["validation"]["enabled"] = quarantined < workers
    return Site.of("prod", load(given))


def test_rows_that_need_two_nodes_are_there_where_two_are() -> None:
    kinds = {row.parts[3] for row in contract.default(site_with(1, 0)).rows}
    assert kinds & {"pairs.slow", "pairs.nodes", "rails.slow", "rails.nodes", "nvlink.hcas"} == set()
    assert {"collectives.proof", "nvlink.busbw", "machines.same"} <= kinds


def test_a_pool_whose_workers_are_all_in_quarantine_has_no_rows_but_those_agreed_on(tmp_path: Path) -> None:
    with pytest.raises(Misuse, match=r"every worker of prod is in quarantine\. Fix: end a quarantine"):
        contract.default(site_with(2, 2))
    agreed = contract.default(site_with(2, 0)).rows
    text = contract.text(contract.Criteria(version=1, rows=[row for row in agreed if not row.expected]))
    (tmp_path / "acceptance.yaml").write_text(text)
    assert contract.read(tmp_path / "acceptance.yaml", site_with(2, 2)).rows


def undesigned(folder: Path, groups: dict[str, str]) -> None:
    """The run of a stack with these rail groups, and without a design."""
    made.begun(folder)
    found = read_json(folder / "evidence/run.json")
    found["site"]["pools"]["h100"]["rail_groups"] = groups
    write_json(folder / "evidence/run.json", found)


def test_without_a_design_the_rail_groups_serve_and_the_row_says_what_they_do_not_see(folder: Path) -> None:
    undesigned(folder, {"worker-1": "su-1", "worker-2": "su-1"})
    made.judged(folder, "cabling.h100.rails", "pass", "cables exchanged on one leaf")
    cabled(lambda net: net.swap(RAIL, OTHER))(folder)
    assert made.result(folder, "cabling.h100.rails").result == "unknown", "one of two is not most"
    assert "cables exchanged between them are not seen" in made.result(folder, "cabling.h100.uplinks").reason


def test_without_a_design_and_without_rail_groups_the_places_of_the_rails_are_not_run(folder: Path) -> None:
    undesigned(folder, {})
    assert made.result(folder, "cabling.h100.rails").result == "not run"
    assert made.result(folder, "cabling.h100.speed").result == "pass"


@pytest.mark.parametrize("kind", ["cabling.rails", "cabling.uplinks", "cabling.speed"])
@pytest.mark.parametrize("text", [None, "", "\x7fELF", Net({}).text(), "[1] x\n" * 100_000])
def test_a_row_of_the_cabling_is_unknown_without_a_fabric(folder: Path, kind: str, text: str | None) -> None:
    made.printed(folder, "cabling", {"worker-1": {"text": text}})
    assert made.result(folder, ROWS[kind]).result == "unknown"


def test_a_rail_that_the_design_does_not_name_leaves_the_row_unknown(folder: Path) -> None:
    text = made.design(made.cabling())
    made.begun(
        folder, cabling="".join(line for line in text.splitlines(True) if "worker-2,mlx5_3" not in line)
    )
    made.judged(folder, "cabling.h100.rails", "unknown", "worker-2 mlx5_3 (not in the design)")


def failing(test: str, severity: int | None, gpu: int = 3) -> Callable[[Hosts], None]:
    """A failure of a test on a GPU. SEVERITY: None for an older release, whose warning is a text."""

    def change(tests: Hosts) -> None:
        known = [{"warning": "Persistence mode is off", "error_id": 1, "error_severity": severity}]
        warnings = "Persistence mode is off" if severity is None else known
        tests[test][gpu] |= {"status": "Fail", "warnings": warnings}

    return change


def skipped(tests: Hosts) -> None:
    for result in tests["pcie"]:
        result |= {"status": "Skip", "info": ["not allowed on this SKU"]}


PERSISTENCE = "memory fails: Persistence mode is off (GPU 3)"


@pytest.mark.parametrize(
    ("diag", "result", "named"),
    [
        (made.diag(failing("memory", 2)), "fail", PERSISTENCE),
        (made.diag(failing("memory", None)), "fail", PERSISTENCE),
        (made.diag(failing("software", 5)), "fail", "software fails: configuration, not hardware: Pers"),
        (made.diag(failing("nvbandwidth", 2)), "fail", "nvbandwidth fails"),
        (made.diag(skipped), "not run", "pcie: Skip ['not allowed on this SKU']"),
        (made.diag(lambda tests: tests.pop("diagnostic")), "not run", "diagnostic is not in the output"),
        (made.diag(lambda tests: tests["targeted_power"].pop()), "not run", "power passed on 7 of 8 GPUs"),
        (made.diag(gpus=7), "not run", "passed on 7 of 8 GPUs"),
        ('{"DCGM Diagnostic": {"runtime_error": "no GPUs"}}', "unknown", "no GPUs"),
        ("Error: unable to connect to the host engine", "unknown", "other JSON than expected"),
        ("[" * 100_000, "unknown", "other JSON than expected"),
        ('{"DCGM Diagnostic": {"test_categories": [{"tests": [{"name": 1}]}]}}', "unknown", "other JSON"),
        ("", "not run", "dcgmi printed nothing"),
    ],
)
def test_every_wanted_test_of_dcgm_must_have_passed_on_every_gpu(
    folder: Path, diag: str, result: str, named: str
) -> None:
    hosts = {"worker-1": made.stressed(), "worker-2": made.stressed(diag=diag)}
    made.printed(folder, "stress", hosts)
    found = made.result(folder, ROWS["stress.diag"])
    is_named = "worker-2" in found.reason and named in found.reason
    assert (found.result, is_named) == (result, True), found.reason


def test_a_result_of_an_older_release_that_lists_its_gpus_counts_for_each(folder: Path) -> None:
    def together(tests: Hosts) -> None:
        for name in tests:
            tests[name] = [{"gpu_ids": "0,1,2,3,4,5,6,7", "status": "PASS"}]

    old = made.stressed(diag=made.diag(together).replace("DCGM Diagnostic", "DCGM GPU Diagnostic"))
    made.printed(folder, "stress", {"worker-1": old, "worker-2": old})
    assert made.result(folder, ROWS["stress.diag"]).result == "pass"


THROTTLED = made.CLOCKS + "  3 00000000:02:00.0, 0x0000000000000048\n"


@pytest.mark.parametrize(
    ("clocks", "result", "named"),
    [
        (THROTTLED, "fail", "00000000:02:00.0 throttled in 3 samples: hard"),
        ("", "unknown", "throttle reasons of every GPU"),
        ("[N/A]\n" * 9, "unknown", "throttle reasons of every GPU"),
    ],
)
def test_a_gpu_that_was_throttled_under_stress_is_named(
    folder: Path, clocks: str, result: str, named: str
) -> None:
    hosts = {"worker-1": made.stressed(), "worker-2": made.stressed(clocks=clocks)}
    made.printed(folder, "stress", hosts)
    made.judged(folder, ROWS["stress.clocks"], result, named)


OTHER_MOUNT = "/mnt/data 10.0.0.6:/data nfs4"


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"mount": ""}, "worker-2: the folder is not there"),
        ({"mount": OTHER_MOUNT}, f"worker-2: {OTHER_MOUNT}, most nodes have"),
        ({"seen": ""}, "worker-2: does not see the file of another node"),
        ({"free_bytes": 1 << 30}, "1 GB are free, expected 4"),
    ],
)
def test_a_folder_that_is_not_the_same_on_all_nodes_fails_and_is_not_measured(
    folder: Path, values: Hosts, named: str
) -> None:
    made.printed(folder, "storage", {"worker-1": made.stored(), "worker-2": made.stored(**values)})
    made.judged(folder, ROWS["storage.mount"], "fail", named)
    assert made.result(folder, ROWS["storage.read"]).result == "not run"


def test_a_folder_on_the_root_file_system_is_no_shared_storage(folder: Path) -> None:
    hosts = {name: made.stored(mount="/ /dev/sda1 ext4") for name in made.WORKERS}
    made.printed(folder, "storage", hosts)
    made.judged(folder, ROWS["storage.mount"], "fail", "on the root file system")


def test_storage_is_judged_by_the_sum_of_all_nodes_at_once(folder: Path) -> None:
    one, other = made.stored(**{"fio-2": made.fio(0.5)}), made.stored(**{"fio-2": made.fio(0.25)})
    made.printed(folder, "storage", {"worker-1": one, "worker-2": other})
    found = made.result(folder, ROWS["storage.write"])
    assert (found.result, found.value) == ("fail", 0.75)
    assert "2 on 1 node, 0.75 on 2 nodes" in found.reason


@pytest.mark.parametrize(
    "figure",
    [
        made.fio(error=28), {"error": "fio is not installed (package fio)"}, None, {"error": "", "fio": "{"},
        {"error": "", "fio": "[" * 100_000}, {"error": "", "fio": '{"jobs": 1}'}, made.fio(0.0, 0.0), 
        {"error": "", "fio": made.fio()["fio"].replace("20000", "9" * 400)},
    ],
)  # fmt: skip
@pytest.mark.parametrize("kind", ["storage.write", "storage.read", "storage.iops"])
def test_a_node_without_a_figure_of_fio_leaves_the_row_unknown(folder: Path, kind: str, figure: Any) -> None:
    made.printed(folder, "storage", {"worker-1": made.stored(), "worker-2": made.stored(**{"fio-2": figure})})
    made.judged(folder, ROWS[kind], "unknown", "worker-2")


def of(name: str, value: float, *, runs: range) -> Any:
    return {"factor": lambda each, number: value if each == name and number in runs else 1.0}


def wrong(log: str) -> str:
    """Another value in the last row of the last run."""
    head, mark, rest = log.rpartition("# busbar: measuring alltoall")
    lines = rest.split("\n")
    row = next(n for n, line in enumerate(lines) if line.lstrip()[:1].isdigit())
    lines[row] = lines[row].rstrip()[:-1] + "7"
    return head + mark + "\n".join(lines)


def cut(log: str) -> str:
    """A log without its last run."""
    head, _, _ = log.rpartition("# busbar: measuring alltoall")
    return head + log.splitlines(keepends=True)[-1]


def replacing(*words: str) -> Any:
    return {"text": lambda log: log.replace(*words)}


ALL_REDUCE, SPREAD = "repeats.h100.all_reduce.busbw", "repeats.h100.alltoall.spread"
FILES, PROOF = ROWS["collectives.files"], ROWS["collectives.proof"]


@pytest.mark.parametrize(
    ("stage", "log", "row", "result", "value", "reason"),
    [
        ("repeats", of("all_reduce", 0.7, runs=range(1, 5)), ALL_REDUCE, "pass", 100, "median of 10 runs"),
        ("repeats", of("all_reduce", 0.7, runs=range(1, 8)), ALL_REDUCE, "fail", 70, "median of 10 runs"),
        ("repeats", of("all_reduce", 1.6, runs=range(3, 4)), ALL_REDUCE, "fail", None, "not credible"),
        ("repeats", of("alltoall", 0.94, runs=range(2, 3)), SPREAD, "fail", 6.0, "in 3 runs"),
        ("repeats", of("alltoall", 0.94, runs=range(2, 3)), "repeats.h100.all_reduce.spread", "pass", 0, ""),
        ("repeats", {"text": wrong}, ROWS["repeats.log"], "fail", None, "correctness"),
        ("repeats", {"text": cut}, ROWS["repeats.log"], "unknown", None, "number of runs: alltoall"),
        ("repeats", {"text": cut}, "repeats.h100.alltoall.busbw", "unknown", None, "2 runs with a bandwidth"),
        ("repeats", {"text": cut}, ALL_REDUCE, "pass", 100, ""),
        ("collectives", replacing("/GDRDMA", ""), PROOF, "fail", None, "gdrdma"),
        ("collectives", replacing("soft 1048576", "soft 1024"), FILES, "fail", None, "soft 1024, hard"),
        ("collectives", replacing("soft 1048576", "soft 1"), PROOF, "pass", None, ""),
        ("collectives", replacing("open files on", "on"), FILES, "unknown", None, "2 nodes printed no limit"),
        ("collectives", {"run": "accept-ffffff"}, PROOF, "unknown", None, "the log of job"),
    ],
)  # fmt: skip
def test_a_log_decides_its_rows(
    folder: Path, stage: str, log: Any, row: str, result: str, value: float | None, reason: str
) -> None:
    made.collective(folder, stage, **log)
    found = made.judged(folder, row, result, reason)
    assert found.value == (None if value is None else pytest.approx(value, abs=0.1))


def slow_path(found: Found) -> None:
    found.paths = [
        path.model_copy(update={"gbps": 41.0}) if path.memory == "gpu" and path.host == "worker-2" else path
        for path in found.paths
    ]


@pytest.mark.parametrize(
    ("change", "result", "reason"),
    [
        (
            slow_path, "fail",
            "worker-2 mlx5_0 with GPU 0000:1b:00.0: 41 Gb/s, expected at least 380 Gb/s; see the way between",
        ),
        (lambda found: found.not_run.append("worker-1: no perftest"), "not run", "worker-1: no perftest"),
        (lambda found: found.paths.clear(), "not run", "worker-1: no result; worker-2: no result"),
        (lambda found: found.rails["worker-1"].update(mlx5_0=Rail("a", 1, 1)), "unknown", "of another rate"),
        (lambda found: found.rails.clear(), "unknown", "cannot be judged: KeyError"),
    ],
)  # fmt: skip
def test_a_slow_path_fails_its_row_and_one_without_a_result_is_not_run(
    folder: Path, change: Callable[[Found], None], result: str, reason: str
) -> None:
    made.paths(folder, change)
    made.judged(folder, ROWS["paths.slow"], result, reason)


def test_what_nccls_own_diagnostics_print_becomes_a_row(folder: Path) -> None:
    def printing(text: str) -> str:
        line = f"w-0:1:1 [0] NCCL DIAG {text}"
        made.collective(
            folder, "collectives", text=lambda log: log.replace("# nThread", f"{line}\n# nThread", 1)
        )
        return made.result(folder, ROWS["collectives.diagnostics"]).result

    assert printing("[INFO] net bw: required external tool missing in comm 0xbbd0") == "not run"
    assert printing("[OK] p2p: verified P2P access in both directions between every GPU pair") == "pass"
    assert printing("[INFO] p2p: only 52/56 GPU-to-GPU peer accesses passed verification") == "fail"


OTHER_HOSTS = ["other-worker-0", "other-worker-1"]


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda record: record["settings"].update(job="nccl-accept-ffffff-c0-1234"), "the log of job"),
        (lambda record: record["expectation"].update(hosts=OTHER_HOSTS), "the log of"),
        (lambda record: record.update(nodes=["worker-1", "worker-9"]), "other nodes"),
        (lambda record: record.update(measured_at="2026-11-20T01:30:00Z"), "not in its stage"),
        (lambda record: record.update(measured_at=None), "cannot be judged"),
        (lambda record: record.update(complete=False), "no complete log"),
    ],
)
def test_a_log_of_another_run_other_nodes_or_another_time_is_no_evidence(
    folder: Path, change: Any, why: str
) -> None:
    made.collective(folder, "collectives", change=change)
    made.judged(folder, ROWS["collectives.proof"], "unknown", why)


def test_the_inventory_of_another_run_is_no_evidence(folder: Path) -> None:
    made.inventory(folder, run="accept-ffffff")
    assert made.result(folder, ROWS["inventory.gpus"]).result == "unknown"


def test_a_required_row_decides_and_another_does_not() -> None:
    good, bad, open_ = ({"result": each, "required": True} for each in ("pass", "fail", "not run"))
    optional = {**bad, "required": False}
    assert verdict([good, optional]) == "accepted"
    assert verdict([good, open_]) == "undecided"
    assert verdict([good, open_, bad]) == "refused"
    assert verdict([optional]) == verdict([]) == "undecided"

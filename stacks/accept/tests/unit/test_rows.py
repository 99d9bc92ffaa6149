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
from stacks.accept.package.evidence import Evidence, read_json, write_json
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


def also(key: str, **values: Any) -> Callable[[Hosts], None]:
    """Change the first device in a list of worker-2's own report."""

    def change(hosts: Hosts) -> None:
        hosts["worker-2"]["also"][key][0].update(values)

    return change


def own(**values: Any) -> Callable[[Hosts], None]:
    def change(hosts: Hosts) -> None:
        hosts["worker-2"]["also"].update(values)

    return change


def of_preflight(part: str, **values: Any) -> Callable[[Hosts], None]:
    def change(hosts: Hosts) -> None:
        hosts["worker-2"][part].update(values)

    return change


def fewer(part: str, *, of_script: bool = False) -> Callable[[Hosts], None]:
    def change(hosts: Hosts) -> None:
        report = hosts["worker-2"]
        (report["also"] if of_script else report)[part].pop()

    return change


def test_every_kind_of_row_is_among_those_that_are_tested_here() -> None:
    assert KINDS.keys() == ROWS.keys()


@pytest.mark.parametrize("kind", ROWS)
def test_a_healthy_cluster_passes_every_row(healthy: Path, kind: str) -> None:
    found = made.result(healthy, ROWS[kind])
    # Two nodes are too few to compare one with the others.
    others = {"collectives.diagnostics": "not run", "nvlink.hcas": "unknown"}
    expected = others.get(kind, "pass")
    assert (found.result, bool(found.evidence)) == (expected, True), found.reason


@pytest.mark.parametrize("kind", ROWS)
def test_a_row_whose_stage_has_not_ended_was_not_run(folder: Path, kind: str) -> None:
    stage = kind.partition(".")[0]
    (folder / "evidence" / stage / "stage.json").unlink()
    assert made.result(folder, ROWS[kind]).result == "not run"


@pytest.mark.parametrize("kind", ROWS)
def test_a_row_that_its_stage_could_not_run_says_why(folder: Path, kind: str) -> None:
    made.stage(folder, kind.partition(".")[0], notes={"h100": "no such pool now"})
    found = made.result(folder, ROWS[kind])
    assert (found.result, found.reason) == ("not run", "no such pool now")


@pytest.mark.parametrize("kind", OF_INVENTORY)
def test_a_row_of_the_inventory_is_unknown_without_it(folder: Path, kind: str) -> None:
    (folder / "evidence/inventory/hosts.json.zst").unlink()
    assert made.result(folder, ROWS[kind]).result == "unknown"


@pytest.mark.parametrize("kind", [kind for kind in OF_INVENTORY if kind != "inventory.nodes"])
def test_a_row_of_the_inventory_is_unknown_without_the_report_of_a_node(folder: Path, kind: str) -> None:
    made.inventory(folder, lambda hosts: hosts.pop("worker-2"))
    found = made.result(folder, ROWS[kind])
    assert (found.result, "worker-2" in found.reason) == ("unknown", True)


def test_a_node_that_does_not_answer_is_one_too_few(folder: Path) -> None:
    made.inventory(folder, lambda hosts: hosts.pop("worker-2"))
    found = made.result(folder, ROWS["inventory.nodes"])
    assert (found.result, found.value) == ("fail", 1)


@pytest.mark.parametrize("lost", ["nccl.log.zst", "source.json"])
@pytest.mark.parametrize("kind", OF_LOGS)
def test_a_row_of_a_log_is_unknown_without_it_or_its_record(folder: Path, kind: str, lost: str) -> None:
    (folder / "evidence" / kind.partition(".")[0] / "h100" / lost).unlink()
    assert made.result(folder, ROWS[kind]).result == "unknown"


@pytest.mark.parametrize("kind", ["repeats.busbw", "repeats.spread"])
def test_median_and_spread_are_unknown_without_the_first_run(folder: Path, kind: str) -> None:
    shutil.rmtree(folder / "evidence/collectives/h100")
    assert made.result(folder, ROWS[kind]).result == "unknown"


@pytest.mark.parametrize(
    ("kind", "change"),
    [
        ("inventory.gpus", also("gpus", serial="[N/A]")),
        ("inventory.gpus", also("gpus", uuid="")),
        ("inventory.hcas", also("hcas", guid="")),
        ("inventory.hcas", fewer("hcas", of_script=True)),
        ("inventory.same", also("gpus", vbios="[N/A]")),
        ("inventory.same", own(gpus=[])),
        ("inventory.ecc", also("gpus", ecc="[N/A]")),
        ("inventory.ecc", own(gpus=[])),
        ("inventory.nvlinks", own(nvlinks=None)),
        ("inventory.nvlinks", own(nvlinks="")),
        ("inventory.health", of_preflight("health", xids=None)),
        ("inventory.health", of_preflight("health", ecc=None)),
    ],
)
def test_a_fact_that_a_node_does_not_tell_leaves_the_row_unknown(
    folder: Path, kind: str, change: Callable[[Hosts], None]
) -> None:
    made.inventory(folder, change)
    found = made.result(folder, ROWS[kind])
    assert (found.result, "worker-2" in found.reason) == ("unknown", True), found.reason


def swapped(hosts: Hosts) -> None:
    hosts["worker-2"]["also"]["gpus"][3] = hosts["worker-1"]["also"]["gpus"][3]


def same_port(hosts: Hosts) -> None:
    hosts["worker-2"]["also"]["hcas"][3]["guid"] = hosts["worker-1"]["also"]["hcas"][3]["guid"]


def of_one_machine(hosts: Hosts) -> None:
    hosts["worker-2"]["also"]["machine"] = hosts["worker-1"]["also"]["machine"]


def narrow(hosts: Hosts) -> None:
    hosts["worker-2"]["health"]["links"][1]["width"] = "8"


def other_firmware(hosts: Hosts) -> None:
    hosts["worker-2"]["hcas"][0]["fw"] = "28.39.1002"


def other_mtu(hosts: Hosts) -> None:
    hosts["worker-2"]["hcas"][0]["active_mtu"] = "2048"


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
    ("kind", "change"),
    [
        ("inventory.nodes", of_one_machine),
        ("inventory.gpus", fewer("gpus", of_script=True)),
        ("inventory.gpus", swapped),
        ("inventory.hcas", fewer("hcas")),
        ("inventory.hcas", same_port),
        ("inventory.hardware", fewer("hcas")),
        ("inventory.same", also("gpus", vbios="96.01")),
        ("inventory.same", other_firmware),
        ("inventory.same", other_mtu),
        ("inventory.ecc", also("gpus", ecc="Disabled")),
        ("inventory.nvlinks", slow_link),
        ("inventory.nvlinks", without_links(1)),
        ("inventory.nvlinks", without_links(8)),
        ("inventory.health", of_preflight("health", xids=["NVRM: Xid (PCI:0000:1b:00): 79, pid=1"])),
        ("inventory.health", narrow),
    ],
)
def test_a_fault_of_a_node_fails_its_row_and_names_it(
    folder: Path, kind: str, change: Callable[[Hosts], None]
) -> None:
    made.inventory(folder, change)
    found = made.result(folder, ROWS[kind])
    assert (found.result, "worker-2" in found.reason) == ("fail", True), found.reason


def cabled(change: Callable[[Net], object]) -> Callable[[Path], None]:
    """The fabric after a change of its cables, by the design from before."""

    def write(folder: Path) -> None:
        net = made.cabling()
        change(net)
        made.printed(folder, "cabling", {"worker-1": {"text": net.text()}})

    return write


RAIL, OTHER = ("worker-2 mlx5_3", 1), ("worker-2 mlx5_5", 1)


@pytest.mark.parametrize(
    ("kind", "change", "named"),
    [
        (
            "cabling.rails",
            lambda net: net.swap(RAIL, OTHER),
            "worker-2 mlx5_3 and worker-2 mlx5_5 are swapped",
        ),
        (
            "cabling.rails",
            lambda net: net.unplug(RAIL),
            "worker-2 mlx5_3 has no link, expected leaf-0-3 port 2",
        ),
        ("cabling.uplinks", lambda net: net.unplug(("leaf-0-4", 33)), "leaf-0-4 port 33 has no link"),
        (
            "cabling.speed",
            lambda net: net.plug(RAIL, net.unplug(RAIL), "1xHDR"),
            "worker-2 mlx5_3: 1xHDR, 50 Gb/s",
        ),
        (
            "cabling.speed",
            lambda net: net.plug(("leaf-0-4", 33), net.unplug(("leaf-0-4", 33)), "4xHDR"),
            "leaf-0-4 port 33 to spine-0 port 5: 4xHDR",
        ),
    ],
)
def test_a_fault_of_the_cabling_fails_its_row_and_is_named(
    folder: Path, kind: str, change: Callable[[Net], object], named: str
) -> None:
    cabled(change)(folder)
    found = made.result(folder, ROWS[kind])
    assert (found.result, named in found.reason) == ("fail", True), found.reason


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
        found = made.result(folder, row)
        assert (found.result, "the leaf of mlx5_4" in found.reason) == ("unknown", True), found.reason


def test_a_rail_without_a_link_leaves_speed_and_uplinks_unknown(folder: Path) -> None:
    cabled(lambda net: net.unplug(RAIL))(folder)
    for row in ("cabling.h100.speed", "cabling.h100.uplinks"):
        found = made.result(folder, row)
        assert (found.result, "mlx5_3 of worker-2, without a link" in found.reason) == ("unknown", True)


def test_an_additional_cable_between_leaves_is_named(folder: Path) -> None:
    cabled(lambda net: net.plug(("leaf-0-1", 60), ("leaf-0-2", 60)))(folder)
    link = "the link from leaf-0-1 port 60 to leaf-0-2 port 60"
    found = made.result(folder, "cabling.h100.uplinks")
    assert (found.result, f"{link} is not in the design" in found.reason) == ("fail", True), found.reason
    undesigned(folder, {"worker-1": "su-1", "worker-2": "su-1"})
    found = made.result(folder, "cabling.h100.uplinks")
    assert (found.result, f"{link} joins two leaves" in found.reason) == ("fail", True), found.reason


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
    facts = made.begun(folder).site
    facts.pools["h100"].rail_groups.update(groups)
    path = folder / "evidence/run.json"
    write_json(path, {**read_json(path), "site": facts.model_dump(mode="json")})


def test_without_a_design_the_rail_groups_serve_and_the_row_says_what_they_do_not_see(folder: Path) -> None:
    undesigned(folder, {"worker-1": "su-1", "worker-2": "su-1"})
    found = made.result(folder, "cabling.h100.rails")
    assert (found.result, "cables exchanged on one leaf" in found.reason) == ("pass", True)
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


@pytest.mark.parametrize("kind", ["cabling.rails", "cabling.speed"])
@pytest.mark.parametrize("change", [lambda hosts: hosts.pop("worker-2"), also("hcas", guid="")])
def test_a_node_without_a_report_or_guids_leaves_the_cabling_unknown(
    folder: Path, kind: str, change: Callable[[Hosts], None]
) -> None:
    made.inventory(folder, change)
    found = made.result(folder, ROWS[kind])
    assert (found.result, "worker-2" in found.reason) == ("unknown", True), found.reason


def test_a_rail_that_the_design_does_not_name_leaves_the_row_unknown(folder: Path) -> None:
    text = made.design(made.cabling())
    made.begun(
        folder, cabling="".join(line for line in text.splitlines(True) if "worker-2,mlx5_3" not in line)
    )
    found = made.result(folder, "cabling.h100.rails")
    assert (found.result, "worker-2 mlx5_3 (not in the design)" in found.reason) == ("unknown", True)


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


def without_results(tests: Hosts) -> None:
    tests["targeted_power"].pop()


@pytest.mark.parametrize(
    ("diag", "result", "named"),
    [
        (made.diag(failing("memory", 2)), "fail", "worker-2: memory fails: Persistence mode is off (GPU 3)"),
        (
            made.diag(failing("memory", None)),
            "fail",
            "worker-2: memory fails: Persistence mode is off (GPU 3)",
        ),
        (
            made.diag(failing("software", 5)),
            "fail",
            "software fails: configuration, not hardware: Persistence",
        ),
        (made.diag(failing("nvbandwidth", 2)), "fail", "nvbandwidth fails"),
        (made.diag(skipped), "not run", "pcie: Skip ['not allowed on this SKU']"),
        (made.diag(lambda tests: tests.pop("diagnostic")), "not run", "diagnostic is not in the output"),
        (made.diag(without_results), "not run", "targeted_power passed on 7 of 8 GPUs"),
        (made.diag(gpus=7), "not run", "passed on 7 of 8 GPUs"),
        ('{"DCGM Diagnostic": {"runtime_error": "no GPUs"}}', "unknown", "no GPUs"),
        ("Error: unable to connect to the host engine", "unknown", "other JSON than expected"),
        ("[" * 100_000, "unknown", "other JSON than expected"),
        (
            '{"DCGM Diagnostic": {"test_categories": [{"tests": [{"name": 1, "results": [1]}]}]}}',
            "unknown",
            "JSON",
        ),
        ("", "not run", "dcgmi printed nothing"),
    ],
)
def test_every_wanted_test_of_dcgm_must_have_passed_on_every_gpu(
    folder: Path, diag: str, result: str, named: str
) -> None:
    hosts = {"worker-1": made.stressed(), "worker-2": made.stressed(diag=diag)}
    made.printed(folder, "stress", hosts)
    found = made.result(folder, ROWS["stress.diag"])
    assert (found.result, "worker-2" in found.reason, named in found.reason) == (result, True, True), (
        found.reason
    )


def test_a_result_of_an_older_release_that_lists_its_gpus_counts_for_each(folder: Path) -> None:
    def together(tests: Hosts) -> None:
        for name in tests:
            tests[name] = [{"gpu_ids": "0,1,2,3,4,5,6,7", "status": "PASS"}]

    old = made.stressed(diag=made.diag(together).replace("DCGM Diagnostic", "DCGM GPU Diagnostic"))
    made.printed(folder, "stress", {"worker-1": old, "worker-2": old})
    assert made.result(folder, ROWS["stress.diag"]).result == "pass"


@pytest.mark.parametrize(
    ("clocks", "result", "named"),
    [
        (
            made.CLOCKS + "  3 00000000:02:00.0, 0x0000000000000048\n",
            "fail",
            "00000000:02:00.0 throttled in 3 samples: hard",
        ),
        ("", "unknown", "throttle reasons of every GPU"),
        ("[N/A]\n" * 9, "unknown", "throttle reasons of every GPU"),
    ],
)
def test_a_gpu_that_was_throttled_under_stress_is_named(
    folder: Path, clocks: str, result: str, named: str
) -> None:
    hosts = {"worker-1": made.stressed(), "worker-2": made.stressed(clocks=clocks)}
    made.printed(folder, "stress", hosts)
    found = made.result(folder, ROWS["stress.clocks"])
    assert (found.result, named in found.reason) == (result, True), found.reason


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"mount": ""}, "worker-2: the folder is not there"),
        (
            {"mount": "/mnt/data 10.0.0.6:/data nfs4"},
            "worker-2: /mnt/data 10.0.0.6:/data nfs4, most nodes have",
        ),
        ({"seen": ""}, "worker-2: does not see the file of another node"),
        ({"free_bytes": 1 << 30}, "1 GB are free, expected 4"),
    ],
)
def test_a_folder_that_is_not_the_same_on_all_nodes_fails_and_is_not_measured(
    folder: Path, values: Hosts, named: str
) -> None:
    made.printed(folder, "storage", {"worker-1": made.stored(), "worker-2": made.stored(**values)})
    found = made.result(folder, ROWS["storage.mount"])
    assert (found.result, named in found.reason) == ("fail", True), found.reason
    assert made.result(folder, ROWS["storage.read"]).result == "not run"


def test_a_folder_on_the_root_file_system_is_no_shared_storage(folder: Path) -> None:
    hosts = {name: made.stored(mount="/ /dev/sda1 ext4") for name in made.WORKERS}
    made.printed(folder, "storage", hosts)
    found = made.result(folder, ROWS["storage.mount"])
    assert (found.result, "on the root file system" in found.reason) == ("fail", True)


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
    found = made.result(folder, ROWS[kind])
    assert (found.result, "worker-2" in found.reason) == ("unknown", True), found.reason


@pytest.mark.parametrize("kind", [kind for kind in ROWS if kind.startswith(("stress.", "storage."))])
def test_a_row_of_stress_and_storage_is_unknown_without_what_hosts_have_printed(
    folder: Path, kind: str
) -> None:
    made.printed(folder, kind.partition(".")[0], {})
    assert made.result(folder, ROWS[kind]).result == "unknown"
    (folder / "evidence" / kind.partition(".")[0] / "printed.json.zst").unlink()
    assert made.result(folder, ROWS[kind]).result == "unknown"


def of(name: str, value: float, *, runs: range) -> Callable[[str, int], float]:
    return lambda each, number: value if each == name and number in runs else 1.0


def test_the_median_of_all_runs_counts_and_neither_the_best_nor_the_worst(folder: Path) -> None:
    made.collective(folder, "repeats", factor=of("all_reduce", 0.7, runs=range(1, 5)))
    found = made.result(folder, "repeats.h100.all_reduce.busbw")
    assert (found.result, found.value) == ("pass", 100)
    made.collective(folder, "repeats", factor=of("all_reduce", 0.7, runs=range(1, 8)))
    found = made.result(folder, "repeats.h100.all_reduce.busbw")
    assert (found.result, found.value) == ("fail", 70)


def test_a_run_far_from_the_others_fails_the_spread(folder: Path) -> None:
    made.collective(folder, "repeats", factor=of("alltoall", 0.94, runs=range(2, 3)))
    found = made.result(folder, "repeats.h100.alltoall.spread")
    assert (found.result, found.value) == ("fail", pytest.approx(6.0, abs=0.1))
    assert made.result(folder, "repeats.h100.all_reduce.spread").result == "pass"


def test_a_run_above_the_ceiling_is_not_credible(folder: Path) -> None:
    made.collective(folder, "repeats", factor=of("all_reduce", 1.6, runs=range(3, 4)))
    found = made.result(folder, "repeats.h100.all_reduce.busbw")
    assert (found.result, "not credible" in found.reason) == ("fail", True)


def test_a_first_run_that_a_gate_refuses_fails_the_proof(folder: Path) -> None:
    made.collective(folder, "collectives", text=lambda log: log.replace("/GDRDMA", ""))
    found = made.result(folder, ROWS["collectives.proof"])
    assert (found.result, "gdrdma" in found.reason) == ("fail", True), found.reason


def test_wrong_data_in_a_repeated_run_fail_its_row(folder: Path) -> None:
    def wrong(log: str) -> str:
        head, mark, rest = log.rpartition("# busbar: measuring alltoall")
        lines = rest.split("\n")
        row = next(n for n, line in enumerate(lines) if line.lstrip()[:1].isdigit())
        lines[row] = lines[row].rstrip()[:-1] + "7"
        return head + mark + "\n".join(lines)

    made.collective(folder, "repeats", text=wrong)
    assert made.result(folder, ROWS["repeats.log"]).result == "fail"


def test_fewer_repeated_runs_than_planned_are_unknown(folder: Path) -> None:
    def cut(log: str) -> str:
        head, _, _ = log.rpartition("# busbar: measuring alltoall")
        return head + log.splitlines(keepends=True)[-1]

    made.collective(folder, "repeats", text=cut)
    assert made.result(folder, ROWS["repeats.log"]).result == "unknown"
    assert made.result(folder, "repeats.h100.alltoall.busbw").result == "unknown"
    assert made.result(folder, "repeats.h100.all_reduce.busbw").result == "pass"


def test_a_slow_path_fails_its_row_and_one_without_a_result_is_not_run(folder: Path) -> None:
    def slow(found: Found) -> None:
        found.paths = [
            path.model_copy(update={"gbps": 41.0})
            if path.memory == "gpu" and path.host == "worker-2"
            else path
            for path in found.paths
        ]

    made.paths(folder, slow)
    row = made.result(folder, ROWS["paths.slow"])
    assert row.result == "fail"
    expected = (
        "worker-2 mlx5_0 with GPU: 41 Gb/s, expected at least 380 Gb/s; see the way between GPU and HCA"
    )
    assert row.reason.startswith(expected)
    for change, result, reason in (
        (
            lambda found: found.not_run.append("worker-1: perftest is not installed"),
            "not run",
            "worker-1: perftest",
        ),
        (lambda found: found.paths.clear(), "not run", "worker-1: no result; worker-2: no result"),
        (lambda found: found.rails["worker-1"].update(mlx5_0=Rail("a", 1, 1)), "unknown", "of another rate"),
        (lambda found: found.rails.clear(), "unknown", "cannot be judged: KeyError"),
    ):
        made.paths(folder, change)
        row = made.result(folder, ROWS["paths.slow"])
        assert (row.result, reason in row.reason) == (result, True), row.reason


def test_few_open_files_fail_their_row_and_a_silent_node_leaves_it_open(folder: Path) -> None:
    made.collective(folder, "collectives", text=lambda log: log.replace("soft 1048576", "soft 1024"))
    row = made.result(folder, ROWS["collectives.files"])
    assert (row.result, row.reason.startswith("soft 1024, hard 1048576 on ")) == ("fail", True)
    assert made.result(folder, ROWS["collectives.proof"]).result == "pass"
    made.collective(folder, "collectives", text=lambda log: log.replace("open files on", "files on"))
    row = made.result(folder, ROWS["collectives.files"])
    assert (row.result, row.reason) == ("unknown", "2 nodes printed no limit")


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


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda record: record["settings"].update(job="nccl-accept-ffffff-c0-1234"), "the log of job"),
        (
            lambda record: record["expectation"].update(hosts=["other-worker-0", "other-worker-1"]),
            "the log of",
        ),
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
    found = made.result(folder, ROWS["collectives.proof"])
    assert (found.result, why in found.reason) == ("unknown", True), found.reason


def test_a_log_of_the_whole_stage_of_another_run_is_no_evidence(folder: Path) -> None:
    made.collective(folder, "collectives", run="accept-ffffff")
    assert made.result(folder, ROWS["collectives.proof"]).result == "unknown"


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


def test_a_healthy_cluster_is_accepted(healthy: Path) -> None:
    assert document.contents(healthy)[0]["verdict"] == "accepted"

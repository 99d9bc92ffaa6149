"""Folders that a seller changed, signed and handed over: none is accepted, and the reason is named."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

from busbar.exits import Failed
from stacks.accept.package import document
from stacks.accept.package.document import sign, verify
from stacks.accept.package.evidence import files_of, read_json, write_json
from stacks.accept.package.site import COLLECTIVES
from stacks.accept.tests.unit import made
from tests.support.cli import busbar

RUN = "evidence/run.json"


class Forgery(NamedTuple):
    """A change of the evidence, what the command then ends with, and a part of its reason."""

    change: Callable[[Path], object]
    code: int
    why: str


def record(stage: str, share: float = 1.0, text: Callable[[str], str] = str, **values: Any) -> Any:
    """A log that reaches this share, beside a record with these values of its expectation."""
    return lambda folder: made.collective(
        folder, stage, factor=lambda name, number: share, text=text,
        change=lambda kept: kept["expectation"].update(values),
    )  # fmt: skip


def edit(path: str, change: Callable[[Any], object]) -> Callable[[Path], None]:
    """Change a JSON file of the folder."""

    def changed(folder: Path) -> None:
        found = read_json(folder / path)
        change(found)
        write_json(folder / path, found)

    return changed


def both(*changes: Callable[[Path], object]) -> Callable[[Path], object]:
    return lambda folder: [each(folder) for each in changes]


def pool(found: Any) -> Any:
    """The pool of the site in run.json."""
    return found["site"]["pools"]["h100"]


HALF = {name: made.expected(name) / 2 for name in COLLECTIVES}
without_gdr = record("collectives", text=lambda log: log.replace("/GDRDMA", ""), transport="rdma")
YARDSTICK = {
    "logs at 50 % beside halved expected values": Forgery(
        both(*(record(stage, 0.5, expected_by_collective=HALF) for stage in ("collectives", "repeats"))), 1,
        "collectives/h100/source.json says expected_by_collective {'all_gather': 166.6",
    ),
    "a log without GPUDirect beside another transport": Forgery(
        without_gdr, 1, "says transport 'rdma', the run began with 'gpudirect-rdma'"
    ),
    "a log at 75 % beside another tolerance": Forgery(
        record("collectives", 0.75, tolerance=0.3), 1, "says tolerance 0.3, the run began with 0.1"
    ),
    "a slower NVLink that the stack does not name": Forgery(
        record("collectives", 0.75, nvlink_gbps=100.0), 1, "says nvlink_gbps 100.0, the run began with None"
    ),
    "fewer rails": Forgery(record("repeats", 0.5, rails=4), 1, "says rails 4, the run began with 8"),
    "a slower rate": Forgery(record("repeats", 0.5, rate_gbps=200.0), 1, "says rate_gbps 200.0"),
    "more nodes than the job had": Forgery(record("collectives", nodes=4), 1, "says nodes 4"),
    "warnings that nobody has accepted": Forgery(
        record("collectives", accept_warnings=["NET/IB : Got"]), 1, "says accept_warnings ['NET/IB : Got']"
    ),
    "HCAs of another machine": Forgery(
        record("collectives", text=lambda log: log.replace("mlx5_", "mlx5_1")), 1, "names the HCA mlx5_10"
    ),
    "expected values of the run below those of the criteria": Forgery(
        edit(RUN, lambda run: pool(run)["expectation"].update(expected_by_collective=HALF)), 1,
        "expected.all_gather is 333.333, the stack of the run has 166.667",
    ),
    "a transport of the run that is not that of the criteria": Forgery(
        both(without_gdr, edit(RUN, lambda run: pool(run)["expectation"].update(transport="rdma"))), 1,
        "expected.transport is gpudirect-rdma, the stack of the run has rdma",
    ),
    "a rate of the run that is not that of the criteria": Forgery(
        edit(RUN, lambda run: pool(run)["required"].update(rate_gbps=200.0)), 1,
        "inventory.h100.hcas: expected.rate_gbps is 400.0, the stack of the run has 200.0",
    ),
    "pairs that need less than the criteria say": Forgery(
        edit(RUN, lambda run: pool(run)["group_gbps"].update(in_group=100.0)), 1,
        "pairs.h100.slow: expected.in_group is 400.0, the stack of the run has 100.0",
    ),
}  # fmt: skip


def other(stage: str, worker: str = "worker-2", **values: Any) -> Callable[[Path], None]:
    """A worker as another machine, or with another part, in a stage half an hour later or at the end."""
    at = made.ENDED if stage == "machines" else LATER
    return lambda folder: made.machines(folder, stage, lambda hosts: hosts[worker].update(values), at=at)


def without_a_gpu(hosts: dict[str, Any]) -> None:
    hosts["worker-2"].update(gpus=hosts["worker-2"]["gpus"][:7])


LATER = "2026-11-23T01:40:00Z"
SAME = {
    "another machine in a stage": Forgery(
        other("collectives", machine="f" * 64), 1,
        f"worker-2 is another machine since stage collectives ({LATER})",
    ),
    "another machine at the end": Forgery(
        other("machines", "worker-1", machine="f" * 64), 1, "worker-1 is another machine since stage machines"
    ),
    "another GPU": Forgery(
        other("repeats", gpus=["GPU GPU-9 (serial 1690)"]), 1,
        "worker-2 has another GPU GPU-9 (serial 1690) since stage repeats",
    ),
    "another HCA": Forgery(
        other("pairs", hcas=["HCA b8ce:f603:0009:0000"]), 1, "worker-2 has another HCA b8ce:f603:0009:0000"
    ),
    "another machine than the inventory's": Forgery(
        lambda folder: made.inventory(folder, lambda hosts: hosts["worker-2"]["also"].update(machine="e")), 1,
        "worker-2 is another machine since stage",
    ),
    "stages half a year apart": Forgery(
        lambda folder: made.stage(folder, "machines", ended="2027-05-23T02:00:00Z"), 1,
        "from 2026-11-23T01:00:00Z to 2027-05-23T02:00:00Z; expected at most 169 h",
    ),
    "a stage without a record of its machines": Forgery(
        lambda folder: (folder / "evidence/collectives/machines-000.json.zst").unlink(), 2,
        "collectives has no record of its machines",
    ),
    "a record of another time": Forgery(
        lambda folder: made.machines(folder, "collectives", at="2026-06-23T01:00:00Z"), 2,
        "collectives/machines-000.json.zst is of 2026-06-23T01:00:00Z, not in its stage",
    ),
    "a node that is not there at the end": Forgery(
        lambda folder: made.machines(
            folder, "machines", lambda hosts: hosts.pop("worker-2"), at=made.ENDED,
            failed={"worker-2": "timed out"},
        ), 2, "not known at the end: timed out",
    ),
    "a GPU that is not there at the end": Forgery(
        lambda folder: made.machines(folder, "machines", without_a_gpu, at=made.ENDED), 2,
        "worker-2 does not show GPU GPU-2-7 (serial 1627) any more",
    ),
}  # fmt: skip


def handed_over(folder: Path, keys: Path, **agreed: Any) -> tuple[int, str]:
    """The exit code and the reasons of `verify`, for a folder that the seller has written anew and signed."""
    with suppress(Failed):
        document.write(folder)
    path = folder / document.ACCEPTANCE
    if path.exists():
        files = document.hashes_of(files_of(folder))
        path.write_text(json.dumps({**read_json(path), "files": files}, indent=1) + "\n")
    return signed_over(folder, keys, **agreed)


def signed_over(folder: Path, keys: Path, **agreed: Any) -> tuple[int, str]:
    """The same for a folder that is signed as it is."""
    made.sums(folder)
    sign(folder, keys / "seller")
    try:
        found = verify(folder, keys / "signers", **agreed)
    except Failed as error:
        return error.exit_code, str(error)
    reasons = [row["reason"] for row in found.again["rows"]]
    return found.exit_code, "\n".join([*reasons, *found.refusals, *found.differences, *found.unsigned])


def assert_found(folder: Path, keys: Path, forgery: Forgery, **agreed: Any) -> None:
    forgery.change(folder)
    code, text = handed_over(folder, keys, **agreed)
    assert (code, forgery.why in text) == (forgery.code, True), text


@pytest.mark.parametrize("name", YARDSTICK)
def test_a_yardstick_that_was_lowered_is_refused_by_name(written: Path, keys: Path, name: str) -> None:
    assert_found(written, keys, YARDSTICK[name])


def test_the_honest_folder_is_accepted(folder: Path, keys: Path) -> None:
    assert handed_over(folder, keys)[0] == 0


@pytest.mark.parametrize("name", SAME)
def test_a_run_that_is_not_of_the_same_machines_is_not_accepted(written: Path, keys: Path, name: str) -> None:
    assert_found(written, keys, SAME[name])


def test_rows_before_a_machine_was_exchanged_keep_their_results(folder: Path) -> None:
    made.machines(folder, "pairs", at="2026-11-23T01:10:00Z")
    made.machines(folder, "repeats", at="2026-11-23T01:20:00Z")
    other("soak", machine="f" * 64)(folder)
    assert made.result(folder, "pairs.h100.nodes").result == "pass"
    for row in ("repeats.h100.log", "soak.h100.load"):
        made.judged(folder, row, "unknown", "worker-2 is another machine")


def test_a_reboot_is_named_and_accepted(folder: Path, keys: Path) -> None:
    other("repeats", boot="another")(folder)
    other("machines", boot="another")(folder)
    made.judged(folder, "machines.h100.same", "pass", "rebooted: worker-2 before stage repeats")
    assert handed_over(folder, keys)[0] == 0


def rows(change: Callable[[list[Any]], object]) -> Callable[[Path], None]:
    """Change the rows of the folder's criteria."""

    def changed(folder: Path) -> None:
        path = folder / document.CRITERIA
        found = yaml.safe_load(path.read_text())
        change(found["rows"])
        path.write_text(yaml.safe_dump(found))

    return changed


def of(found: list[Any], row: str) -> Any:
    return next(each for each in found if each["id"] == row)


BUSBW = "repeats.h100.all_reduce.busbw"


def halved(found: list[Any]) -> None:
    """The criteria of a stack that expects half of everything."""
    for row in found:
        for name in {*row.get("expected", ())} & {*COLLECTIVES, "gbps"}:
            of_collective = row["id"].split(".")[2] if name == "gbps" else name
            if of_collective in HALF:
                row["expected"][name] = round(HALF[of_collective], 3)


AGREED = {
    "a lower threshold": Forgery(
        rows(lambda found: of(found, BUSBW).update(threshold=50.0)), 1,
        f"{BUSBW}: threshold is 50.0, agreed on was 90.0",
    ),
    "a row that was taken out": Forgery(
        rows(lambda found: found.remove(of(found, "inventory.h100.ecc"))), 1,
        "inventory.h100.ecc: agreed on, not in the folder",
    ),
    "a row that is not required": Forgery(
        rows(lambda found: of(found, "machines.h100.same").update(required=False)), 1,
        "machines.h100.same: required is False, agreed on was True",
    ),
    "half of the yardstick in logs, records, run and criteria": Forgery(
        both(
            *(record(stage, 0.5, expected_by_collective=HALF) for stage in ("collectives", "repeats")),
            edit(RUN, lambda run: pool(run)["expectation"].update(expected_by_collective=HALF)),
            rows(halved),
        ), 1, f"{BUSBW}: expected is {{'gbps': 200.0, 'transport': 'gpudirect-rdma'}}, agreed on was",
    ),
}  # fmt: skip


@pytest.fixture
def criteria(accepted: Path, tmp_path: Path) -> Path:
    """The criteria that both sides have agreed on."""
    return Path(shutil.copy(accepted / document.CRITERIA, tmp_path / "agreed.yaml"))


@pytest.mark.parametrize("name", AGREED)
def test_criteria_that_were_not_agreed_on_are_refused_row_by_row(
    written: Path, keys: Path, criteria: Path, name: str
) -> None:
    assert_found(written, keys, AGREED[name], agreed=criteria)


@pytest.mark.parametrize(
    ("given", "code", "why"),
    [
        ({"cluster_id": "another"}, 1, "expected another"),
        ({"signed_by": ("seller@example.com", "buyer@example.com")}, 2, "buyer@example.com"),
        ({"machines": ["1610", "1699"]}, 1, "no node of the folder has 1699"),
        ({"machines": ["1610"]}, 1, "worker-2 (machine id"),
    ],
)
def test_who_signs_and_which_machines_it_is_about_are_asked(
    written: Path, keys: Path, tmp_path: Path, given: dict[str, Any], code: int, why: str
) -> None:
    if "machines" in given:
        (tmp_path / "bought").write_text("# ours\n" + "\n".join(given["machines"]))
        given = {"machines": tmp_path / "bought"}
    found = signed_over(written, keys, **given)
    assert (found[0], why in found[1]) == (code, True), found[1]


def test_the_machines_and_the_signer_that_were_agreed_on_are_accepted(
    written: Path, keys: Path, criteria: Path, tmp_path: Path
) -> None:
    (tmp_path / "bought").write_text("SN-1\nGPU-2-0  # the second\n")
    given: Any = {"signed_by": ("seller@example.com",), "machines": tmp_path / "bought"}
    assert signed_over(written, keys, agreed=criteria, **given)[0] == 0


def other_release(run: Any) -> None:
    run["busbar"].update(version="0.9.9")


def without_ecc(folder: Path) -> None:
    made.inventory(folder, lambda hosts: hosts["worker-2"]["also"]["gpus"][0].update(ecc="Disabled"))


def hide(folder: Path) -> None:
    """Another release that has no row on ECC, and evidence on which this one would fail."""
    without_ecc(folder)
    edit(RUN, lambda run: run["rows"].remove("inventory.h100.ecc"))(folder)
    rows(lambda found: found.remove(of(found, "inventory.h100.ecc")))(folder)


def test_another_release_cannot_hide_a_row_in_silence(written: Path, keys: Path, criteria: Path) -> None:
    edit(RUN, other_release)(written)
    hide(written)
    code, text = handed_over(written, keys, agreed=criteria)
    assert (code, "inventory.h100.ecc: agreed on, not in the folder" in text) == (1, True)
    done = busbar("accept", "verify", str(written), "--signers", str(keys / "signers"))
    assert (done.exit_code, "(1 taken out" in done.stdout.splitlines()[0]) == (0, True)


OTHER_RELEASE = {
    "a lowered yardstick": Forgery(
        record("collectives", 0.75, tolerance=0.3), 1, "says tolerance 0.3, the run began with 0.1"
    ),
    "another machine": SAME["another machine in a stage"],
    "a row that its own judge passes": Forgery(without_ecc, 1, "ECC is off on 1 of 8 GPUs"),
}  # fmt: skip


@pytest.mark.parametrize("name", OTHER_RELEASE)
def test_another_release_does_not_loosen_the_check(written: Path, keys: Path, name: str) -> None:
    edit(RUN, other_release)(written)
    OTHER_RELEASE[name].change(written)
    document.write(written)

    def praise(found: Any) -> None:
        found.update(verdict="accepted")
        for row in found["rows"]:
            row.update(result="pass" if row["required"] else row["result"], reason="all good")

    edit(document.ACCEPTANCE, praise)(written)
    code, text = signed_over(written, keys)
    assert (code, OTHER_RELEASE[name].why in text) == (1, True), text


def test_the_page_of_another_release_is_not_compared_and_this_one_writes_its_own(
    written: Path, keys: Path, tmp_path: Path
) -> None:
    edit(RUN, other_release)(written)
    document.write(written)
    (written / document.REPORT).write_text("<h1>Accepted on 999 of 999 rows</h1>")
    made.sums(written)
    sign(written, keys / "seller")
    own = tmp_path / "own.html"
    done = busbar("accept", "verify", str(written), "--signers", str(keys / "signers"), "--report", str(own))
    assert done.exit_code == 0
    assert "made by busbar 0.9.9" in done.stdout.splitlines()[1] and "is not compared" in done.stdout
    assert "999" not in own.read_text() and "good: seller@example.com" in own.read_text()

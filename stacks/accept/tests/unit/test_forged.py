"""What a seller could change in a folder, sign, and hand over: none is accepted, and the reason is named."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from busbar.exits import Failed
from stacks.accept.package import document, signatures
from stacks.accept.package.evidence import files_of, read_json, write_json
from stacks.accept.package.site import COLLECTIVES
from stacks.accept.package.verify import verify
from stacks.accept.tests.unit import made

RUN = "evidence/run.json"


class Forgery(NamedTuple):
    """A change of the evidence, what the command then ends with, and a part of its reason."""

    change: Callable[[Path], object]
    code: int
    why: str


def record(stage: str, share: float = 1.0, text: Callable[[str], str] = str, **values: Any) -> Any:
    """A log that reaches this share, beside a record with these values of its expectation."""

    def change(folder: Path) -> None:
        made.collective(
            folder,
            stage,
            factor=lambda name, number: share,
            text=text,
            change=lambda kept: kept["expectation"].update(values),
        )

    return change


def edit(path: str, change: Callable[[Any], object]) -> Callable[[Path], None]:
    """Change a JSON file of the folder."""

    def changed(folder: Path) -> None:
        found = read_json(folder / path)
        change(found)
        write_json(folder / path, found)

    return changed


def both(*changes: Callable[[Path], object]) -> Callable[[Path], None]:
    def changed(folder: Path) -> None:
        for each in changes:
            each(folder)

    return changed


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


def other(stage: str, **values: Any) -> Callable[[Path], None]:
    """Worker-2 as another machine, or with another part, in a stage half an hour later."""

    def change(folder: Path) -> None:
        made.machines(folder, stage, lambda hosts: hosts["worker-2"].update(values), at=LATER)

    return change


def without_a_gpu(hosts: dict[str, Any]) -> None:
    hosts["worker-2"].update(gpus=hosts["worker-2"]["gpus"][:7])


LATER = "2026-11-23T01:40:00Z"
SAME = {
    "another machine in a stage": Forgery(
        other("collectives", machine="f" * 64), 1,
        f"worker-2 is another machine since stage collectives ({LATER})",
    ),
    "another machine at the end": Forgery(
        lambda folder: made.machines(
            folder, "machines", lambda hosts: hosts["worker-1"].update(machine="f" * 64), at=made.ENDED
        ), 1, "worker-1 is another machine since stage machines",
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


def handed_over(folder: Path, keys: Path) -> tuple[int, str]:
    """The exit code and the reasons of `verify`, for a folder that the seller has written anew and signed."""
    with suppress(Failed):
        document.write(folder)
    path = folder / document.ACCEPTANCE
    if path.exists():
        files = document.hashes_of(files_of(folder))
        path.write_text(json.dumps({**read_json(path), "files": files}, indent=1) + "\n")
    made.sums(folder)
    signatures.sign(folder, keys / "seller")
    try:
        found = verify(folder, keys / "signers")
    except Failed as error:
        return error.exit_code, str(error)
    return found.exit_code, "\n".join(row["reason"] for row in found.again["rows"])


def assert_found(folder: Path, keys: Path, forgery: Forgery) -> None:
    forgery.change(folder)
    code, text = handed_over(folder, keys)
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
        found = made.result(folder, row)
        assert (found.result, "worker-2 is another machine" in found.reason) == ("unknown", True)


def test_a_reboot_is_named_and_accepted(folder: Path, keys: Path) -> None:
    other("repeats", boot="another")(folder)
    made.machines(folder, "machines", lambda hosts: hosts["worker-2"].update(boot="another"), at=made.ENDED)
    found = made.result(folder, "machines.h100.same")
    assert (found.result, "rebooted: worker-2 before stage repeats" in found.reason) == ("pass", True)
    assert handed_over(folder, keys)[0] == 0

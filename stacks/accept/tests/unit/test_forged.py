"""Folders that were changed, by whoever has them or by the seller who signs them: none is accepted.

Each is refused or undecided for the reason that was forged, and none makes `verify` crash.
"""

import json
import random
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import yaml

from busbar.exits import Failed, Misuse
from stacks.accept.package import criteria as contract
from stacks.accept.package import document
from stacks.accept.package.document import sign, verify
from stacks.accept.package.evidence import Untrusted, files_of, read_json, write_json, write_packed
from stacks.accept.package.site import COLLECTIVES
from stacks.accept.package.subjects.cabling import End, Fabric, write_design
from stacks.accept.tests.unit import made
from tests.support.cli import busbar

FOLDERS, MAX_MIB = 1000, 200
Change = Callable[[Path], object]
RUN, LOG = "evidence/run.json", "evidence/repeats/h100/nccl.log.zst"


def as_it_is(folder: Path, keys: Path, **agreed: Any) -> tuple[int, str]:
    try:
        found = verify(folder, keys / "signers", **agreed)
    except Failed as error:
        return error.exit_code, str(error)
    reasons = [row["reason"] for row in found.again["rows"]]
    return found.exit_code, "\n".join([*reasons, *found.refusals, *found.differences, *found.unsigned])


def signed_again(folder: Path, keys: Path, **agreed: Any) -> tuple[int, str]:
    """The same after the seller has computed the sums anew, and signed them."""
    made.sums(folder)
    sign(folder, keys / "seller")
    return as_it_is(folder, keys, **agreed)


def written_again(folder: Path, keys: Path, **agreed: Any) -> tuple[int, str]:
    """The same after the seller has also written the document anew from the evidence."""
    with suppress(Failed):
        document.write(folder)
    path = folder / document.ACCEPTANCE
    files = document.hashes_of(files_of(folder))
    path.write_text(json.dumps({**read_json(path), "files": files}, indent=1) + "\n")
    return signed_again(folder, keys, **agreed)


def at(name: str, change: Change) -> Change:
    return lambda folder: change(folder / name)


def text_of(name: str, text: str) -> Change:
    return at(name, lambda path: path.write_text(text))


def missing(name: str) -> Change:
    return at(name, Path.unlink)


def edit(path: str, change: Callable[[Any], object]) -> Change:
    def changed(folder: Path) -> None:
        found = read_json(folder / path)
        change(found)
        write_json(folder / path, found)

    return changed


def both(*changes: Change) -> Change:
    return lambda folder: [each(folder) for each in changes]


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def link(path: Path) -> None:
    path.unlink(missing_ok=True)
    path.symlink_to("/etc")


def traverse(path: Path) -> None:
    with path.open("a") as file:
        file.write(f"{'0' * 64}  ../../../etc/passwd\n")


def twice(path: Path) -> None:
    path.write_text(f"{path.read_text()}{path.read_text()}")


other_release = edit(RUN, lambda run: run["busbar"].update(version="0.9.9"))


def another_serial(folder: Path) -> None:
    """In the document of another release, of which this one compares facts alone."""
    other_release(folder)
    document.write(folder)
    edit(document.ACCEPTANCE, lambda found: found["nodes"]["worker-1"].update(serial="SN-9"))(folder)


OTHERS: list[tuple[Change, str]] = [
    (at(LOG, flip), "has another sha256"),
    (missing("report.html"), "'report.html' is missing"),
    (text_of("evidence/more.json", "{}"), "'evidence/more.json' is not listed"),
    (at(LOG, link), "symbolic link"),
    (at("evidence/more", link), "symbolic link"),
    (at("SHA256SUMS", traverse), "'../../../etc/passwd' is missing"),
    (at("SHA256SUMS", twice), "does not have each file once"),
    (text_of("evidence/a\nb", ""), "not a name"),
    (missing("SHA256SUMS"), "not the document of an acceptance"),
    (text_of("SHA256SUMS", "x" * (17 << 20)), "SHA256SUMS is missing or too large"),
    (text_of("signatures/x", "x"), "not a signature"),
]
SIGNED: list[tuple[Change, str]] = [
    (at(LOG, flip), "`files`"),
    (lambda folder: made.collective(folder, "repeats", run="accept-ffffff"), "`files`"),
    (at(LOG, lambda path: write_packed(path, bytes(3 << 20))), "unpacks to more than 2 MiB"),
    (at(LOG, lambda path: path.write_bytes(b"\x28\xb5\x2f\xfdxxxx")), "cannot be unpacked"),
    (edit("acceptance.json", lambda found: found.update(schema=1)), "has the schema 1, expected 3. Fix:"),
    (text_of("report.html", "<h1>Accepted</h1>"), "report.html is not what its evidence gives"),
    (text_of("acceptance.json", "[" * 100_000), "cannot be read"),
    (text_of("acceptance.json", "[]"), "not a JSON object"),
    (text_of("README.md", "Accepted."), "'README.md' is no file of an acceptance"),
    (missing("acceptance.json"), "'acceptance.json' is missing"),
    # Only a document of another release has a page that is not compared.
    (edit("acceptance.json", lambda found: found["busbar"].update(version="0.9")), "`busbar` is not that of"),
    (edit("acceptance.json", lambda found: found.update(busbar=[])), "`busbar` is not that of the evidence"),
    (another_serial, "`nodes` is not that of the evidence"),
]


def record(stage: str, share: float = 1.0, text: Callable[[str], str] = str, **values: Any) -> Change:
    """A log that reaches this share, beside a record with these values of its expectation."""
    return lambda folder: made.collective(
        folder, stage, factor=lambda name, number: share, text=text,
        change=lambda kept: kept["expectation"].update(values),
    )  # fmt: skip


def begun(part: str, **values: Any) -> Change:
    """Another value of the site in run.json."""
    return edit(RUN, lambda run: run["site"]["pools"]["h100"][part].update(values))


def report(*way: str | int, **values: Any) -> Change:
    """Other values in a report of the inventory, below this way of keys."""

    def change(hosts: Any) -> None:
        found = hosts["worker-2"]
        for key in way:
            found = found[key]
        found.update(values)

    return lambda folder: made.inventory(folder, change)


def many_pools(pools: dict[str, Any]) -> None:
    pools.update({f"p{number}": pools["h100"] for number in range(300)})


def expectation_of(run: Any) -> dict[str, Any]:
    found: dict[str, Any] = run["site"]["pools"]["h100"]["expectation"]
    return found


has_errors, has_mig = report("health", ecc="0000:18:00.0, 3"), report("gpus", "list", 0, mig=True)
HALF = {name: made.expected(name) / 2 for name in COLLECTIVES}
without_gdr = record("collectives", text=lambda log: log.replace("/GDRDMA", ""), transport="rdma")
halved_logs = [record(stage, 0.5, expected_by_collective=HALF) for stage in ("collectives", "repeats")]
tolerant = (record("collectives", 0.75, tolerance=0.3), "says tolerance 0.3, the run began with 0.1")
YARDSTICK: list[tuple[Change, str]] = [
    (both(*halved_logs), "h100/source.json says expected_by_collective {'all_gather': 166.6"),
    (without_gdr, "says transport 'rdma', the run began with 'gpudirect-rdma'"),
    tolerant,
    (record("collectives", 0.75, nvlink_gbps=100.0), "says nvlink_gbps 100.0, the run began with None"),
    (record("repeats", 0.5, rails=4), "says rails 4, the run began with 8"),
    (record("repeats", 0.5, rate_gbps=200.0), "says rate_gbps 200.0"),
    (record("collectives", nodes=4), "says nodes 4"),
    (record("collectives", accept_warnings=["NET/IB : Got"]), "says accept_warnings ['NET/IB : Got']"),
    (record("collectives", text=lambda log: log.replace("mlx5_", "mlx5_1")), "names the HCA mlx5_10"),
    # The run says otherwise than the criteria.
    (begun("expectation", expected_by_collective=HALF), "expected.all_gather is 333.333, the stack of"),
    (both(without_gdr, begun("expectation", transport="rdma")), "expected.transport is gpudirect-rdma"),
    (begun("expectation", accept_warnings=["NCCL WARN"]), "collectives.h100.proof: expected.accept_warnings"),
    (edit(RUN, lambda run: expectation_of(run).pop("transport")), "expected.transport is gpudirect-rdma"),
    (edit(RUN, lambda run: run.update(began="2026")), "run.json is not what busbar writes"),
    (begun("expectation", accept_warnings=["a\nline end"]), "evidence cannot be judged: ValidationError"),
    (both(begun("required", driver_on_host=False), has_errors), "has 3 uncorrected ECC errors"),
    (both(begun("required", driver_on_host=False), has_mig), "MIG is enabled on 1 GPU"),
    (begun("required", rate_gbps=200.0), "inventory.h100.hcas: expected.rate_gbps is 400.0, the stack"),
    (begun("group_gbps", in_group=100.0), "pairs.h100.slow: expected.in_group is 400.0, the stack"),
    (edit(RUN, lambda run: many_pools(run["site"]["pools"])), "run.json is not what busbar writes"),
]
LATER = "2026-11-23T01:40:00Z"


def other(stage: str, worker: str = "worker-2", **values: Any) -> Change:
    """A worker as another machine, or with another part, in a stage half an hour later or at the end."""
    return met(stage, lambda hosts: hosts[worker].update(values))


def met(stage: str, change: Callable[[Any], object], **about: Any) -> Change:
    when = {"at": made.ENDED if stage == "machines" else LATER}
    return lambda folder: made.machines(folder, stage, change, **{**when, **about})


def without_a_gpu(hosts: Any) -> None:
    hosts["worker-2"].update(gpus=hosts["worker-2"]["gpus"][:7])


def inventory(change: Callable[[Any], object]) -> Change:
    return lambda folder: made.inventory(folder, lambda hosts: change(hosts["worker-2"]["also"]))


def half_a_year(folder: Path) -> None:
    made.stage(folder, "machines", ended="2027-05-23T02:00:00Z")


exchanged = (other("collectives", machine="f" * 64), f"is another machine since stage collectives ({LATER})")
lost = met("machines", lambda hosts: hosts.pop("worker-2"), failed={"worker-2": "timed out"})
early = met("collectives", lambda hosts: None, at="2026-06-23T01:00:00Z")
OTHER_MACHINES: list[tuple[Change, str]] = [
    exchanged,
    (other("machines", "worker-1", machine="f" * 64), "worker-1 is another machine since stage machines"),
    (other("repeats", gpus=["GPU GPU-9 (serial 1690)"]), "worker-2 has another GPU GPU-9 (serial 1690)"),
    (other("pairs", hcas=["HCA b8ce:f603:0009:0000"]), "worker-2 has another HCA b8ce:f603:0009:0000"),
    (inventory(lambda also: also.update(machine="e")), "worker-2 is another machine since stage"),
    (edit(RUN, lambda run: run["site"]["pools"].update(b=run["site"]["pools"]["h100"])), "worker is twice"),
    (other("machines", boot="boot-1"), "the same boot on worker-1, worker-2: they are one machine"),
    (half_a_year, "from 2026-11-23T01:00:00Z to 2027-05-23T02:00:00Z; expected at most 169 h"),
]
UNKNOWN_MACHINES: list[tuple[Change, str]] = [
    (missing("evidence/collectives/machines-000.json.zst"), "collectives has no record of its machines"),
    (early, "collectives/machines-000.json.zst is of 2026-06-23T01:00:00Z, not in its stage"),
    (lost, "not known at the end: timed out"),
    (met("machines", without_a_gpu), "worker-2 does not show GPU GPU-2-7 (serial 1627) any more"),
]


def rows(change: Callable[[list[Any]], object]) -> Change:
    """Change the rows of the folder's criteria."""

    def changed(path: Path) -> None:
        found = yaml.safe_load(path.read_text())
        change(found["rows"])
        path.write_text(json.dumps(found))

    return at(document.CRITERIA, changed)


def row(name: str, **values: Any) -> Change:
    return rows(lambda found: next(each for each in found if each["id"] == name).update(values))


def taken_out(name: str) -> Change:
    return rows(lambda found: found.remove(next(each for each in found if each["id"] == name)))


def halved(found: list[Any]) -> None:
    """The criteria of a stack that expects half of everything."""
    for each in found:
        for name in {*each.get("expected", ())} & {*COLLECTIVES, "gbps"}:
            of_collective = each["id"].split(".")[2] if name == "gbps" else name
            if of_collective in HALF:
                each["expected"][name] = round(HALF[of_collective], 3)


BUSBW, ECC = "repeats.h100.all_reduce.busbw", "inventory.h100.ecc"
half_of_all = both(*halved_logs, begun("expectation", expected_by_collective=HALF), rows(halved))
AGREED: list[tuple[Change, str]] = [
    (row(BUSBW, threshold=50.0), f"{BUSBW}: threshold is 50.0, agreed on was 90.0"),
    (taken_out(ECC), f"{ECC}: agreed on, not in the folder"),
    (row("machines.h100.same", required=False), "machines.h100.same: required is False, agreed on was True"),
    # Half of the yardstick in logs, records, run and criteria.
    (half_of_all, f"{BUSBW}: expected is {{'gbps': 200.0, 'transport': 'gpudirect-rdma'}}, agreed on was"),
]
FORGERIES = [
    (as_it_is, OTHERS, 1),
    (signed_again, SIGNED, 1),
    (written_again, [*YARDSTICK, *OTHER_MACHINES, *AGREED], 1),
    (written_again, UNKNOWN_MACHINES, 2),
]


@pytest.mark.parametrize(
    ("how", "change", "code", "why"),
    [(how, change, code, why) for how, changes, code in FORGERIES for change, why in changes],
)
def test_a_folder_that_was_changed_is_not_accepted_and_the_reason_is_named(
    signed: Path, keys: Path, criteria: Path, how: Any, change: Change, code: int, why: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(document, "MAX_UNPACKED", 2 << 20)
    change(signed)
    found, text = how(signed, keys, criteria=criteria)
    assert (found, why in text) == (code, True), text


@pytest.fixture
def criteria(accepted: Path, tmp_path: Path) -> Path:
    return Path(shutil.copy(accepted / document.CRITERIA, tmp_path / "agreed.yaml"))


def test_the_last_question_may_fall_into_the_second_of_the_stages_before_it(folder: Path) -> None:
    for name in ("storage", "training"):
        made.machines(folder, name, at=made.ENDED)
    made.judged(folder, "machines.h100.same", "pass", "2 nodes")


def test_rows_before_a_machine_was_exchanged_keep_their_results(folder: Path) -> None:
    made.machines(folder, "pairs", at="2026-11-23T01:10:00Z")
    made.machines(folder, "repeats", at="2026-11-23T01:20:00Z")
    other("soak", machine="f" * 64)(folder)
    assert made.result(folder, "pairs.h100.nodes").result == "pass"
    for name in ("repeats.h100.log", "soak.h100.load"):
        made.judged(folder, name, "unknown", "worker-2 is another machine")


def test_a_reboot_is_named_and_accepted(written: Path, keys: Path) -> None:
    other("repeats", boot="another")(written)
    other("machines", boot="another")(written)
    code, text = written_again(written, keys)
    assert (code, "rebooted: worker-2 before stage repeats" in text) == (0, True)


@pytest.mark.parametrize(
    ("given", "code", "why"),
    [
        ({}, 0, ""),
        ({"cluster_id": "another"}, 1, "expected 'another'"),
        # A variable of a script that is not set.
        ({"cluster_id": ""}, 1, "expected ''"),
        ({"signed_by": [""]}, 2, ""),
        ({"signed_by": ("seller@example.com", "buyer@example.com")}, 2, "buyer@example.com"),
        ({"machines": "# ours\n1610\n1699"}, 1, "no node of the folder has 1699"),
        ({"machines": "1610"}, 1, "worker-2 (machine id"),
        ({"machines": "SN-1\nGPU-2-0  # the second\n", "signed_by": ("seller@example.com",)}, 0, ""),
        # An editor on Windows writes it with a mark and CRLF.
        ({"machines": "\ufeffSN-1\r\nSN-2\r\n"}, 0, ""),
        ({"cabling": made.design(made.cabling())}, 0, ""),
        ({"after": made.BEGAN}, 0, ""),
        ({"after": made.ENDED}, 1, f"the run began at {made.BEGAN}, expected {made.ENDED} or later"),
    ],
)
def test_who_signs_and_which_machines_it_is_about_are_asked(
    signed: Path, keys: Path, criteria: Path, tmp_path: Path, given: dict[str, Any], code: int, why: str
) -> None:
    for name in {"machines", "cabling"} & {*given}:
        (tmp_path / name).write_text(given[name])
        given = {**given, name: tmp_path / name}
    found = as_it_is(signed, keys, criteria=criteria, **given)
    assert (found[0], why in found[1]) == (code, True), found[1]


def test_a_signer_is_known_by_each_name_of_a_line(signed: Path, keys: Path, tmp_path: Path) -> None:
    (tmp_path / "signers").write_text(f"me@example.com,{(keys / 'signers').read_text()}")
    found = verify(signed, tmp_path / "signers", signed_by=["seller@example.com", "me@example.com"])
    assert (found.exit_code, found.unsigned) == (0, [])


def test_a_design_of_the_seller_s_own_is_not_the_one_that_was_agreed_on(
    written: Path, keys: Path, criteria: Path, tmp_path: Path
) -> None:
    """Two cables are exchanged, and the seller has written the design as it was built."""
    (tmp_path / "cabling.csv").write_text(made.design(made.cabling()))
    net, printed = made.cabling(), written / "evidence/cabling/printed.json.zst"
    one, two = (f"{guid:016x}" for guid in [*net.hcas.values()][:2])
    text = net.text().replace(one, "x" * 16).replace(two, one).replace("x" * 16, two)
    write_json(printed, {"run": made.RUN_NAME, "hosts": {"worker-1": {"text": text}}})
    seller = {End(*name.split()): guid for name, guid in net.hcas.items()}
    built = write_design(Fabric.read(text, seller))
    edit(RUN, lambda run: run["options"].update(cabling=built))(written)
    assert written_again(written, keys, criteria=criteria)[0] == 0
    code, why = as_it_is(written, keys, criteria=criteria, cabling=tmp_path / "cabling.csv")
    assert (code, "the cabling in evidence/run.json is not that of" in why) == (1, True), why


def test_no_text_of_the_folder_can_write_over_the_lines_of_verify(written: Path, keys: Path) -> None:
    text = "\x1b[2K\x1b[1GAccepted on 99 of 99 rows\nsignature good: seller@example.com\ud800"

    def hostile(run: Any) -> None:
        run["site"].update(cluster=text)
        run["busbar"].update(version=text)

    edit(RUN, hostile)(written)
    with_text = inventory(lambda also: also.update(simulated=text))
    with_text(written)
    (written / document.ACCEPTANCE).write_text(json.dumps(document.contents(written)[0]))
    made.sums(written)
    done = busbar("accept", "verify", str(written), "--signers", str(keys / "signers"))
    assert (done.exit_code, "\x1b" in done.stdout) == (2, False), done.output
    assert not [line for line in done.stdout.splitlines() if line.startswith("signature good")]


def test_a_carriage_return_in_the_evidence_is_no_other_page(written: Path, keys: Path) -> None:
    inventory(lambda also: also.update(simulated="a\rb"))(written)
    assert written_again(written, keys)[0] == 0


without_ecc = inventory(lambda also: also["gpus"][0].update(ecc="Disabled"))


def test_another_release_cannot_hide_a_row_in_silence(written: Path, keys: Path, criteria: Path) -> None:
    """It has no row on ECC, and evidence on which this one would fail."""
    hidden = edit(RUN, lambda run: run["rows"].remove(ECC))
    both(other_release, without_ecc, hidden, taken_out(ECC))(written)
    code, text = written_again(written, keys, criteria=criteria)
    assert (code, f"{ECC}: agreed on, not in the folder" in text) == (1, True)
    done = busbar("accept", "verify", str(written), "--signers", str(keys / "signers"))
    assert (done.exit_code, "(1 taken out" in done.stdout.splitlines()[0]) == (0, True)


@pytest.mark.parametrize("release", [other_release, lambda folder: None])
@pytest.mark.parametrize(("change", "why"), [tolerant, exchanged, (without_ecc, "ECC is off on 1 of 8 GPUs")])
def test_no_release_can_praise_what_its_evidence_does_not_show(
    written: Path, keys: Path, release: Change, change: Change, why: str
) -> None:
    both(release, change)(written)
    document.write(written)

    def praise(found: Any) -> None:
        found.update(verdict="accepted")
        for each in found["rows"]:
            each.update(result="pass" if each["required"] else each["result"], reason="all good")

    edit(document.ACCEPTANCE, praise)(written)
    found, text = signed_again(written, keys)
    assert (found, why in text) == (1, True), text


def test_this_release_writes_its_own_page_of_another_s(written: Path, keys: Path, tmp_path: Path) -> None:
    other_release(written)
    document.write(written)
    (written / document.REPORT).write_text("<h1>Accepted on 999 of 999 rows</h1>")
    made.sums(written)
    sign(written, keys / "seller")
    own = tmp_path / "own.html"
    done = busbar("accept", "verify", str(written), "--signers", str(keys / "signers"), "--report", str(own))
    assert done.exit_code == 0
    assert "made by busbar 0.9.9" in done.stdout.splitlines()[1] and "is not compared" in done.stdout
    assert "999" not in own.read_text() and "good: seller@example.com" in own.read_text()


def test_the_own_page_replaces_no_evidence(written: Path) -> None:
    sums = written / document.SUMS
    before = sums.read_text()
    done = busbar("accept", "verify", str(written), "--report", str(sums))
    assert (done.exit_code, sums.read_text()) == (64, before)
    assert f"{sums} not written: it exists and is not such a report" in done.stderr


ROW, NODES = "- id: inventory.h100.ecc\n", "- {id: inventory.h100.nodes, "


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("version: 2\nrows: []\n", "version"),
        ("[" * 5000, "not YAML"),
        ("version: 1\nrows:\n- id: inventory.h100.luck\n", "unknown row"),
        (f"version: 1\nrows:\n{ROW}{ROW}", "is there twice"),
        ("version: 1\nrows:\n- {id: inventory.h100.ecc, threshold: 3}\n", "expected none"),
        (f"version: 1\nrows:\n{NODES}threshold: 2, unit: GB/s}}\n", "unit is 'GB/s'"),
        (f"version: 1\nrows:\n{NODES}threshold: 20000, unit: nodes}}\n", "at most 10000"),
        (f"version: 1\nrows:\n{NODES}unit: nodes}}\n", "threshold is missing"),
        (f"version: 1\nrows:\n{NODES}threshold: .nan, unit: nodes}}\n", "nan"),
        ("x" * (2 << 20), "larger than"),
        ("version: 1\nversion: 1\n", "line 2, column 1: duplicate key 'version'"),
        ("version: &a [1]\nrows: [*a, *a]\n", "it has an alias"),
    ],
)
def test_bad_criteria_are_refused_with_one_sentence(tmp_path: Path, text: str, why: str) -> None:
    path = tmp_path / "acceptance.yaml"
    path.write_text(text)
    with pytest.raises(Misuse, match=why) as refused:
        contract.read(path, made.site_of()[1])
    assert "\n" not in str(refused.value)


def mutate(folder: Path, chance: random.Random) -> str:
    """Change one file in a random way; what was done."""
    files = {path: file for path, file in files_of(folder).items() if "signatures/" not in path}
    path = chance.choice(sorted(files))
    file, data = files[path], bytearray(files[path].read_bytes())
    way = chance.choice(["flip", "cut", "drop", "grow", "swap", "insert", "number", "empty", "copy"])
    position = chance.randrange(len(data) or 1)
    if way == "drop":
        file.unlink()
        return f"{way} {path}"
    if way == "swap":
        data = bytearray(files[chance.choice(sorted(set(files) - {path}))].read_bytes())
    elif way == "copy":
        (file.parent / f"x{chance.randrange(9)}.json").write_bytes(data)
        return f"{way} {path}"
    elif way == "number":
        digits = [at for at, byte in enumerate(data) if 48 <= byte < 58] or [position]
        at_ = chance.choice(digits)
        data[at_ : at_ + 1] = str((data[at_] + chance.randrange(1, 10)) % 10).encode()
    else:
        data = {
            "flip": data[:position]
            + bytes([data[position] ^ (1 << chance.randrange(8))])
            + data[position + 1 :],
            "cut": data[:position],
            "grow": data + chance.randbytes(chance.randrange(1, 4096)),
            "insert": data[:position] + chance.randbytes(3) + data[position:],
            "empty": bytearray(),
        }[way]
    file.write_bytes(data)
    return f"{way} {path}"


def attack(good: Path, keys: Path, work: Path) -> None:
    """A thousand mutated folders: most as they are, some with new sums and a good signature."""
    key, original = keys / "seller", {path: file.read_bytes() for path, file in files_of(good).items()}
    for seed in range(FOLDERS):
        chance, folder = random.Random(seed), work / str(seed)
        shutil.copytree(good, folder)
        done = mutate(folder, chance)
        if seed % 10 == 0:
            made.sums(folder)
            sign(folder, key)
        try:
            code = verify(folder, keys / "signers").exit_code
        except Untrusted:
            code = 1
        now = {path: file.read_bytes() for path, file in files_of(folder).items()}
        kept = {path: data for path, data in now.items() if "signatures/" not in path}
        same = kept == {path: data for path, data in original.items() if "signatures/" not in path}
        assert code != 0 or same, f"seed {seed}: {done} is accepted"
        shutil.rmtree(folder)


@pytest.mark.slow
def test_no_mutated_folder_is_accepted_or_takes_much_memory(signed: Path, keys: Path, tmp_path: Path) -> None:
    # getrusage would count the memory that the process had before exec, which is that of these tests.
    script = (
        "import sys; from pathlib import Path;"
        " from stacks.accept.tests.unit import test_forged as t; t.attack(*map(Path, sys.argv[1:]));"
        " print(Path('/proc/self/status').read_text().partition('VmHWM:')[2].split()[0])"
    )
    work = tmp_path / "work"
    work.mkdir()
    words = [sys.executable, "-c", script, str(signed), str(keys), str(work)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    assert int(done.stdout) <= MAX_MIB << 10


def values(found: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    for key, value in found.items() if isinstance(found, dict) else enumerate(found):
        yield (*path, key)
        if isinstance(value, dict | list):
            yield from values(value, (*path, key))


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        "inventory/hosts.json.zst", "repeats/h100/source.json", "run.json", "cabling/printed.json.zst",
        "stress/printed.json.zst", "storage/printed.json.zst",
    ],
)  # fmt: skip
@pytest.mark.parametrize("seed", range(25))
def test_values_of_other_types_end_no_command_with_an_error(folder: Path, name: str, seed: int) -> None:
    chance, path = random.Random(f"{name} {seed}"), folder / "evidence" / name
    if not name.startswith(("repeats", "run")):
        shutil.rmtree(folder / "evidence/collectives")
        shutil.rmtree(folder / "evidence/repeats")
    found = read_json(path)
    *way, last = chance.choice(list(values(found)))
    part = found
    for key in way:
        part = part[key]
    part[last] = chance.choice([None, [], {}, [[]], "", "x\0", -1, 1e308, True, {"a": {}}, ["x"]])
    write_json(path, found)
    with suppress(Failed):
        document.contents(folder)

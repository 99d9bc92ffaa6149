"""The document: what it says, who signs it, and what `verify` makes of it."""

import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from busbar.exits import Failed, NoVerdict
from busbar.fabric.localise import Known, plan_rails
from stacks.accept.package import document, kinds
from stacks.accept.package.document import NAMESPACE, _signer, sign, verify
from stacks.accept.package.evidence import Untrusted, read_json, write_json
from stacks.accept.package.subjects.collectives import RUNS
from stacks.accept.tests.unit import made
from tests.support.cli import busbar


def test_a_document_that_two_have_signed_is_accepted_elsewhere(signed: Path, keys: Path) -> None:
    for name in ("seller", "buyer", "buyer"):
        sign(signed, keys / name)
    elsewhere = signed.rename(signed.with_name("elsewhere"))
    found = verify(elsewhere, keys / "signers")
    good = [(each.state, *each.principals) for each in found.signatures]
    assert sorted(good) == [("good", "buyer@example.com"), ("good", "seller@example.com")]
    done = busbar("accept", "verify", str(elsewhere), "--signers", str(keys / "signers"))
    assert (found.exit_code, done.exit_code) == (0, 0), done.output
    assert "inventory.h100.nodes" in done.stdout and "signature good: seller@example.com" in done.stdout
    lines = done.stdout.splitlines()
    assert lines[0].startswith("Accepted on ") and lines[-1].startswith(f"{lines[0]}: site, run accept-")
    assert "nobody has asked: --criteria, --signed-by, --cluster-id, --machines, --cabling, --after" in lines


@pytest.fixture
def agent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Path], object]]:
    running = subprocess.Popen(["ssh-agent", "-D", "-a", str(tmp_path / "agent")], stdout=subprocess.PIPE)
    assert running.stdout is not None and running.stdout.readline()
    monkeypatch.setenv("SSH_AUTH_SOCK", str(tmp_path / "agent"))
    yield lambda key: subprocess.run(["ssh-add", "-q", str(key)], check=True)
    running.terminate()
    running.communicate()


def ssh_keygen(*words: str, data: bytes = b"") -> bytes:
    return subprocess.run(["ssh-keygen", *words], input=data, capture_output=True, check=True).stdout


def test_an_agent_s_key_signs_by_its_public_key(signed: Path, keys: Path, tmp_path: Path, agent: Any) -> None:
    agent(keys / "buyer")
    (tmp_path / "only.pub").write_text((keys / "buyer.pub").read_text())
    sign(signed, tmp_path / "only.pub")
    assert verify(signed, keys / "signers").exit_code == 0


@pytest.mark.parametrize(
    ("mode", "text", "why"),
    [(0o600, "not a key\n", "ssh-keygen did not sign: .*Fix: "), (0o644, "", "too open.*Fix: chmod 600 ")],
)
def test_a_key_that_does_not_sign_is_an_error_with_its_fix(
    signed: Path, keys: Path, tmp_path: Path, mode: int, text: str, why: str
) -> None:
    (tmp_path / "key").write_text(text or (keys / "buyer").read_text())
    (tmp_path / "key").chmod(mode)
    with pytest.raises(Failed, match=why):
        sign(signed, tmp_path / "key")


def test_a_certificate_signs_beside_its_key(signed: Path, keys: Path, tmp_path: Path, agent: Any) -> None:
    public = shutil.copy(keys / "seller.pub", tmp_path / "key.pub")
    ssh_keygen("-q", "-s", str(keys / "stranger"), "-I", "seller", "-n", "seller", str(public))
    agent(shutil.copy(keys / "seller", tmp_path / "key"))
    words = ("-Y", "sign", "-f", str(tmp_path / "key-cert.pub"), "-n", NAMESPACE)
    certified = _signer(ssh_keygen(*words, data=(signed / "SHA256SUMS").read_bytes()))
    [own] = (signed / "signatures").iterdir()
    assert _signer(own.read_bytes()) != certified and b"ssh-ed25519-cert" in certified


def test_signing_says_what_the_document_says(folder: Path, keys: Path) -> None:
    made.inventory(folder, lambda hosts: hosts.pop("worker-2"))
    document.write(folder)
    done = busbar("accept", "sign", str(folder), "--key", str(keys / "seller"))
    assert done.exit_code == 0
    assert done.stdout.splitlines()[-1].startswith("what it says: Refused; passed are ")


def test_a_folder_that_this_account_cannot_read_is_not_decided(written: Path) -> None:
    log = written / "evidence/repeats/h100/source.json"
    assert log.stat().st_mode & 0o777 == 0o644, "the record of a job was its owner's alone"
    log.chmod(0o600)
    reading, writing = os.pipe()
    if os.fork() == 0:
        os.setuid(65534)
        try:
            verify(written, None)
        except NoVerdict as error:
            os.write(writing, str(error).encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as told:
        text = told.read()
    assert "cannot be read: " in text and "Fix: chmod -R a+rX" in text


def test_the_acceptance_of_another_day_is_refused_where_the_buyer_asks(signed: Path, keys: Path) -> None:
    for day, code in (("2026-11-23", 0), ("2026-11-24", 1)):
        words = ("--signers", str(keys / "signers"), "--after", day)
        done = busbar("accept", "verify", str(signed), *words)
        assert done.exit_code == code, done.output


def test_only_a_known_signer_s_good_signature_decides(written: Path, keys: Path, tmp_path: Path) -> None:
    known, expired = keys / "signers", tmp_path / "signers"
    public = (keys / "seller.pub").read_text()
    expired.write_text(f'seller@example.com valid-before="20200101" {public}')
    assert verify(written, known).exit_code == 2
    sign(written, keys / "stranger")
    assert verify(written, known).exit_code == 2
    sign(written, keys / "seller")
    found = verify(written, known)
    assert (found.exit_code, {each.state for each in found.signatures}) == (0, {"good", "unknown"})
    assert verify(written, None).exit_code == 2
    found = verify(written, expired)
    assert found.exit_code == 2 and any("expired" in each.text for each in found.signatures)


def test_a_signature_of_other_data_or_in_another_namespace_refuses(signed: Path, keys: Path) -> None:
    (file,) = (signed / "signatures").iterdir()
    for namespace, data in (("file", (signed / "SHA256SUMS").read_bytes()), (NAMESPACE, b"other")):
        file.write_bytes(ssh_keygen("-Y", "sign", "-f", str(keys / "seller"), "-n", namespace, data=data))
        found = verify(signed, keys / "signers")
        assert (found.exit_code, found.signatures[0].state) == (1, "bad")


def test_only_required_rows_that_passed_count_and_the_page_says_what_was_left_out(folder: Path) -> None:
    parts = (folder / "acceptance.yaml").read_text().split("\n\n")
    agreed = [each for each in parts if ".ecc" not in each and "id: training." not in each]
    (folder / "acceptance.yaml").write_text("\n\n".join(agreed))
    found = document.write(folder)
    rows = [row for row in found["rows"] if row["required"]]
    assert found["counts"] == {
        "passed": len(rows), "rows": len(found["rows"]) + 4, "taken_out": 4,
        "not_required": len(found["rows"]) - len(rows),
    }  # fmt: skip
    words = f"Accepted on {len(rows)} of {len(found['rows']) + 4} rows (4 taken out"
    assert document.headline(found).startswith(words)
    page = (folder / "report.html").read_text()
    assert page.count(words) == 2, "in the title and beside the word"
    assert page.count('<polygon class="band"') == len(RUNS) and "Soak over time" in page
    assert "<script" not in page and "http" not in page.replace("http://www.w3.org", "")
    assert "row inventory.h100.ecc: taken out" in page and "node worker-3: in quarantine: a new cable" in page


def test_what_was_simulated_stands_first(folder: Path) -> None:
    def simulate(hosts: dict[str, Any]) -> None:
        for report in hosts.values():
            report["also"]["simulated"] = "a simulator of nvidia-smi"

    made.inventory(folder, simulate)
    document.write(folder)
    found = read_json(folder / document.ACCEPTANCE)
    assert next(iter(found.items())) == ("simulated", "a simulator of nvidia-smi")
    body = (folder / "report.html").read_text().partition("<body>")[2]
    assert body.index("a simulator of nvidia-smi") < body.index("<h1")


def test_the_page_colours_a_slow_rail_and_shows_its_gbps(folder: Path) -> None:
    pool = made.site_of()[1].pools["h100"]
    plan = plan_rails(made.WORKERS, pool.rail_groups, Known(), rails=8)
    made.groups(folder, "rails", "000", plan, lambda group: 0.7 if group.rail == 3 else 1.0)
    page = document.contents(folder)[1][document.REPORT]
    row = next(line for line in page.splitlines() if '<td class="k">worker-1</td>' in line)
    cells = re.findall(r'title="(\d+) %" style="background:([^"]+)">([\d.]+)<', row)
    alone, pair, rail = (pool.group_gbps[kind] for kind in ("node", "in_group", "rail_in_group"))
    assert [float(gbps) for *_, gbps in cells] == pytest.approx(
        [alone, pair, *[rail] * 3, 0.7 * rail, *[rail] * 4], rel=0.01
    )
    good, slow = "#a9dfb3", "#f4b183"
    assert [cell[:2] for cell in cells] == [("100", good)] * 5 + [("70", slow)] + [("100", good)] * 4


def test_a_pool_without_runs_has_no_table_of_nodes_and_rails(folder: Path) -> None:
    for stage in kinds.OF_NODES:
        shutil.rmtree(folder / "evidence" / stage / "h100")
    assert "Nodes and rails" not in document.contents(folder)[1][document.REPORT]


def other_judge(monkeypatch: pytest.MonkeyPatch, row: str, result: kinds.Finding) -> None:
    """A release that judges a kind of row otherwise."""
    monkeypatch.setitem(kinds.KINDS, row, replace(kinds.KINDS[row], find=lambda asked: result))
    monkeypatch.setattr("stacks.accept.package.document.__version__", "9.9.9")


def test_a_new_judgement_has_both_reasons(signed: Path, keys: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other_judge(monkeypatch, "inventory.ecc", kinds.Finding("fail", "ECC of these GPUs is known to lie"))
    found = verify(signed, keys / "signers")
    assert found.exit_code == 1
    was = "inventory.h100.ecc: was pass (good on 2 nodes)"
    assert found.differences == [f"{was}, is fail (ECC of these GPUs is known to lie)"]
    other_judge(monkeypatch, "inventory.ecc", kinds.Finding("unknown", "not enough evidence now"))
    assert verify(signed, keys / "signers").exit_code == 2


def test_newer_rows_count_as_taken_out(signed: Path, keys: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    newer = kinds.Kind(lambda asked: kinds.Finding("fail", "was never asked for"), "the colour of the cables")
    monkeypatch.setitem(kinds.KINDS, "inventory.colour", newer)
    with pytest.raises(Untrusted, match="hides rows of its release"):
        verify(signed, keys / "signers")
    monkeypatch.setattr("stacks.accept.package.document.__version__", "9.9.9")
    found = verify(signed, keys / "signers")
    assert (found.exit_code, found.differences) == (0, [])
    assert found.again["taken_out"] == ["inventory.h100.colour"]


def test_evidence_of_a_worker_that_the_site_does_not_have_is_refused(folder: Path) -> None:
    made.inventory(folder, lambda hosts: hosts.update({"worker-9": made.host(9)}))
    with pytest.raises(Untrusted, match="worker-9"):
        document.write(folder)


def test_a_run_of_another_time_is_refused(folder: Path) -> None:
    begun = read_json(folder / "evidence/run.json")
    write_json(folder / "evidence/run.json", {**begun, "began": "2026-12-01T00:00:00Z"})
    assert made.result(folder, "inventory.h100.ecc").result == "unknown"

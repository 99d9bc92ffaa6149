"""Hostile folders: each is refused with one sentence, none is accepted, and none makes `verify` crash."""

from __future__ import annotations

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

from busbar.exits import Failed, Misuse
from stacks.accept.package import document
from stacks.accept.package.document import sign, verify
from stacks.accept.package.evidence import Untrusted, files_of, read_json, write_json, write_packed
from stacks.accept.tests.unit import made

FOLDERS = 1000
MAX_MIB = 200
LOG = "evidence/repeats/h100/nccl.log.zst"


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def bomb(path: Path) -> None:
    write_packed(path, bytes(3 << 20))


def at(name: str, change: Callable[[Path], object]) -> Callable[[Path], object]:
    return lambda folder: change(folder / name)


def other_schema(path: Path) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), "schema": 1}))


def link(folder: Path) -> None:
    (folder / LOG).unlink()
    (folder / LOG).symlink_to("/etc/hostname")


def traverse(folder: Path) -> None:
    with (folder / "SHA256SUMS").open("a") as file:
        file.write(f"{'0' * 64}  ../../../etc/passwd\n")


CHANGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "a changed byte": (at(LOG, flip), "another sha256"),
    "a missing file": (at("report.html", Path.unlink), "is missing"),
    "an additional file": (at("evidence/more.json", lambda path: path.write_text("{}")), "not listed"),
    "a symbolic link": (link, "symbolic link"),
    "a linked folder": (at("evidence/more", lambda path: path.symlink_to("/etc")), "symbolic link"),
    "path traversal": (traverse, "is missing"),
    "a strange name": (at("evidence/a\nb", lambda path: path.write_text("")), "not a name"),
    "no sums": (at("SHA256SUMS", Path.unlink), "not the document of an acceptance"),
    "another file as a signature": (
        at("signatures/x", lambda path: path.write_text("x")), "not a signature"
    ),
}  # fmt: skip
# The forger has written SHA256SUMS anew and signed it.
FORGED: dict[str, tuple[Callable[[Path], object], str]] = {
    "a changed byte": (at(LOG, flip), "`files`"),
    "a log of another run": (
        lambda folder: made.collective(folder, "repeats", run="accept-ffffff"),
        "`files`",
    ),
    "a bomb": (at(LOG, bomb), "unpacks to more than 2 MiB"),
    "no zstd": (at(LOG, lambda path: path.write_bytes(b"\x28\xb5\x2f\xfdxxxx")), "cannot be unpacked"),
    "another schema": (at("acceptance.json", other_schema), "has the schema 1, expected 2. Fix:"),
    "another page": (at("report.html", lambda path: path.write_text("<h1>Accepted</h1>")), "report.html"),
    "deep JSON": (at("acceptance.json", lambda path: path.write_text("[" * 100_000)), "cannot be read"),
    "a list": (at("acceptance.json", lambda path: path.write_text("[]")), "not a JSON object"),
    "a file more": (at("README.md", lambda path: path.write_text("Accepted.")), "no file of an acceptance"),
    "no acceptance": (at("acceptance.json", Path.unlink), "is missing"),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_folder_that_is_not_the_signed_one_is_refused(signed: Path, keys: Path, name: str) -> None:
    change, why = CHANGES[name]
    change(signed)
    with pytest.raises(Untrusted, match=why) as refused:
        verify(signed, keys / "signers")
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("name", FORGED)
def test_a_forged_folder_is_refused_also_where_its_signature_is_good(
    signed: Path, keys: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    change, why = FORGED[name]
    monkeypatch.setattr(document, "MAX_UNPACKED", 2 << 20)
    change(signed)
    made.sums(signed)
    sign(signed, keys / "seller")
    with pytest.raises(Untrusted, match=why):
        verify(signed, keys / "signers")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("version: 2\nrows: []\n", "version"),
        ("version: 1\nrows: [\n", "not YAML"),
        ("version: 1\nrows:\n- id: inventory.h100.luck\n", "unknown row"),
        ("version: 1\nrows:\n- id: inventory.h200.ecc\n", "unknown row"),
        ("version: 1\nrows:\n- id: inventory.h100.ecc\n- id: inventory.h100.ecc\n", "is there twice"),
        ("version: 1\nrows:\n- {id: inventory.h100.ecc, threshold: 3}\n", "expected none"),
        ("version: 1\nrows:\n- {id: inventory.h100.nodes, threshold: 2, unit: GB/s}\n", "unit is 'GB/s'"),
        ("version: 1\nrows:\n- {id: inventory.h100.nodes, threshold: 20000, unit: nodes}\n", "at most 10000"),
        ("version: 1\nrows:\n- {id: inventory.h100.nodes, unit: nodes}\n", "threshold is missing"),
        ("version: 1\nrows:\n- {id: inventory.h100.nodes, threshold: .nan, unit: nodes}\n", "nan"),
        ("x" * (2 << 20), "larger than"),
    ],
)
def test_criteria_that_are_not_valid_are_refused_with_one_sentence(
    tmp_path: Path, text: str, why: str
) -> None:
    from stacks.accept.package import criteria

    path = tmp_path / "acceptance.yaml"
    path.write_text(text)
    with pytest.raises(Misuse, match=why) as refused:
        criteria.read(path, made.site_of()[1])
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
def test_of_a_thousand_mutated_folders_none_is_accepted_and_none_takes_much_memory(
    signed: Path, keys: Path, tmp_path: Path
) -> None:
    # getrusage would count the memory that the process had before exec, which is that of these tests.
    script = (
        "import sys; from pathlib import Path;"
        " from stacks.accept.tests.unit import test_hostile as t; t.attack(*map(Path, sys.argv[1:]));"
        " print(Path('/proc/self/status').read_text().partition('VmHWM:')[2].split()[0])"
    )
    work = tmp_path / "work"
    work.mkdir()
    words = [sys.executable, "-c", script, str(signed), str(keys), str(work)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    assert int(done.stdout) <= MAX_MIB << 10


@pytest.mark.parametrize("seed", range(12))
def test_evidence_that_a_forger_has_changed_and_computed_anew_ends_no_command_with_an_error(
    folder: Path, seed: int
) -> None:
    mutate(folder, random.Random(seed))
    with suppress(Failed):
        document.write(folder)
        verify(folder, None)


def values(found: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The path of every value in JSON."""
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
def test_values_of_other_types_in_the_evidence_end_no_command_with_an_error(
    folder: Path, name: str, seed: int
) -> None:
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

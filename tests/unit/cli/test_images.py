"""`busbar images`: a line or a JSON object, and an exit code that says whether the list is complete."""

import json
from pathlib import Path
from typing import Any

from tests.support.cli import busbar
from tests.support.clusters import all_operators, site, stack_file


def run(folder: Path, *words: str, **sections: Any) -> Any:
    return busbar("images", str(stack_file(folder, site(**sections), "mine")), *words)


def test_a_complete_list_is_lines_of_kind_name_and_where_that_was_run(tmp_path: Path) -> None:
    done = run(tmp_path, **all_operators(enabled=False))
    assert done.exit_code == 0, done.output
    kinds, names, runs = zip(*(line.split(maxsplit=2) for line in done.stdout.splitlines()), strict=True)
    assert kinds == ("binary", "archive", "package", "image")
    by_name = dict(zip((name.rpartition("/")[2] for name in names), runs, strict=True))
    assert by_name["haproxy"].startswith("that of Debian 12, in the lab, ")
    assert by_name["k3s"].startswith("never run; v1.35.0+k3s3: ")


def test_a_list_that_is_not_complete_says_what_is_missing_and_fails(tmp_path: Path) -> None:
    done = run(tmp_path, "--json")
    assert done.exit_code == 1
    found = json.loads(done.stdout)
    assert (found["stack"], found["schema"], len(found["unknown"])) == ("mine", 1, 2)
    assert "not known: the images of gpu-operator" in done.stderr
    assert done.stderr.splitlines()[-1] == "error: the list is not complete"

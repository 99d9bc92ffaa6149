"""`busbar init`: what keeps it from writing a site; what it writes: tests/engine/test_site.py."""

from __future__ import annotations

from pathlib import Path

from typer.testing import CliRunner, Result

from busbar.cli import build


def init(*words: str) -> Result:
    return CliRunner().invoke(build(["init"]), ["init", *words])


def test_a_site_is_written_once_and_no_file_of_it_again(tmp_path: Path) -> None:
    assert init(str(tmp_path / "site")).exit_code == 0
    (tmp_path / "site" / "Pulumi.yaml").write_text("mine")
    again = init(str(tmp_path / "site"))
    assert again.exit_code == 64
    assert "has Pulumi.yaml, __main__.py, " in again.stderr and "Fix: name another folder" in again.stderr
    assert (tmp_path / "site" / "Pulumi.yaml").read_text() == "mine"


def test_a_folder_that_cannot_be_written_is_named_with_the_reason(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    done = init(str(tmp_path / "file" / "site"))
    assert done.exit_code == 64
    assert done.stderr.startswith(
        f"error: {tmp_path}/file/site/Pulumi.yaml cannot be written: Not a directory"
    )


def test_an_unknown_capability_is_refused_with_those_that_exist(tmp_path: Path) -> None:
    done = init(str(tmp_path / "site"), "--capability", "nosuch")
    assert (done.exit_code, (tmp_path / "site").exists()) == (64, False)
    assert done.stderr.startswith("error: --capability nosuch: expected one of ")

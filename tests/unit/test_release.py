"""The files of a release, and what a reader finds at the top of the repository."""

import importlib.util
import re
from pathlib import Path
from typing import Any

import pytest

from busbar import __version__

ROOT = Path(__file__).resolve().parents[2]
REQUIREMENTS = (ROOT / "requirements.txt").read_text()


@pytest.fixture(scope="module")
def release() -> Any:
    """The program of `make release`."""
    spec = importlib.util.spec_from_file_location("release", ROOT / ".ci" / "release.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.slow
def test_two_builds_have_equal_bytes(release: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1700000000")
    folders = [tmp_path / "one", tmp_path / "two"]
    first, second = ({path.name: path.read_bytes() for path in release.build(each)} for each in folders)
    assert [Path(name).suffix for name in sorted(first)] == [".whl", ".gz"]
    assert first == second


def test_the_bill_of_materials_has_every_pin_with_its_hashes(release: Any) -> None:
    found = release.bill("1.2.3", "abc", REQUIREMENTS)["components"]
    pins = re.findall(r"^([\w.-]+)(?:\[.*\])?==(\S+)", REQUIREMENTS, re.MULTILINE)
    assert [(each["name"], each["version"]) for each in found] == pins
    hashes = [each["externalReferences"][0]["hashes"] for each in found]
    assert all(hashes) and sum(map(len, hashes)) == REQUIREMENTS.count("--hash=sha256:")


def test_the_notes_are_the_section_of_the_version_and_a_version_without_one_is_refused(release: Any) -> None:
    changelog = "# Changelog\n\n## 0.2.0 (not released yet)\n\nnew\n\n## 0.1.0\n\nold\n"
    assert release.notes_of(changelog, "0.2.0") == "# busbar 0.2.0\n\nnew\n"
    with pytest.raises(SystemExit, match=r"no section 0\.2\. Fix"):
        release.notes_of(changelog, "0.2")


def test_this_version_has_notes_and_is_the_wheel_that_the_docs_install(release: Any) -> None:
    assert release.notes_of((ROOT / "CHANGELOG.md").read_text(), __version__)
    wheels = re.findall(r"busbar_cluster-(.+?)-py3", (ROOT / "docs/sites.md").read_text())
    assert {*wheels} - {"NEW"} == {__version__}


def test_llms_txt_lists_every_page_and_nothing_else() -> None:
    listed = set(re.findall(r"\]\(([^)]+)\)", (ROOT / "llms.txt").read_text()))
    pages = {f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md")}
    pages |= {str(path.relative_to(ROOT)) for path in (ROOT / "stacks").glob("*/*.md")}
    assert pages <= listed
    assert [name for name in sorted(listed) if not (ROOT / name).is_file()] == []

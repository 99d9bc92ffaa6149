"""`busbar docs`: what an installed release has to read, without a checkout."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from busbar.cli.docs import pages
from tests.support.cli import busbar

ROOT = Path(__file__).resolve().parents[3]
# In messages, comments and pages: `busbar docs hosts 'By hand'`.
_NAMED = re.compile(r"""busbar docs (?!\[)([\w-]+)(?: (?:['"]([^'"]+)['"]|([A-Z][\w-]*)))?""")


def named() -> Iterator[tuple[str, str]]:
    """Every page, with the section, that a text of the product names."""
    places = ("busbar", "components", "stacks", "docs", "host")
    files = (path for each in places for path in (ROOT / each).rglob("*.*"))
    for path in (ROOT / "Pulumi.h100.example.yaml", *files):
        if path.suffix in (".py", ".md", ".yaml", ".sh") and "tests" not in path.parts:
            for found in _NAMED.finditer(path.read_text(encoding="utf-8")):
                yield found[1], found[2] or found[3] or ""


def test_the_list_has_every_page_of_docs_and_of_the_capabilities() -> None:
    listed = [line.split()[0] for line in busbar("docs").stdout.splitlines()]
    expected = {path.stem for path in (ROOT / "docs").glob("*.md")}
    assert expected | {"README", "slurm", "training", "watch"} <= {*listed}


def test_a_page_is_printed_as_it_is_written_and_a_section_ends_before_the_next_heading() -> None:
    assert busbar("docs", "outputs").stdout == (ROOT / "docs/outputs.md").read_text()
    assert busbar("docs", "docs/outputs.md").stdout == busbar("docs", "outputs").stdout
    section = busbar("docs", "operations", "measuring again").stdout
    assert section.startswith("### Measuring again\n") and "busbar-measure.timer" in section
    assert "### History" not in section


@pytest.mark.parametrize("words", [("nosuch",), ("hosts", "nosuch")])
def test_an_unknown_page_or_section_is_answered_with_those_that_exist(words: tuple[str, ...]) -> None:
    done = busbar("docs", *words)
    assert (done.exit_code, done.stdout) == (64, "")
    assert "nosuch, expected one of: " in done.stderr


def test_every_page_and_section_that_a_text_names_exists() -> None:
    found = {*named()}
    assert len(found) >= 4 and {page for page, _ in found} <= {*pages()}
    for page, section in found:
        assert busbar("docs", page, *filter(None, [section])).exit_code == 0, (page, section)


@pytest.mark.parametrize("section", [(), ("By hand",)])
def test_the_page_on_hosts_ends_with_the_folder_of_the_scripts(section: tuple[str, ...]) -> None:
    last = busbar("docs", "hosts", *section).stdout.splitlines()[-1]
    assert last == f"The host scripts of this release are in {ROOT / 'host'}"

"""`busbar docs`: the pages of the installed release, and the folder of its host scripts."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

import typer

from busbar.cli.output import fail, print_table, print_text
from busbar.exits import USAGE

_PACKAGE = Path(__file__).resolve().parents[1]
_HOSTS = "hosts"
_HEADING = re.compile(r"^(#+) (.*)$", re.MULTILINE)


def docs(
    page: Annotated[str | None, typer.Argument(metavar="PAGE", help="Without it pages are listed.")] = None,
    section: Annotated[
        str | None, typer.Argument(metavar="SECTION", help="Only what is below this heading.")
    ] = None,
) -> None:
    """Print the pages of this release, in Markdown: `busbar docs hosts`, `busbar docs hosts "By hand"`.

    The page on hosts ends with the folder of the scripts that run there.
    """
    known = pages()
    if page is None:
        print_table((), [(name, _title(path)) for name, path in known.items()])
        return
    # Messages of the host scripts name the file of a checkout.
    name = page.removeprefix("docs/").removesuffix(".md")
    if name not in known:
        fail(f"no page {page}, expected one of: {', '.join(known)}", USAGE)
    text = known[name].read_text(encoding="utf-8")
    if name == _HOSTS:  # its last section is "By hand"
        folder = (_PACKAGE / "host").resolve()
        text = f"{text}\nThe host scripts of this release are in {folder}\n"
    print_text(text if section is None else _section(text, name, section))


def pages() -> dict[str, Path]:
    """Name -> file: the README, the pages of docs/, then those of the capabilities."""
    from busbar.capability import FOLDER, capabilities

    found = {path.stem: path for path in (_PACKAGE / "README.md", *sorted((_PACKAGE / "docs").glob("*.md")))}
    for each in capabilities():
        for file, name in (("README", each.name), ("docs", f"{each.name}-docs")):
            if (path := FOLDER / each.name / f"{file}.md").is_file():
                found[name] = path
    return found


def _title(path: Path) -> str:
    found = _HEADING.search(path.read_text(encoding="utf-8"))
    return found[2] if found else path.stem


def _section(text: str, page: str, wanted: str) -> str:
    """The part of a page below a heading, up to the next one of its level or a higher one."""
    headings = [*_HEADING.finditer(_without_code(text))]
    for number, each in enumerate(headings):
        if each[2].casefold() == wanted.casefold():
            after = (other.start() for other in headings[number + 1 :] if len(other[1]) <= len(each[1]))
            return text[each.start() : next(after, len(text))]
    names = ", ".join(each[2] for each in headings[1:])
    fail(f"page {page} has no section {wanted}, expected one of: {names}", USAGE)


def _without_code(text: str) -> str:
    """The same text, as long, without the lines of blocks of code, whose comments look like headings."""
    return re.sub(r"^```.*?^```", lambda block: " " * len(block[0]), text, flags=re.DOTALL | re.MULTILINE)

"""The pages of the project: what they link to, the commands they show, the configuration they quote."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[3]
_PLACES = [f"{place}*.md" for place in ("", "docs/", "lab/", "lab/*/", "lab/offline/*/", "stacks/*/")]
_PLACES += [f"{place}*.md" for place in ("stacks/*/*/", "examples/*/", "machines/*/")]

_FENCED = re.compile(r"^```(?P<language>\w*)\n(?P<text>.*?)^```$", re.DOTALL | re.MULTILINE)
_INDENTED = re.compile(r"(?:^ {4}\S.*\n(?:\n(?= {4}))?)+", re.MULTILINE)
_SPAN = re.compile(r"`([^`]+)`")
_LINK = re.compile(r"\]\((?P<target>[^)\s]+)\)")
_HEADING = re.compile(r"^#+ (?P<title>.*)$", re.MULTILINE)


@dataclass(frozen=True)
class Page:
    """A page by its path below the project."""

    path: str

    @property
    def text(self) -> str:
        return (ROOT / self.path).read_text(encoding="utf-8")

    @property
    def prose(self) -> str:
        """The page without its fenced blocks."""
        return _FENCED.sub("", self.text)

    def blocks(self, language: str) -> list[str]:
        """The fenced blocks of a language."""
        return [found["text"] for found in _FENCED.finditer(self.text) if found["language"] == language]

    def spans(self) -> list[str]:
        """Code within sentences, each on one line."""
        return [" ".join(span.split()) for span in _SPAN.findall(self.prose)]

    def words(self) -> set[str]:
        """The words of the code within sentences."""
        return {word for span in self.spans() for word in span.split()}

    def code(self) -> Iterator[str]:
        """Lines of all blocks, with the next line where one ends with a backslash, and code in sentences."""
        shown = [found["text"] for found in _FENCED.finditer(self.text)] + _INDENTED.findall(self.prose)
        for block in shown:
            yield from (line.strip() for line in block.replace("\\\n", " ").splitlines())
        yield from self.spans()

    def links(self) -> list[str]:
        """Targets of links that are not URLs."""
        return [found["target"] for found in _LINK.finditer(self.prose) if "://" not in found["target"]]

    def anchors(self) -> set[str]:
        """The names that headings have in links, as GitHub makes them."""
        titles = (found["title"].strip().lower() for found in _HEADING.finditer(self.prose))
        return {re.sub(r"[^\w\- ]", "", title).replace(" ", "-") for title in titles}


PAGES = tuple(Page(str(path.relative_to(ROOT))) for place in _PLACES for path in sorted(ROOT.glob(place)))

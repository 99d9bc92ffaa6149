"""What the pages of this folder say holds for the code; tests/unit/docs has what all pages share."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
import yaml

from stacks.training.package import config, outputs
from stacks.training.package.verdict import CHECKS
from tests.unit.docs.pages import PAGES, Page

DOCS = Page("stacks/training/docs.md")
CLUSTER = {"cluster": "organization/busbar/mysite"}


@pytest.mark.parametrize(
    "page", [page for page in PAGES if page.path.startswith("stacks/training/")], ids=lambda page: page.path
)
def test_every_configuration_is_valid(page: Page) -> None:
    for block in page.blocks("yaml"):
        data = yaml.safe_load(block)
        if data.keys() & {"apiVersion", "metadata"}:
            continue  # objects of Kubernetes
        if "config" in data:
            (key, data), *others = data["config"].items()
            assert (key, others) == (f"{config.PROJECT}:{config.KEY}", [])
        config.load({**CLUSTER, **data})


def test_the_table_of_the_configuration_has_every_key_and_its_default() -> None:
    table = DOCS.text.partition("\n## Configuration\n")[2].partition("\n## ")[0]
    defaults = dict(flat(config.load(CLUSTER).model_dump()))
    named: set[str] = set()
    for row in re.findall(r"^\| (`[^|]*`) \|([^|]*)\|", table, re.MULTILINE):
        first, *others = re.findall(r"`(.*?)`", row[0])
        keys = [first, *(key if "." in key else f"{first.rpartition('.')[0]}.{key}" for key in others)]
        named |= set(keys)
        shown = row[1].strip().split(", ")
        for key, text in zip(keys, shown * len(keys) if len(shown) == 1 else shown, strict=False):
            if re.fullmatch(r"true|false|\d+(\.\d+)?", text) and key in defaults:
                assert defaults[key] == json.loads(text), key
    assert [key for key in defaults if not any(f"{name}.".startswith(f"{key}.") for name in named)] == []


def test_the_docs_name_every_output_and_check() -> None:
    assert not {*outputs.Outputs.model_fields, *(check.__name__ for check in CHECKS)} - DOCS.words()


def flat(values: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, Any]]:
    """(dotted key, value) of each value that is not a mapping itself."""
    for key, value in values.items():
        if isinstance(value, dict) and value:
            yield from flat(value, f"{path}{key}.")
        else:
            yield f"{path}{key}", value

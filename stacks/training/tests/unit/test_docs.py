"""What the pages of this folder say holds for the code; tests/unit/docs has what all pages share."""

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


def test_the_docs_name_every_output_and_check() -> None:
    assert not {*outputs.Outputs.model_fields, *(check.__name__ for check in CHECKS)} - DOCS.words()

"""What the pages say of links, commands, keys, versions and drills holds for the code beside them."""

import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import typer.main
import yaml

from busbar import config, outputs, versions
from busbar.capability import capabilities
from busbar.cli.main import build
from busbar.config.stackfile import stack_schema
from lab.cli import app as lab
from tests.evidence_page import drills, generated
from tests.support.drills import PAGE, PROJECT, RECORD, passes
from tests.unit.docs.pages import PAGES, ROOT, Page

pages = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.path)
TOOLS = {"busbar": build(), "python -m lab": typer.main.get_command(lab)}
# Of the stack files: the core's, then those of the capabilities.
SCHEMAS = [stack_schema(), *filter(None, (each.stack_schema() for each in capabilities()))]
FOLDERS = "bench|busbar|charts|components|docs|examples|host|lab|machines|schema|stacks|tests"
# Where the pages write a name, the schemas have any name.
PLACEHOLDER = re.compile(r"NAME|POOL|\*|<\w+>|\[\]")


@pages
def test_every_link_leads_to_a_file_and_a_heading(page: Page) -> None:
    known = {other.path: other.anchors() for other in PAGES}
    for target in page.links():
        name, _, anchor = target.partition("#")
        path = os.path.normpath(os.path.join(os.path.dirname(page.path), name)) if name else page.path
        assert (ROOT / path).exists(), target
        assert not anchor or anchor in known[path], target


@pages
def test_every_file_of_the_project_that_is_named_exists(page: Page) -> None:
    pattern = rf"(?<![\w./])(?:{FOLDERS})/[\w./-]*\.(?:py|sh|yaml|md|json|toml|j2)\b"
    named = set(re.findall(pattern, page.text))
    places = [ROOT / place for place in Path(page.path).parents]
    named = {name.replace("NAME", "*") for name in named}
    assert sorted(name for name in named if not any([*place.glob(name)] for place in places)) == []


@pages
def test_every_command_has_the_sub_commands_and_options_that_are_shown(page: Page) -> None:
    assert [f"{line}: {problem}" for line in page.code() for problem in problems(line)] == []


@pages
def test_every_make_target_exists(page: Page) -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    targets |= {"up-", *(f"up-{capability.name}" for capability in capabilities())}
    named = {found for line in page.code() for found in re.findall(r"(?:^|[;&] )make ([a-z][a-z-]*)", line)}
    assert named <= targets


@pages
def test_every_key_of_the_configuration_exists(page: Page) -> None:
    unknown = []
    for span in page.spans():
        if not re.fullmatch(r"[a-z0-9_]+(?:\.(?:\w+|\*|<\w+>)(?:\[\])?)+", span):
            continue
        parts = PLACEHOLDER.sub("NAME", span.replace("[]", ".NAME")).split(".")
        owners = [(schema, root(schema)) for schema in SCHEMAS]
        owners = [(schema, node) for schema, node in owners if parts[0] in node["properties"]]
        if owners and parts[-1] not in {"md", "service"} and not any(has(*owner, parts) for owner in owners):
            unknown.append(span)
    assert unknown == []


# Those of capabilities are checked there.
@pytest.mark.parametrize(
    "page", [page for page in PAGES if not page.path.startswith("stacks/")], ids=lambda page: page.path
)
def test_every_configuration_is_valid(page: Page) -> None:
    for data in (data for block in page.blocks("yaml") for data in yaml.safe_load_all(block)):
        # Others are objects of Kubernetes and programs of Pulumi.
        if not data.keys() & {"apiVersion", "metadata", "runtime"}:
            config.load(example_with(data))


def test_the_page_on_outputs_names_all_of_them() -> None:
    assert not {*outputs.NAMES, "kubeconfig", *outputs.Details.model_fields} - Page("docs/outputs.md").words()


def test_the_readme_names_the_versions_of_the_project() -> None:
    readme = next(page for page in PAGES if page.path == "README.md").text
    assert f"/{versions.K3S.replace('+', '%2B')}/sha256sum-amd64.txt" in readme
    needed = yaml.safe_load((ROOT / "Pulumi.yaml").read_text())["requiredPulumiVersion"]
    assert f"{needed.removeprefix('>=').removesuffix('.0')} or newer" in " ".join(readme.split())


def test_no_text_advises_to_install_the_foreign_package_that_has_our_name_on_pypi() -> None:
    texts = [page.text for page in PAGES] + [path.read_text() for path in (ROOT / "busbar").rglob("*.py")]
    foreign = re.compile(r"pip install '?busbar(?!-cluster).*")
    assert [found for text in texts for found in foreign.findall(text)] == []


def root(schema: Mapping[str, Any]) -> Any:
    """The definition of the one object that a stack file must have."""
    config = schema["properties"]["config"]
    [key] = config["required"]
    return schema["$defs"][config["properties"][key]["$ref"].rpartition("/")[2]]


def example_with(changes: Mapping[str, Any]) -> dict[str, Any]:
    """The cluster of the example, with some of its sections changed."""
    file = yaml.safe_load((ROOT / "Pulumi.h100.example.yaml").read_text())
    cluster: dict[str, Any] = file["config"]["busbar:cluster"]
    for key, value in changes.items():
        cluster[key] = {**cluster.get(key, {}), **value}
    return cluster


def problems(line: str) -> Iterator[str]:
    """What a line of code has of our commands that they do not have."""
    for name, tool in TOOLS.items():
        for found in re.finditer(rf"(?:^|[|$&] ){name} (?P<words>[^|#;&)]*)", line):
            words = found["words"].split()
            command: Any = tool
            while getattr(command, "commands", None) and words and words[0][0].isalpha():
                word = words.pop(0)
                if word not in command.commands:
                    yield f"no command {word}"
                    return
                command = command.commands[word]
            options = {option for each in command.params for option in (*each.opts, *each.secondary_opts)}
            shown = {word.partition("=")[0] for word in words if re.match(r"--?\w", word)}
            yield from sorted(shown - options - {"--help"})


def has(schema: Mapping[str, Any], node: Mapping[str, Any], parts: list[str]) -> bool:
    """Whether a path of keys exists in a part of a schema."""
    if "$ref" in node:
        return has(schema, schema["$defs"][node["$ref"].rpartition("/")[2]], parts)
    if not parts or (node.get("type") == "object" and not node.keys() & {"properties", "patternProperties"}):
        return True
    inner = [*node.get("anyOf", ()), *([node["items"]] if "items" in node and parts[0] != "NAME" else ())]
    if any(has(schema, each, parts) for each in inner):
        return True
    values = [node["items"]] if "items" in node else list(node.get("patternProperties", {}).values())
    values += [node["additionalProperties"]] if isinstance(node.get("additionalProperties"), dict) else []
    named = node.get("properties", {}).get(parts[0])
    return any(has(schema, each, parts[1:]) for each in ([named] if named else values))


def test_the_page_is_as_defaults_and_passes_are() -> None:
    page = (PROJECT / PAGE).read_text()
    assert generated(page) == page, "Fix: make docs"


def test_every_recorded_pass_is_that_of_a_drill() -> None:
    for name in passes(PROJECT):
        file, _, test = name.partition("::")
        path = PROJECT / file
        known = drills(path) if path.exists() else {}
        assert test.partition("[")[0] in known, f"Fix: delete the line of {name} in {RECORD}, then make docs"

"""Stack files of stacks/training: the JSON Schema, and `busbar check-config`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from stacks.training.package.config import read, stack_schema
from stacks.training.tests.support import CLUSTER, configured
from tests.support.cli import busbar

ROOT = Path(__file__).resolve().parents[4]
STACKS = ("dev", "networks", "jobs")
LAB = [ROOT / "stacks" / "training" / f"Pulumi.{stack}.yaml" for stack in STACKS]


def stack(folder: Path, document: Any) -> Path:
    (folder / "Pulumi.yaml").write_text("name: busbar-training\n")
    path = folder / "Pulumi.prod.yaml"
    path.write_text(document if isinstance(document, str) else yaml.safe_dump(document))
    return path


def of(**training: Any) -> dict[str, Any]:
    return {"config": {"busbar-training:training": configured(**training)}}


@pytest.mark.parametrize("file", LAB, ids=lambda file: file.name)
def test_a_stack_file_of_the_lab_is_valid_fits_the_schema_and_names_it_for_editors(file: Path) -> None:
    assert read(file).cluster == "organization/busbar/dev"
    jsonschema.validate(yaml.safe_load(file.read_text()), stack_schema())
    first = file.read_text().splitlines()[0]
    assert first == "# yaml-language-server: $schema=schema.json"
    assert (file.parent / first.rpartition("=")[2]).resolve() == ROOT / "stacks" / "training" / "schema.json"


def test_the_example_of_a_roce_site_is_valid_and_has_a_network_per_rail() -> None:
    file = ROOT / "stacks" / "training" / "Pulumi.roce.example.yaml"
    jsonschema.validate(yaml.safe_load(file.read_text()), stack_schema())
    assert [network.name for network in read(file).networks["h100"]] == [f"rail{n}" for n in range(8)]


def test_the_lab_s_stacks_have_namespaces_of_their_own() -> None:
    assert len({read(file).namespace for file in LAB}) == len(LAB)
    assert [read(file).trainer.enabled for file in LAB] == [False, False, True]
    assert [bool(read(file).networks) for file in LAB] == [False, True, False]


def test_the_schema_that_is_checked_in_is_current() -> None:
    checked_in = json.loads((ROOT / "stacks" / "training" / "schema.json").read_text())
    assert checked_in == stack_schema(), "run `make schema`"


def test_every_key_of_the_schema_is_described() -> None:
    undescribed = [
        f"{name}.{key}"
        for name, model in stack_schema()["$defs"].items()
        for key, value in model.get("properties", {}).items()
        if not value.get("description")
    ]
    assert undescribed == []


@pytest.mark.parametrize("wrong", [{"prof": {}}, {"proof": {"steps": 4}}, {"proof": {"backend": "mpi"}}])
def test_the_schema_refuses_what_the_program_refuses(wrong: dict[str, Any]) -> None:
    jsonschema.Draft202012Validator.check_schema(stack_schema())
    jsonschema.validate(of(), stack_schema())
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(of(**wrong), stack_schema())


def test_check_config_says_where_no_run_and_no_gate_is_configured(tmp_path: Path) -> None:
    assert (
        "no training run" in busbar("check-config", str(stack(tmp_path, of(proof={"enabled": False})))).stdout
    )
    ungated = busbar("check-config", str(stack(tmp_path, of(proof={"enforce": False}, pools=["a", "b"]))))
    assert "`pulumi up` succeeds without" in ungated.stdout
    assert f"cluster {CLUSTER}, pools: a, b" in ungated.stdout
    assert "gradients of the largest measured size to 1 GiB" in ungated.stdout


@pytest.mark.parametrize(
    ("document", "finding"),
    [
        (of(proof={"env": {"RANK": "0"}}), "proof.env.RANK: is set by torchrun. Fix: remove it"),
        (
            {"config": {"aws:region": "x"}},
            "busbar-training:training: missing: the object that describes the training run. "
            "Fix: see Pulumi.h100.example.yaml",
        ),
        (
            {"config": {**of()["config"], "busbar-training:trainning": {}}},
            "busbar-training:trainning: unknown key; did you mean 'training'?",
        ),
        ("config: busbar: 1\n", "Pulumi.prod.yaml: is not valid YAML: line 1, column 15: "),
        (
            "- x",
            "Pulumi.prod.yaml: `config:` is missing or not an object. Fix: see Pulumi.h100.example.yaml",
        ),
    ],
    ids=["torchrun", "missing", "unknown", "yaml", "list"],
)
def test_check_config_prints_one_finding_with_its_path_for_one_error(
    document: Any, finding: str, tmp_path: Path
) -> None:
    result = busbar("check-config", str(stack(tmp_path, document)))
    assert result.exit_code == 64
    assert finding in result.stdout and len(result.stdout.splitlines()) == 1
    assert "1 error; no changes made" in result.stderr


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("no JSON", "Invalid JSON"),
        ("{}", "schema: Field required, got {}"),
        ('{"schema": 1, "expectation": {}}', "schema: Input should be 2, got 1"),
        ('{"schema": 2, "expectation": {}}', "expectation.nodes: Field required, got {}"),
    ],
)
def test_another_file_than_a_verdict_is_named_in_one_line(text: str, why: str, tmp_path: Path) -> None:
    file = tmp_path / "verdict.json"
    file.write_text(text)
    done = busbar("training", "check", str(file), "--verdict", str(file))
    assert done.exit_code == 64
    assert done.stderr.startswith(f"error: {file}: is not the verdict of a training run: {why}")
    assert done.stderr.count("\n") == 1

"""Stack files: those of this repository, the JSON Schema, and `busbar check-config`."""

import copy
import re
import shutil
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from busbar.config import SECRETS, ConfigError, load, stackfile
from busbar.config.stackfile import stack_schema
from tests.support.cli import busbar
from tests.support.clusters import site

ROOT = Path(__file__).resolve().parents[3]
STACKS = [ROOT / "Pulumi.dev.yaml", ROOT / "Pulumi.h100.example.yaml"]
PLAIN_STACK = {"config": {"busbar:cluster": site()}}


def stack(folder: Path, document: Any, name: str = "prod") -> Path:
    path = folder / f"Pulumi.{name}.yaml"
    path.write_text(document if isinstance(document, str) else yaml.safe_dump(document))
    return path


@pytest.mark.parametrize("path", STACKS, ids=lambda path: path.name)
def test_a_stack_file_of_this_repository_is_valid_and_names_its_schema_for_editors(path: Path) -> None:
    file = stackfile.read(path)
    assert load(file.data, secret_keys=file.secret_keys).hosts.workers
    jsonschema.validate(yaml.safe_load(path.read_text()), stack_schema())
    assert path.read_text().startswith("# yaml-language-server: $schema=schema/cluster.schema.json\n")


def test_the_schema_refuses_an_unknown_key() -> None:
    document = copy.deepcopy(PLAIN_STACK)
    document["config"]["busbar:cluster"]["hosts"]["sevrers"] = []
    with pytest.raises(jsonschema.ValidationError, match="sevrers"):
        jsonschema.validate(document, stack_schema())


def test_pulumi_yaml_declares_the_cluster_and_every_secret_with_a_description() -> None:
    declared = yaml.safe_load((ROOT / "Pulumi.yaml").read_text())["config"]
    assert set(declared) == {"busbar:cluster", *(f"busbar:{key}" for key in SECRETS)}
    assert all(key["description"] for key in declared.values())


def test_check_config_summarises_a_valid_stack(tmp_path: Path) -> None:
    (tmp_path / "sha256sum-amd64.txt").write_text(f"{'ab' * 32}  k3s\n")
    result = busbar("check-config", str(shutil.copy(STACKS[1], tmp_path)))
    assert result.exit_code == 0
    assert result.stdout.startswith("OK  Pulumi.h100.example.yaml\n")
    for line in (
        "servers: 3 (cp-1 192.0.2.11, cp-2 192.0.2.12, cp-3 192.0.2.13)",
        "validation of h100: all_reduce over gpudirect-rdma, expected 400 GB/s, floor 360 GB/s",
        "2 workers, 8 GPUs and 8 rails per worker, 400 Gb/s per rail (infiniband)",
    ):
        assert line in result.stdout


def test_a_file_that_the_stack_names_and_that_is_missing_is_an_error_as_it_is_for_up(tmp_path: Path) -> None:
    data = site(k3s={"checksums_file": "sha256sum-amd64.txt"})
    result = busbar("check-config", str(stack(tmp_path, {"config": {"busbar:cluster": data}})))
    assert result.exit_code == 64
    assert "k3s.checksums_file: 'sha256sum-amd64.txt' cannot be read" in result.stdout
    published = "https://github.com/k3s-io/k3s/releases/download/v1.35.6%2Bk3s1/sha256sum-amd64.txt"
    assert f"Fix: save the file published with the release there: {published}" in result.stdout


def test_check_config_lists_every_finding_and_exits_with_64(tmp_path: Path) -> None:
    data = site(servers=2)
    data["hosts"]["workers"][1]["address"] = "10.0.0.300"
    result = busbar("check-config", str(stack(tmp_path, {"config": {"busbar:cluster": data}})))
    assert result.exit_code == 64
    assert [re.sub(r"^(\S+:)\d+", r"\1N", line).split(": ")[0] for line in result.stdout.splitlines()] == [
        "Pulumi.prod.yaml:N hosts.servers",
        "Pulumi.prod.yaml:N hosts.workers[1] (gpu-2).address",
    ]
    assert "2 errors; no changes made" in result.stderr


def test_a_warning_of_check_config_has_its_line(tmp_path: Path) -> None:
    data = site(k3s={"sha256": {"amd64": "ab" * 32}, "disable": ["traefik", "our-storage"]})
    result = busbar("check-config", str(stack(tmp_path, {"config": {"busbar:cluster": data}})))
    assert result.exit_code == 0
    assert re.search(r"^    warning: Pulumi\.prod\.yaml:\d+ k3s\.disable\[1\]: 'our", result.stdout, re.M)


@pytest.mark.parametrize(
    ("text", "finding"),
    [
        ("config: busbar: 1\n", "Pulumi.prod.yaml: is not valid YAML: line 1, column 15"),
        ("config:\n  a: 1\n  a: 2\n", "duplicate key 'a'"),
        ("config:\n  a: 1\nconfig: {}\n", "line 3, column 1: duplicate key 'config'"),
        ("- config\n", "Pulumi.prod.yaml: `config:` is missing or not an object"),
        ("config: {aws:region: x}\n", "busbar:cluster: missing"),
        ("config: {busbar:clutser: {}, busbar:cluster: {}}\n", "busbar:clutser: unknown key; did you mean"),
    ],
)
def test_a_file_that_is_not_a_stack_file_is_named(tmp_path: Path, text: str, finding: str) -> None:
    with pytest.raises(ConfigError) as caught:
        stackfile.read(stack(tmp_path, text))
    assert finding in str(caught.value)


@pytest.mark.parametrize("secret", ["hunter2", {"value": "hunter2"}])
def test_a_secret_in_plain_text_is_a_finding_that_does_not_show_it(tmp_path: Path, secret: Any) -> None:
    document = {"config": {**PLAIN_STACK["config"], "busbar:s3SecretKey": secret}}
    with pytest.raises(ConfigError) as caught:
        stackfile.read(stack(tmp_path, document))
    assert "busbar:s3SecretKey: is stored in plain text" in str(caught.value)
    assert "hunter2" not in str(caught.value)


def test_encrypted_secrets_count_as_set(tmp_path: Path) -> None:
    document = {"config": {**PLAIN_STACK["config"], "busbar:sshPrivateKey": {"secure": "v1:abc"}}}
    assert stackfile.read(stack(tmp_path, document)).secret_keys == {"sshPrivateKey"}


def test_an_example_is_named_only_where_it_is_beside_the_missing_file(tmp_path: Path) -> None:
    with pytest.raises(stackfile.NoStackFileError) as without:
        stackfile.find("prod", tmp_path, tmp_path)
    assert "nor another stack file there. Fix: name its folder by --project" in str(without.value)
    (tmp_path / "Pulumi.dev.yaml").touch()
    with pytest.raises(stackfile.NoStackFileError, match=r"name one of these, or write it$"):
        stackfile.find("prod", tmp_path, tmp_path)
    (tmp_path / stackfile.EXAMPLE).touch()
    with pytest.raises(stackfile.NoStackFileError, match=f"{stackfile.EXAMPLE} is a commented example"):
        stackfile.find("prod", tmp_path, tmp_path)


@pytest.mark.parametrize(
    ("written", "says"),
    [
        ("port: 0022", "port: '0022' is a number with a leading zero"),
        ("port: 22:22", "port: '22:22' is not a whole number"),
        ("name: 01", "name: '01' is a number with a leading zero"),
    ],
)
def test_a_number_that_readers_change_has_its_line(written: str, says: str, tmp_path: Path) -> None:
    data, key = site(), written.partition(":")[0]
    data["hosts"]["workers"][0][key] = "PLACE"
    text = yaml.safe_dump({"config": {"busbar:cluster": data}}).replace(f"{key}: PLACE", written)
    result = busbar("check-config", str(stack(tmp_path, text)))
    [line] = [number for number, each in enumerate(text.splitlines(), 1) if written in each]
    assert result.exit_code == 64
    [found] = [each for each in result.stdout.splitlines() if says in each]
    assert found.startswith(f"Pulumi.prod.yaml:{line} ")


def test_of_a_site_each_project_s_file_is_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("training", "other"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "Pulumi.yaml").write_text(f"name: busbar-{name}\n")
        stack(tmp_path / name, {"config": {f"busbar-{name}:{name}": {"cluster": "organization/busbar/prod"}}})
    (tmp_path / "Pulumi.yaml").write_text("name: busbar\n")
    monkeypatch.chdir(tmp_path)
    only = busbar("check-config", "prod")
    # All these files have one name, so that of a project below is shown with its folder.
    assert (only.exit_code, only.stdout.splitlines()[0]) == (0, "OK  training/Pulumi.prod.yaml"), only.output
    assert "cluster organization/busbar/prod" in only.stdout
    stack(tmp_path, {"config": {"busbar:cluster": site(servers=2)}})
    both = busbar("check-config", "prod")
    assert both.exit_code == 64
    assert "Pulumi.prod.yaml: 1 error; no changes made" in both.stderr
    assert "cluster organization/busbar/prod" in both.stdout
    for text, line in (("a: [", ": is not valid YAML"), ("config:\n  busbar-training:training: {}\n", ":2 ")):
        stack(tmp_path / "training", text)
        wrong = busbar("check-config", "prod")
        assert f"\ntraining/Pulumi.prod.yaml{line}" in wrong.stdout
        assert "; training/Pulumi.prod.yaml: 1 error" in wrong.stderr

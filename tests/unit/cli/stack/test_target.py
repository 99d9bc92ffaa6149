"""Which stack a command line names."""

from __future__ import annotations

from contextlib import chdir
from pathlib import Path

import pytest

from busbar.cli.stack import Target, find
from busbar.config.stackfile import NoStackFileError
from busbar.exits import USAGE, Misuse


def named(stack: str, project: Path | None, cwd: Path) -> Target:
    with chdir(cwd):
        return find(stack, project)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "site"
    (folder / "deep" / "below").mkdir(parents=True)
    (folder / "Pulumi.yaml").write_text("name: busbar\n")
    (folder / "Pulumi.prod.yaml").write_text("config: {}\n")
    return folder


def test_a_name_is_looked_up_in_the_nearest_project_upward(project: Path) -> None:
    assert named("prod", None, project / "deep" / "below") == Target(project, "prod")


def test_a_stack_file_or_the_project_option_wins_over_the_folder(project: Path, tmp_path: Path) -> None:
    assert named("site/Pulumi.prod.yaml", None, tmp_path) == Target(project, "prod")
    assert named("Pulumi.prod.yaml", None, project) == Target(project, "prod")
    assert named("prod", Path("site"), tmp_path) == Target(project, "prod")


def test_a_qualified_name_goes_to_the_engine_as_it_is(project: Path) -> None:
    target = named("organization/busbar/prod", None, project)
    assert target.stack == "organization/busbar/prod"
    assert target.name == "prod" and target.folder == project / ".busbar" / "prod"


@pytest.mark.parametrize("stack", ["qa", "Pulumi.qa.yaml"])
def test_a_missing_stack_file_is_named_with_those_that_exist_and_a_fix(project: Path, stack: str) -> None:
    with pytest.raises(NoStackFileError, match=r"Pulumi\.qa\.yaml.*Pulumi\.prod\.yaml.*Fix:") as caught:
        named(stack, None, project)
    assert caught.value.exit_code == USAGE


def test_a_folder_without_a_project_says_what_to_pass(tmp_path: Path) -> None:
    with pytest.raises(Misuse, match=r"no Pulumi\.yaml.*--project") as caught:
        named("prod", None, tmp_path)
    assert caught.value.exit_code == USAGE


@pytest.mark.parametrize("name", ["cluster.yaml", "Pulumi.prod.yml"])
def test_a_file_that_pulumi_does_not_read_is_refused(project: Path, name: str) -> None:
    (project / name).write_text("config: {}\n")
    with pytest.raises(Misuse, match=r"named Pulumi\.STACK\.yaml"):
        named(name, None, project)


def test_a_stack_file_of_another_folder_is_refused(project: Path) -> None:
    (project / "deep" / "Pulumi.prod.yaml").write_text("config: {}\n")
    with pytest.raises(Misuse, match=r"is not a stack file of .*/site: "):
        named("deep/Pulumi.prod.yaml", project, project)

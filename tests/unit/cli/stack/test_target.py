"""Which stack a command line names."""

from contextlib import chdir
from pathlib import Path

import pytest

from busbar.cli.stack import Target, find
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


MISSING = r"Pulumi\.qa\.yaml.*Pulumi\.prod\.yaml.*Fix:"


@pytest.mark.parametrize(
    ("stack", "given", "cwd", "says"),
    [
        ("qa", False, "site", MISSING),
        ("Pulumi.qa.yaml", False, "site", MISSING),
        ("prod", False, ".", r"no Pulumi\.yaml.*--project"),
        *(
            (name, False, "site", r"named Pulumi\.STACK\.yaml")
            for name in ("cluster.yaml", "Pulumi.prod.yml")
        ),
        ("deep/Pulumi.prod.yaml", True, "site", r"is not a stack file of .*/site: "),
    ],
)
def test_a_name_of_no_stack_is_bad_usage(project: Path, stack: str, given: bool, cwd: str, says: str) -> None:
    for name in ("cluster.yaml", "Pulumi.prod.yml", "deep/Pulumi.prod.yaml"):
        (project / name).write_text("config: {}\n")
    with pytest.raises(Misuse, match=says) as caught:
        named(stack, project if given else None, project.parent / cwd)
    assert caught.value.exit_code == USAGE

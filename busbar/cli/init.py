"""`busbar init`: makes a site, the folder from which a cluster is brought up without a checkout."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Annotated

import typer

from busbar.cli.output import fail, progress
from busbar.exits import USAGE

SITE = Path(__file__).resolve().parents[1] / "site"

_PROGRAM = '''"""The program of stacks.{name}, of the installed busbar."""

import runpy

runpy.run_module("stacks.{name}", run_name="__main__")
'''


def init(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The folder; it may exist.")],
    capability: Annotated[
        list[str] | None,
        typer.Option("--capability", metavar="NAME", help="Also DIR/NAME, a project on the cluster."),
    ] = None,
) -> None:
    """Make a site: Pulumi.yaml, a program, an example of a stack file with its schema, and a requirements.txt
    that pins this release.

    No file is overwritten. Exit code 64: a file exists or cannot be written, or there is no such capability.
    """
    from importlib.metadata import PackageNotFoundError

    from busbar.release import requirements, wheel

    try:
        files = {**_site(requirements()), **_of_capabilities(capability or ())}
    except PackageNotFoundError as error:
        fail(f"the package {error.name} is not installed. Fix: install busbar with its extra `stack`", USAGE)
    if existing := [name for name in files if (folder / name).exists()]:
        fail(f"{folder} has {', '.join(existing)}. Fix: name another folder, or move these files away", USAGE)
    for name, text in files.items():
        try:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(text)
        except OSError as error:
            fail(f"{folder / name} cannot be written: {error.strerror}. Fix: name another folder", USAGE)
        typer.echo(f"    {folder / name}")
    if file := wheel():
        _add_wheel(file, folder)
    typer.echo(
        f"Next, in {folder}: python3 -m venv .venv && .venv/bin/pip install -r requirements.txt; "
        "copy Pulumi.h100.example.yaml to Pulumi.NAME.yaml and enter your hosts; busbar check-config NAME"
    )


def _add_wheel(file: Path, folder: Path) -> None:
    """Copy the wheel beside the requirements.txt that names it, for other machines."""
    try:
        shutil.copy(file, folder)
        typer.echo(f"    {folder / file.name}")
    except OSError as error:
        progress(f"warning: {file} cannot be copied: {error.strerror}. Fix: put that wheel into {folder}")


def _site(requirements: list[str]) -> dict[str, str]:
    import json

    from busbar.config.schema import stack_schema

    copied = ("Pulumi.yaml", "__main__.py", "Pulumi.h100.example.yaml")
    return {
        **{name: (SITE / name).read_text() for name in copied},
        ".gitignore": (SITE / "gitignore").read_text(),
        "requirements.txt": "\n".join([*requirements, ""]),
        "schema/cluster.schema.json": json.dumps(stack_schema(), indent=2) + "\n",
    }


def _of_capabilities(names: list[str] | tuple[()]) -> dict[str, str]:
    """The projects of capabilities, which use the environment of the site."""
    from busbar.capability import FOLDER, capabilities

    known = [each.name for each in capabilities() if (FOLDER / each.name / "Pulumi.yaml").is_file()]
    files: dict[str, str] = {}
    for name in names:
        if name not in known:
            fail(f"--capability {name}: expected one of {', '.join(known)}", USAGE)
        source = FOLDER / name
        project = (source / "Pulumi.yaml").read_text()
        files[f"{name}/Pulumi.yaml"] = project.replace("../../.venv", "../.venv")
        files[f"{name}/__main__.py"] = _PROGRAM.format(name=name)
        for file in (source / "schema.json", *sorted(source.glob("Pulumi.*.example.yaml"))):
            files[f"{name}/{file.name}"] = file.read_text()
    return files

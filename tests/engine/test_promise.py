"""The promise of docs/sites.md, on the real engine: this release updates a cluster that 1.0.0 has made.

promise/make.py has made its state. Plugins touch no host, and the Kubernetes objects are on an API server.
What a failure names is a change that a user must find in the release notes. Where they name it, as a new
default, the configuration in the kept state gets the former value.
"""

import difflib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.engine.promise import make
from tests.engine.promise.make import Update
from tests.support.api_server import ApiServer
from tests.support.engine_site import HARMLESS, resources

JOBS = ("MPIJob", "Job")
NOTES = (
    "these files or values decide whether a service restarts. A difference needs a line in the release notes "
    "(CHANGELOG.md); then `python -m tests.engine.promise.make files` keeps it"
)


@pytest.fixture(scope="module")
def update(tmp_path_factory: pytest.TempPathFactory, server: ApiServer) -> Update:
    return make.update(tmp_path_factory.mktemp("promise"), server)


def test_an_update_succeeds_and_makes_no_job(update: Update) -> None:
    assert update.error == ""
    assert [each for each in update.steps if "create" in each.operation and each.kind in JOBS] == []


def test_an_update_removes_and_replaces_nothing_but_commands_that_only_run_again(update: Update) -> None:
    kept = {each["urn"] for each in resources(update.before) if is_held(each)}
    assert kept
    changed = [each for each in update.steps if each.operation not in HARMLESS and each.urn in kept]
    assert not changed, "\n".join(f"{each.operation} {each.kind} {each.name}" for each in changed)


def is_held(resource: Mapping[str, Any]) -> bool:
    """Whether the resource is something outside the state, which a deletion would remove.

    A Command without a `delete` is nothing. The SDK's own providers have its version in their names.
    """
    if resource["type"].endswith(":Command") and "delete" not in resource["inputs"]:
        return False
    return bool(resource["custom"]) and "::default_" not in resource["urn"]


def test_the_files_for_which_a_service_restarts_are_the_same(update: Update, tmp_path: Path) -> None:
    found = make.files_of(update.after, tmp_path)
    kept, lines = make.FILES.read_text().splitlines(), make.digests(found).splitlines()
    if kept != lines:
        changes = difflib.unified_diff(kept, lines, "kept", "found", lineterm="")
        by_line = zip(lines, found.items(), strict=True)
        texts = [f"{name}:\n{text}" for line, (name, text) in by_line if line not in kept]
        pytest.fail("\n".join([NOTES, *changes, *texts]))

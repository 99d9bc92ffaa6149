"""The measurements of a stack: the cluster has the last ones of each pool (busbar.collect.result), and
`history.jsonl` in .busbar/STACK/POOL has all that were made from this machine.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from busbar.collect.result import Results
from busbar.fabric.measure.history import Run
from busbar.kube.client import Api
from busbar.kube.wait import ProgressCallback
from busbar.outputs.contract import FORMAT
from busbar.text import counted

FILE = "history.jsonl"


def append(folder: Path, found: Mapping[str, Any], progress: ProgressCallback) -> None:
    """Add a measurement, the result of `summarize` with its record, to the file in FOLDER, that of its pool.

    A failed write only prints a message, because there is a verdict.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with open(folder / FILE, "a", encoding="utf-8", opener=_for_owner) as file:
            file.write(json.dumps(found, sort_keys=True, separators=(",", ":")) + "\n")
    except OSError as error:
        progress(f"the measurement is not in {folder / FILE}, for busbar history: {error}")


def _for_owner(path: str, flags: int) -> int:
    # Only the owner may read the file, because it has the environment of the ranks.
    return os.open(path, flags, 0o600)


def read_folder(folder: Path, note: ProgressCallback = lambda _: None) -> list[Run]:
    """The measurements in the folders of all pools of a stack, .busbar/STACK.

    NOTE gets a sentence on those that are in a former format.
    """
    runs: list[Run] = []
    for file in sorted(folder.glob(f"*/{FILE}")):
        found = [each for line in file.read_text(encoding="utf-8").splitlines() if (each := _object(line))]
        runs += filter(None, map(Run.read, found))
        _note_former(note, str(file), sum(each.get("format") != FORMAT for each in found))
    return runs


def read_cluster(api: Api, namespace: str, note: ProgressCallback = lambda _: None) -> list[Run]:
    """The measurements in the cluster. NOTE as in `read_folder`. Raises ApiError."""
    results = Results(api, namespace)
    runs = list(filter(None, map(Run.read, results.all())))
    _note_former(note, f"namespace {namespace}", results.former)
    return runs


def _note_former(note: ProgressCallback, where: str, count: int) -> None:
    if count:
        what = f"{counted(count, 'measurement')} by a busbar before 1.0"
        note(f"note: {what} in {where} cannot be read. Fix: measure again: busbar measure STACK")


def _object(line: str) -> dict[str, Any]:
    try:
        found = json.loads(line)
    except ValueError:
        return {}  # cut by a full disk
    return found if isinstance(found, dict) else {}

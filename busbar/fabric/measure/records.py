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


def read_folder(folder: Path) -> list[Run]:
    """The measurements in the folders of all pools of a stack, .busbar/STACK."""
    texts = (file.read_text(encoding="utf-8").splitlines() for file in sorted(folder.glob(f"*/{FILE}")))
    return [run for lines in texts for line in lines if (run := Run.read(_object(line)))]


def read_cluster(api: Api, namespace: str) -> list[Run]:
    """The measurements in the cluster. Raises ApiError."""
    return [run for each in Results(api, namespace).all() if (run := Run.read(each))]


def _object(line: str) -> Any:
    try:
        return json.loads(line)
    except ValueError:
        return None  # cut by a full disk

"""`busbar timeline` of a record that is there."""

from __future__ import annotations

from pathlib import Path

import pytest

from busbar.cli.stack import times
from busbar.cli.stack.errors import USAGE, StackError
from busbar.cli.stack.target import Target
from busbar.timeline import Step, Timeline


def test_a_picture_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    target = Target(tmp_path, "dev")
    Timeline("dev", "2026-11-22 04:00:00 UTC", 2.0, (Step("a", "urn:a", "created", 0.0, 1.0),), {}).write(
        target.folder
    )
    picture = tmp_path / "nowhere" / "timeline.svg"
    with pytest.raises(StackError, match=rf"^{picture} cannot be written: No such file") as refused:
        times.show(target, picture)
    assert refused.value.exit_code == USAGE

"""`down` leaves the lab of another checkout alone."""

from pathlib import Path

import pytest

from lab import down
from lab.hosts import network
from lab.steps import LabError
from lab.topology import PROJECT


def owned_by(monkeypatch: pytest.MonkeyPatch, owner: Path | None) -> None:
    monkeypatch.setattr(network, "owner", lambda: owner)


def test_the_lab_of_another_checkout_is_not_touched(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / ".lab").mkdir()
    owned_by(monkeypatch, tmp_path)
    with pytest.raises(LabError, match=f"belongs to the checkout {tmp_path}; nothing was removed"):
        down.refuse_other_checkouts_lab()


def test_a_lab_whose_checkout_was_deleted_is_removed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for owner in (None, PROJECT, tmp_path):
        owned_by(monkeypatch, owner)
        down.refuse_other_checkouts_lab()

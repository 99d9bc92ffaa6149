"""The networks of the lab on this machine, without making them."""

from pathlib import Path

import pytest

from lab.hosts import network
from lab.steps import LabError


@pytest.fixture
def udev(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(network, "_UDEV", tmp_path)
    monkeypatch.setattr(network, "_UDEV_SECONDS", 0)
    return tmp_path


def _record_of_loopback(udev: Path) -> Path:
    return udev / "data" / f"n{Path('/sys/class/net/lo/ifindex').read_text().strip()}"


def test_an_interface_is_recorded_where_no_udev_runs(udev: Path) -> None:
    network._initialize("lo")
    assert _record_of_loopback(udev).read_text() == "I:1\n"
    network._forget("lo")
    assert not udev.exists()


def test_where_udev_runs_its_record_is_waited_for_and_never_written(udev: Path) -> None:
    (udev / "control").touch()
    with pytest.raises(LabError, match="udev has not seen lo"):
        network._initialize("lo")
    record = _record_of_loopback(udev)
    record.parent.mkdir()
    record.write_text("E:ID_NET_DRIVER=x\n")
    network._initialize("lo")
    assert record.read_text() == "E:ID_NET_DRIVER=x\n"

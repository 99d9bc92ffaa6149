"""Debian's node_exporter on a made-up /sys: the series that the alerts read are those that it gives."""

import re
import shutil
import socket
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from lab.paths import LAB
from stacks.watch.lab import debian
from stacks.watch.package.render import PREFIX
from stacks.watch.tests.unit.cases import COUNTERS

SCRIPT = (LAB / "hosts" / "hardware" / "infiniband.sh").read_text(encoding="utf-8")
DEV = yaml.safe_load((Path(__file__).parents[3] / "Pulumi.dev.yaml").read_text(encoding="utf-8"))
MISSING = DEV["config"]["busbar-watch:watch"]["missing_counters"]
FILES = {
    "link_layer": "InfiniBand",
    "rate": "400 Gb/sec (4X NDR)",
    "state": "4: ACTIVE",
    "phys_state": "5: LinkUp",
}


def hca(sysfs: Path, name: str) -> Path:
    """The port of an HCA with the counters that the lab makes; returns its folder."""
    device = sysfs / "class" / "infiniband" / name
    port = device / "ports" / "1"
    port.mkdir(parents=True)
    for file, text in {"hca_type": "MT4129", "fw_ver": "28.43", "board_id": "lab"}.items():
        (device / file).write_text(f"{text}\n")
    for file, text in FILES.items():
        (port / file).write_text(f"{text}\n")
    for folder in ("counters", "hw_counters"):
        (port / folder).mkdir()
        [listed] = re.findall(rf"^{folder}='([^']+)'", SCRIPT, re.MULTILINE)
        for counter in listed.split():
            (port / folder / counter).write_text("0\n")
    return port


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    """The address of a node_exporter for a /sys with an HCA, started with the arguments of busbar-rails."""
    hca(tmp_path, "mlx5_0")
    if not shutil.which("apt-get"):
        pytest.skip("there is no apt-get to fetch Debian's package prometheus-node-exporter")
    program = debian.ensure("prometheus-node-exporter") / "usr" / "bin" / "prometheus-node-exporter"
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    words = ["--collector.disable-defaults", "--web.disable-exporter-metrics", "--collector.infiniband"]
    started = subprocess.Popen(
        [program, *words, f"--path.sysfs={tmp_path}", f"--web.listen-address={address}"],
        stderr=subprocess.DEVNULL,
    )
    try:
        yield f"http://{address}/metrics"
    finally:
        started.kill()
        started.wait()


def series(url: str) -> set[str]:
    for _ in range(300):
        try:
            with urllib.request.urlopen(url, timeout=10) as answer:
                return set(re.findall(rf"^({PREFIX}\w+)", answer.read().decode(), re.MULTILINE))
        except OSError:
            time.sleep(0.1)
    raise AssertionError(f"{url} is not responding")


def test_it_gives_every_series_that_an_alert_on_infiniband_reads_but_those_that_the_lab_s_stack_names(
    url: str,
) -> None:
    assert {PREFIX + name for name in COUNTERS} - series(url) <= set(MISSING)

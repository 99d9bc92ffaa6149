"""The programs of the lab's images without a cluster: a counter that is written reaches a real Alertmanager.

Prometheus has the rules and labels that busbar's objects give it; the operator, which makes its configuration
of them, is not here. Needs root, for chroot.
"""

import json
import os
import shutil
import socket
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
import yaml

from lab.paths import cache, tools
from stacks.watch.lab import debian, images
from stacks.watch.package import render, series
from stacks.watch.tests.support import cluster, watch
from stacks.watch.tests.unit.lab.test_node_exporter import hca

ALERT_SECONDS = 60
START_SECONDS = 60
# As on the workers of support.outputs, of which gpu-1 is here; its counters are those of node_exporter 1.5.
SITE = watch(
    dcgm=False,
    missing_counters=[
        f"node_infiniband_{name}_total"
        for name in (
            "local_ack_timeout_errors", "rnr_nak_retry_packets_received",
            "out_of_sequence_packets_received", "packet_sequence_errors",
        )
    ],
)  # fmt: skip


@dataclass
class Programs:
    """The running programs, and the folders of the HCAs and of the series of `spec`."""

    sysfs: Path
    prometheus: str
    alertmanager: str
    spec: series.SeriesSpec
    folder: Path

    def write_series(self, out: dict[str, series.Sample | None]) -> None:
        """Write them, with nodes out of service."""
        samples = series.render(self.spec, out, {"h100": 360.0}, datetime.now(UTC))
        (self.folder / series.FILE).write_text("".join(f"{each}\n" for each in samples))

    def pending(self) -> set[tuple[str, str | None]]:
        """Name and node of what Prometheus has, also of what waits for its time."""
        found = ask(f"http://{self.prometheus}/api/v1/alerts")["data"]["alerts"]
        return {(each["labels"]["alertname"], each["labels"].get("node")) for each in found}

    def count(self, query: str) -> int:
        """The number of series that a query finds."""
        found = ask(f"http://{self.prometheus}/api/v1/query?query={quote(query)}")["data"]["result"]
        return len(found)

    def alerts(self) -> set[tuple[str, str | None]]:
        """Name and node of what Alertmanager has."""
        found = ask(f"http://{self.alertmanager}/api/v2/alerts")
        return {(each["labels"]["alertname"], each["labels"].get("node")) for each in found}


def ask(url: str) -> Any:
    with urllib.request.urlopen(url, timeout=10) as answer:
        return json.load(answer)


def free_address() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{probe.getsockname()[1]}"


def until(condition: Callable[[], Any], deadline: float) -> float:
    """Seconds until it holds; an error of a program that is not responding yet counts as not."""
    started = time.monotonic()
    while time.monotonic() - started < deadline:
        try:
            if condition():
                return time.monotonic() - started
        except OSError:
            pass
        time.sleep(0.5)
    raise AssertionError(f"timed out after {deadline:.0f} s")


def unpacked(root: Path) -> Path:
    """The files of the image, and Debian's Prometheus, which needs no cluster."""
    [image, *_] = images.MONITORING.images(cache(), tools())
    for path, file in {**image.files, **images.program_of(debian.PROMETHEUS)}.items():
        target = root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        assert isinstance(file.content, Path)
        shutil.copyfile(file.content, target)
        target.chmod(file.mode)
    (root / "tmp").mkdir()
    return root


def configuration(rails: str, metrics: str, alertmanager: str) -> dict[str, Any]:
    """That of Prometheus: the labels that the ServiceMonitors set."""
    return {
        "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
        "rule_files": ["/rules.yaml"],
        "alerting": {"alertmanagers": [{"static_configs": [{"targets": [alertmanager]}]}]},
        "scrape_configs": [
            {
                "job_name": "busbar-rails",
                "static_configs": [{"targets": [rails], "labels": {"node": "gpu-1", "instance": "gpu-1"}}],
            },
            {
                "job_name": "busbar-metrics",
                "static_configs": [{"targets": [metrics], "labels": {"instance": "busbar-metrics"}}],
            },
        ],
    }


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Programs]:
    if os.geteuid() != 0 or not shutil.which("apt-get"):
        pytest.skip("needs root for chroot, and apt-get for Debian's packages")
    root = unpacked(tmp_path_factory.mktemp("root"))
    for number in range(8):
        hca(root / "sysfs", f"mlx5_{number}")
    hca(root / "sysfs", "storage")
    (hca(root / "sysfs", "unplugged") / "state").write_text("1: DOWN\n")
    spec = series.SeriesSpec.of(cluster(), SITE)
    spec = spec.model_copy(
        update={"pools": {"h100": spec.pools["h100"].model_copy(update={"workers": ("gpu-1",)})}}
    )
    (root / "series").mkdir()
    rails, metrics, prometheus, alertmanager = (free_address() for _ in range(4))
    (root / "rules.yaml").write_text(yaml.safe_dump({"groups": render.groups(SITE)}))
    (root / "prometheus.yaml").write_text(yaml.safe_dump(configuration(rails, metrics, alertmanager)))
    (root / "alertmanager.yaml").write_text(
        yaml.safe_dump({"route": {"receiver": "none"}, "receivers": [{"name": "none"}]})
    )
    exporter = [
        "/bin/prometheus-node-exporter",
        "--collector.disable-defaults",
        "--web.disable-exporter-metrics",
    ]
    commands = [
        [*exporter, "--collector.infiniband", "--path.sysfs=/sysfs", f"--web.listen-address={rails}"],
        [
            *exporter, "--collector.textfile", "--collector.textfile.directory=/series",
            f"--web.listen-address={metrics}",
        ],
        [
            "/bin/prometheus", "--config.file=/prometheus.yaml", "--storage.tsdb.path=/tmp/prometheus",
            f"--web.listen-address={prometheus}",
        ],
        [
            "/bin/prometheus-alertmanager", "--config.file=/alertmanager.yaml",
            "--storage.path=/tmp/alertmanager", "--cluster.listen-address=",
            f"--web.listen-address={alertmanager}",
        ],
    ]  # fmt: skip
    log = (root / "log").open("wb")
    started = [
        subprocess.Popen(["chroot", root, *command], stdout=log, stderr=subprocess.STDOUT)
        for command in commands
    ]
    found = Programs(root / "sysfs", prometheus, alertmanager, spec, root / "series")
    found.write_series({})
    try:
        query = f"http://{prometheus}/api/v1/query?query=count(node_infiniband_state_id)"
        until(lambda: ask(query)["data"]["result"], START_SECONDS)
        until(lambda: ask(f"http://{alertmanager}/api/v2/alerts") is not None, START_SECONDS)
        yield found
    finally:
        for each in started:
            each.kill()
            each.wait()
        print((root / "log").read_text(errors="replace")[-4000:])


def test_a_healthy_node_has_no_alert_and_the_site_one_that_nothing_is_known_of_devices(
    programs: Programs,
) -> None:
    until(lambda: programs.count("busbar:node"), ALERT_SECONDS)
    # Long enough for two evaluations.
    time.sleep(3)
    # There is no kube-state-metrics.
    assert programs.pending() == {("BusbarNodesUnknown", None)}


def test_a_rail_that_is_down_or_trained_down_is_an_alert_until_it_is_not_although_storage_has_more_ports(
    programs: Programs,
) -> None:
    port = programs.sysfs / "class" / "infiniband" / "mlx5_3" / "ports" / "1"
    alert = ("BusbarRailDown", "gpu-1")
    for file, bad in (("state", "1: DOWN"), ("rate", "100 Gb/sec (4X EDR)")):
        good = (port / file).read_text()
        (port / file).write_text(f"{bad}\n")
        taken = until(lambda: alert in programs.pending(), ALERT_SECONDS)
        print(f"{file}: pending after {taken:.1f} s")
        (port / file).write_text(good)
        until(lambda: alert not in programs.pending(), ALERT_SECONDS)


def test_a_cable_that_is_pulled_on_a_node_out_of_service_is_no_alert(programs: Programs) -> None:
    labels = {"node": "gpu-1", "reason": "cable"}
    programs.write_series({"gpu-1": series.Sample("busbar_node_drained", labels, 1)})
    until(lambda: not programs.count("busbar:node"), ALERT_SECONDS)
    state = programs.sysfs / "class" / "infiniband" / "mlx5_3" / "ports" / "1" / "state"
    state.write_text("1: DOWN\n")
    until(lambda: programs.count('node_infiniband_state_id{device="mlx5_3"} == 1'), ALERT_SECONDS)
    time.sleep(3)
    assert programs.pending() == {("BusbarNodesUnknown", None), ("BusbarNodeQuarantined", "gpu-1")}
    programs.write_series({})
    until(lambda: ("BusbarRailDown", "gpu-1") in programs.pending(), ALERT_SECONDS)
    state.write_text("4: ACTIVE\n")
    until(lambda: ("BusbarRailDown", "gpu-1") not in programs.pending(), ALERT_SECONDS)


def test_a_counter_of_a_rail_is_in_alertmanager_within_a_minute_and_one_of_storage_is_not(
    programs: Programs,
) -> None:
    for name in ("mlx5_3", "storage"):
        port = programs.sysfs / "class" / "infiniband" / name / "ports" / "1"
        (port / "counters" / "link_downed").write_text("1\n")
    taken = until(lambda: ("BusbarRailFlapped", "gpu-1") in programs.alerts(), ALERT_SECONDS)
    print(f"in Alertmanager after {taken:.1f} s")
    assert programs.count("increase(node_infiniband_link_downed_total[10m]) > 0") == 2
    assert programs.alerts() == {("BusbarRailFlapped", "gpu-1")}
    assert programs.count('ALERTS{alertname="BusbarRailFlapped"}') == 1


def test_a_port_that_cannot_be_read_takes_all_series_of_its_node_which_are_unknown(
    programs: Programs,
) -> None:
    """It is the only node of the site."""
    (programs.sysfs / "class" / "infiniband" / "mlx5_0" / "ports" / "1" / "state").unlink()
    until(lambda: ("BusbarRailsUnknown", None) in programs.pending(), ALERT_SECONDS)
    assert not {"BusbarRailsNotRead", "BusbarRailDown"} & {name for name, _ in programs.pending()}

"""Commands of the core change a cluster, and the series have it at once. A real API server, without nodes."""

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from busbar import capability
from busbar.collect.result import Results
from busbar.judge.archive import Record
from busbar.kube import nodes
from stacks.watch.package import series
from stacks.watch.tests.support import cluster, outputs, watch
from tests.support.api_server import ApiServer, api_server
from tests.support.verdicts import failing

MAP = "/api/v1/namespaces/busbar-watch/configmaps/busbar-metrics"


@pytest.fixture
def site(tmp_path: Path) -> Iterator[ApiServer]:
    """Two workers, and the series that an update of stacks/watch has written."""
    kinds = {"gpu-1": "Node", "gpu-2": "Node", "nccl": "Namespace", "busbar-watch": "Namespace"}
    objects: list[Mapping[str, Any]] = [
        {"apiVersion": "v1", "kind": kind, "metadata": {"name": name}} for name, kind in kinds.items()
    ]
    with api_server(tmp_path) as server:
        server.kubectl("apply", "-f", "-", objects=objects)
        series.write(server.api, series.SeriesSpec.of(cluster(), watch()), datetime.now(UTC))
        yield server


def after_change(site: ApiServer, of_cluster: dict[str, Any] | None = None) -> list[str]:
    """The lines of the series after the core has told of a change; it warns of nothing."""
    said: list[str] = []
    capability.notify(lambda: site.api, said.append, of_cluster)
    assert said == []
    return str(site.api.get(MAP)["data"][series.FILE]).splitlines()


def test_a_drain_a_measurement_and_an_update_are_in_the_series_without_a_refresh(site: ApiServer) -> None:
    nodes.take_out(site.api, "gpu-2", nodes.DRAINED, "cable", "me", datetime.now(UTC))
    of_node = {line.partition("{")[0] for line in after_change(site) if 'node="gpu-2"' in line}
    assert of_node == {"busbar_node_drained", "busbar_node_rail_info"}
    record = Record(
        job_uid="1", pool="h100", kind="measure", folder="f", nodes=("gpu-1",),
        measured_at="2026-11-25T05:00:00Z", expectation={},
    )  # fmt: skip
    Results(site.api, "nccl").write(record, failing())
    assert {
        'busbar_nccl_passed{pool="h100"} 0',
        'busbar_nccl_last_run_timestamp_seconds{pool="h100"} 1795582800',
    } <= {*after_change(site)}
    site.kubectl("delete", "node", "gpu-1")
    assert not [line for line in after_change(site, outputs()) if "rails_expected" in line]


def test_where_stacks_watch_is_not_installed_nothing_is_written_and_nothing_is_said(site: ApiServer) -> None:
    site.kubectl("-n", "busbar-watch", "delete", "configmap", "busbar-metrics")
    said: list[str] = []
    capability.notify(lambda: site.api, said.append)
    assert said == []
    assert site.api.list("/api/v1/configmaps", fieldSelector="metadata.name=busbar-metrics") == []

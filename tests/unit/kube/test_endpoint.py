"""An endpoint of the Kubernetes API that busbar did not set up is waited for, and its fault is named."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest

from busbar.kube import health
from busbar.kube.client import RestApi
from tests.support.kube_cluster import Clock
from tests.unit.kube.api_server import Server, dropped, running, self_signed, status

SPEC = health.EndpointSpec(setting="api_endpoint", fix="repair it", deadline_seconds=60)


def wait(server: Server, **cluster: str) -> list[str]:
    """What it says while it waits."""
    said: list[str] = []
    api = RestApi(server.kubeconfig_of({"token": "short-fake-token"}, **cluster))
    health.await_endpoint(api, SPEC, Clock(), said.append)
    return said


def test_it_ends_when_a_server_answers_whatever_was_answered_before() -> None:
    with running() as server:
        server.answers += [dropped, status(404), status(401), status(503), status(200, b"ok")]
        said = wait(server)
        assert {request[:2] for request in server.requests} == {("GET", "/readyz")}
    assert [f"HTTP {code}" in line for code, line in zip((404, 401, 503), said[1:], strict=True)] == [
        True
    ] * 3


def test_an_endpoint_with_another_certificate_never_is_the_cluster(tmp_path: Path) -> None:
    (tmp_path / "own").mkdir()
    ca = base64.b64encode(self_signed(tmp_path).read_bytes()).decode()
    with running() as server:
        server.secure(self_signed(tmp_path / "own"))
        with pytest.raises(health.NotReachable, match="certificate verify failed") as failed:
            wait(server, **{"certificate-authority-data": ca})
        assert server.requests == []
    assert str(failed.value).startswith("api_endpoint: timed out after 60 s: ")
    assert str(failed.value).endswith(". Fix: repair it; then retry")

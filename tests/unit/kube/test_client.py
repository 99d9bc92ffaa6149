"""The REST client against a real HTTP server on the loopback: pages, errors, streams, silence."""

import base64
import json
import threading
from pathlib import Path
from typing import Any

import pytest

from busbar.exits import Misuse
from busbar.kube import client
from busbar.kube.client import ApiError, RestApi
from tests.support.prepared_api import Server, chunks, dropped, self_signed, status


def test_a_list_is_read_page_by_page_with_the_credentials_of_the_kubeconfig(server: Server) -> None:
    first = {"items": [{"n": 1}], "metadata": {"continue": "next"}}
    server.answers = [status(200, json.dumps(first).encode()), status(200, b'{"items":[{"n":2}]}')]
    assert RestApi(server.kubeconfig).list("/api/v1/nodes") == [{"n": 1}, {"n": 2}]
    assert [path for _, path, _, _ in server.requests] == [
        "/api/v1/nodes?limit=500",
        "/api/v1/nodes?limit=500&continue=next",
    ]
    assert server.requests[0][2]["authorization"] == "Bearer short-fake-token"


def test_each_change_is_sent_as_json_of_its_kind_and_a_deletion_with_its_conditions(server: Server) -> None:
    server.answers = [status(201), status(200), status(200)]
    api = RestApi(server.kubeconfig)
    api.create("/api/v1/namespaces/n/configmaps", {"kind": "ConfigMap"})
    api.merge("/apis/x", {"spec": {}})
    api.delete("/apis/x", uid="u", resourceVersion="7")
    *changes, (method, path, _, body) = server.requests
    assert [(method, headers["Content-Type"], body) for method, _, headers, body in changes] == [
        ("POST", "application/json", b'{"kind": "ConfigMap"}'),
        ("PATCH", "application/merge-patch+json", b'{"spec": {}}'),
    ]
    assert (method, path) == ("DELETE", "/apis/x")
    assert json.loads(body)["preconditions"] == {"uid": "u", "resourceVersion": "7"}


@pytest.mark.parametrize(
    ("code", "kinds"),
    [(404, {"not_found"}), (409, {"conflict"}), (403, set()), (429, {"transient"}), (503, {"transient"})],
)
def test_a_refusal_has_the_servers_reason_and_kind(server: Server, code: int, kinds: set[str]) -> None:
    server.answers = [status(code, b'{"kind":"Status","message":"because of this"}')]
    with pytest.raises(ApiError, match=f"GET /x: HTTP {code}: because of this") as failure:
        RestApi(server.kubeconfig).get("/x")
    assert {each for each in ("transient", "not_found", "conflict") if getattr(failure.value, each)} == kinds


def test_a_get_is_sent_again_while_the_server_asks_for_it(server: Server) -> None:
    reason = b'{"kind":"Status","message":"storage is (re)initializing"}'
    busy = status(429, reason, {"Retry-After": "0"})
    server.answers = [busy, busy, status(200, b'{"items":[{"n":1}]}')]
    assert RestApi(server.kubeconfig).list("/apis/kubeflow.org/v2beta1/mpijobs") == [{"n": 1}]
    server.answers = [busy] * 50
    with pytest.raises(ApiError, match="HTTP 429: storage is"):
        RestApi(server.kubeconfig).get("/x")


@pytest.mark.parametrize(("method", "body"), [("create", [{}]), ("merge", [{}]), ("delete", [])])
def test_a_refused_change_is_sent_once(server: Server, method: str, body: list[Any]) -> None:
    server.answers = [status(429, b"{}", {"Retry-After": "0"})]
    with pytest.raises(ApiError, match="HTTP 429"):
        getattr(RestApi(server.kubeconfig), method)("/x", *body)
    assert len(server.requests) == 1


def test_a_long_wait_that_is_asked_for_is_cut_short(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[float] = []
    monkeypatch.setattr("urllib3.util.retry.time.sleep", waited.append)
    server.answers = [status(503, b"{}", {"Retry-After": "3600"})] * 50
    with pytest.raises(ApiError, match="HTTP 503"):
        RestApi(server.kubeconfig).get("/x")
    assert 0 < sum(waited) <= 30


@pytest.mark.parametrize(
    ("details", "reason", "name"),
    [
        ({"causes": [{"message": "The budget b needs 2"}]}, "No. The budget b needs 2", ""),
        ({"kind": "pods"}, "No.", ""),
        ({"kind": "pods", "name": "worker-0"}, "No.", "worker-0"),
    ],
)
def test_a_refusal_has_the_disruption_budget_and_the_name_of_the_object_where_admission_has_read_it(
    server: Server, details: dict[str, Any], reason: str, name: str
) -> None:
    body = {"kind": "Status", "message": "No.", "details": details}
    server.answers = [status(403, json.dumps(body).encode())]
    with pytest.raises(ApiError) as failure:
        RestApi(server.kubeconfig).create("/x", {})
    assert (failure.value.reason, failure.value.object_name) == (reason, name)


def unreached(kubeconfig: str) -> ApiError:
    """The error of a request to a server that cannot be reached."""
    with pytest.raises(ApiError, match="cannot be reached") as failure:
        RestApi(kubeconfig).get("/x")
    assert failure.value.transient
    return failure.value


def test_a_server_that_is_not_there_or_has_an_unknown_name_has_a_fix(server: Server) -> None:
    server.http.server_close()
    server.http.shutdown()
    assert str(unreached(server.kubeconfig).fix).startswith("check that K3s or HAProxy runs")
    unknown = server.kubeconfig.replace("127.0.0.1", "api.invalid")
    assert str(unreached(unknown).fix).startswith("check the name in `server:`")


def test_an_api_that_accepts_and_is_silent_has_a_fix(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RestApi, "timeout_seconds", 0.3)
    read = threading.Event()
    server.answers = [lambda _: (read.wait(30), None)[1]]
    assert unreached(server.kubeconfig).fix == "check the network to it: VPN, firewall, load balancer"
    read.set()


def test_a_stream_that_breaks_is_told_from_one_that_ends(server: Server) -> None:
    server.answers = [chunks(b"one\n", whole=False)]
    stream = RestApi(server.kubeconfig).stream("/log")
    assert next(stream) == b"one\n"
    with pytest.raises(ApiError, match="connection lost"):
        next(stream)


def test_a_silent_stream_ends_by_itself(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    # The limit counts for the headers too.
    monkeypatch.setattr(RestApi, "silence_seconds", 1)
    read = threading.Event()
    server.answers = [chunks(b"one\n", until=read)]
    assert list(RestApi(server.kubeconfig).stream("/log")) == [b"one\n"]
    read.set()


def test_a_text_that_is_not_a_kubeconfig_is_refused_without_quoting_it() -> None:
    for text in ("", "key: [unclosed SECRET", "just text SECRET", "clusters: SECRET"):
        with pytest.raises(ValueError, match="kubeconfig") as failure:
            RestApi(text)
        assert "SECRET" not in str(failure.value)


@pytest.mark.parametrize(
    ("environment", "says"),
    [
        ({}, "Fix: set KUBECONFIG to the path"),
        ({"KUBECONFIG": "/nowhere"}, r"kubeconfig /nowhere: No such file.* Fix: "),
    ],
)
def test_a_kubeconfig_that_is_not_there_is_named_with_a_fix(environment: dict[str, str], says: str) -> None:
    with pytest.raises(Misuse, match=says):
        client.connect(environment)


def test_a_kubeconfig_is_taken_from_the_secret_variable_before_the_file(server: Server) -> None:
    environment = {client.KUBECONFIG_TEXT: server.kubeconfig, "KUBECONFIG": "/nowhere"}
    assert client.connect(environment).server.endswith(str(server.http.server_port))


def test_a_certificate_of_another_authority_is_not_trusted(server: Server, tmp_path: Path) -> None:
    server.secure(self_signed(tmp_path))
    with pytest.raises(client.UnknownAuthority, match=r"CERTIFICATE_VERIFY_FAILED") as failure:
        RestApi(server.kubeconfig).get("/x")
    assert "\n" not in str(failure.value)
    assert str(failure.value.fix).startswith("the kubeconfig is that of another cluster")


def test_a_certificate_that_has_ended_is_renewed_by_its_server(server: Server, tmp_path: Path) -> None:
    """Another kubeconfig would not help."""
    certificate = self_signed(tmp_path, days=-1)
    server.secure(certificate)
    authority = base64.b64encode(certificate.read_bytes()).decode()
    kubeconfig = server.kubeconfig_of({}, **{"certificate-authority-data": authority})
    assert str(unreached(kubeconfig).fix).startswith("systemctl restart k3s")


def test_a_request_is_sent_once_and_never_retried_behind_the_callers_back(server: Server) -> None:
    server.answers = [dropped, status(200)]
    unreached(server.kubeconfig)
    assert len(server.requests) == 1


def test_a_body_that_is_not_a_json_object_is_an_error_that_may_pass(server: Server) -> None:
    server.answers = [status(200, b"<html>"), status(200, b"[]")]
    api = RestApi(server.kubeconfig)
    for reason in ("unreadable answer", "JSON object expected, got list"):
        with pytest.raises(ApiError, match=reason) as failure:
            api.get("/x")
        assert failure.value.transient

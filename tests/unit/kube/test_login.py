"""Logins and ways of a kubeconfig against a real server: certificates, tokens, plugins, proxies, names."""

import base64
import json
import select
import socket
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest

from busbar.kube.client import ApiError, RestApi
from tests.support.prepared_api import Server, running, self_signed, status

VERSION = "client.authentication.k8s.io/v1"


class Plugin:
    """A credential plugin: it notes its calls and prints the answers in their order, the last one again."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.script = folder / "plugin"
        self.script.write_text(
            "#!/bin/sh\n"
            f"cd {folder}\n"
            'echo "$* $SITE $KUBERNETES_EXEC_INFO" >> calls\n'
            "answer=answer-$(wc -l < calls)\n"
            '[ -f "$answer" ] || answer=last\n'
            'cat "$answer"\n'
        )
        self.script.chmod(0o755)

    def answers(self, *statuses: dict[str, Any]) -> None:
        for number, each in enumerate(statuses, 1):
            text = json.dumps({"apiVersion": VERSION, "kind": "ExecCredential", "status": each})
            (self.folder / f"answer-{number}").write_text(text)
            (self.folder / "last").write_text(text)

    @property
    def calls(self) -> list[str]:
        return (self.folder / "calls").read_text().splitlines()

    @property
    def user(self) -> dict[str, Any]:
        return {"exec": {"command": str(self.script), "apiVersion": VERSION}}


@pytest.fixture
def plugin(tmp_path: Path) -> Plugin:
    return Plugin(tmp_path)


def shown(server: Server) -> list[str | None]:
    return [headers.get("authorization") for _, _, headers, _ in server.requests]


def parts(pem: Path) -> tuple[str, str]:
    """The certificate and the key of a file."""
    key, marker, certificate = pem.read_text().partition("-----BEGIN CERTIFICATE")
    return marker + certificate, key


def encoded(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def in_seconds(seconds: float) -> str:
    return (datetime.now(UTC) + timedelta(seconds=seconds)).isoformat()


def test_a_plugin_gives_the_token_once_until_it_expires(server: Server, plugin: Plugin) -> None:
    plugin.answers({"token": "one", "expirationTimestamp": in_seconds(3600)}, {"token": "two"})
    server.answers = [status(200)] * 2
    api = RestApi(server.kubeconfig_of(plugin.user))
    api.get("/x")
    api.get("/x")
    assert shown(server) == ["Bearer one"] * 2
    assert len(plugin.calls) == 1


def test_a_token_that_is_about_to_expire_is_replaced_in_time(server: Server, plugin: Plugin) -> None:
    plugin.answers({"token": "one", "expirationTimestamp": in_seconds(60)}, {"token": "two"})
    server.answers = [status(200)]
    RestApi(server.kubeconfig_of(plugin.user)).get("/x")
    assert shown(server) == ["Bearer two"]


def test_a_token_of_a_plugin_that_is_refused_is_replaced_once(server: Server, plugin: Plugin) -> None:
    plugin.answers({"token": "one"}, {"token": "two"}, {"token": "three"})
    server.answers = [status(401), status(200), status(401), status(401)]
    api = RestApi(server.kubeconfig_of(plugin.user))
    api.get("/x")
    with pytest.raises(ApiError, match="HTTP 401"):
        api.get("/x")
    assert shown(server) == ["Bearer one", "Bearer two", "Bearer two", "Bearer three"]


def test_a_token_of_the_kubeconfig_that_is_refused_is_not_tried_again(server: Server) -> None:
    server.answers = [status(401), status(200)]
    with pytest.raises(ApiError, match="HTTP 401") as refused:
        RestApi(server.kubeconfig).get("/x")
    assert len(server.requests) == 1
    assert refused.value.fix == "get a new kubeconfig, or check its login: its certificate may have ended"


def test_a_plugin_gets_its_arguments_its_variables_and_the_cluster(server: Server, plugin: Plugin) -> None:
    plugin.answers({"token": "one"})
    user = plugin.user
    user["exec"] |= {"args": ["get", "token"], "env": [{"name": "SITE", "value": "north"}]}
    user["exec"]["provideClusterInfo"] = True
    extension = [{"name": "client.authentication.k8s.io/exec", "extension": {"audience": "a"}}]
    api = RestApi(server.kubeconfig_of(user, extensions=extension))
    words, _, info = plugin.calls[0].partition(" {")
    assert words == "get token north"
    spec = json.loads("{" + info)["spec"]
    assert (spec["cluster"]["server"], spec["cluster"]["config"]) == (api.server, {"audience": "a"})


@pytest.mark.parametrize(
    ("script", "complaint"),
    [
        ("echo 'not logged in' >&2; exit 3", "exit code 3: not logged in$"),
        ("echo SECRET", "got no ExecCredential of client.authentication.k8s.io/v1"),
        (f"""echo '{{"apiVersion": "{VERSION}", "status": {{}}}}'""", "with a token or a certificate"),
        ("""echo '{"apiVersion": "other/v1", "status": {"token": "SECRET"}}'""", "got no ExecCredential"),
    ],
)
def test_a_plugin_without_credentials_is_named(
    server: Server, plugin: Plugin, script: str, complaint: str
) -> None:
    plugin.script.write_text(f"#!/bin/sh\n{script}\n")
    with pytest.raises(ValueError, match=complaint) as failure:
        RestApi(server.kubeconfig_of(plugin.user))
    assert str(plugin.script) in str(failure.value)
    assert "SECRET" not in str(failure.value)


def test_a_plugin_that_is_not_installed_is_named_with_the_kubeconfigs_hint(server: Server) -> None:
    user = {"exec": {"command": "/nowhere/aws", "apiVersion": VERSION, "installHint": "Install aws."}}
    with pytest.raises(ValueError, match=r"exec plugin /nowhere/aws: .*Install aws\."):
        RestApi(server.kubeconfig_of(user))


def test_a_plugin_that_fails_later_is_a_passing_fault(server: Server, plugin: Plugin) -> None:
    plugin.answers({"token": "one", "expirationTimestamp": in_seconds(60)})
    api = RestApi(server.kubeconfig_of(plugin.user))
    plugin.script.write_text("#!/bin/sh\nexit 1\n")
    with pytest.raises(ApiError, match=r"exec plugin .*: exit code 1") as failure:
        api.get("/x")
    assert failure.value.transient


def test_a_token_file_is_read_for_each_request(server: Server, tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("one\n")
    server.answers = [status(200)] * 2
    api = RestApi(server.kubeconfig_of({"tokenFile": str(file)}))
    api.get("/x")
    file.write_text("two")
    api.get("/x")
    assert shown(server) == ["Bearer one", "Bearer two"]


@pytest.mark.parametrize("place", ["inline", "files", "plugin"])
def test_a_client_certificate_and_an_authority_are_read_inline_from_files_and_from_a_plugin(
    server: Server, plugin: Plugin, tmp_path: Path, place: str
) -> None:
    serving, client = self_signed(tmp_path), self_signed(tmp_path, "admin")
    server.secure(serving, clients=client)
    server.answers = [status(200)]
    certificate, key = parts(client)
    plugin.answers({"clientCertificateData": certificate, "clientKeyData": key})
    users: dict[str, Any] = {
        "inline": {"client-certificate-data": encoded(certificate), "client-key-data": encoded(key)},
        "files": {"client-certificate": str(client), "client-key": str(client)},
        "plugin": plugin.user,
    }
    authority = {"certificate-authority": str(serving)}
    if place == "inline":
        authority = {"certificate-authority-data": encoded(parts(serving)[0])}
    assert RestApi(server.kubeconfig_of(users[place], **authority)).get("/x") == {}


def test_no_certificate_is_checked_where_the_kubeconfig_says_so(
    server: Server, tmp_path: Path, recwarn: pytest.WarningsRecorder
) -> None:
    server.secure(self_signed(tmp_path, "elsewhere"))
    server.answers = [status(200)]
    assert RestApi(server.kubeconfig_of({}, **{"insecure-skip-tls-verify": True})).get("/x") == {}
    assert not recwarn.list, "the user knows it"


@pytest.mark.parametrize(
    ("user", "cluster", "complaint"),
    [
        ({"auth-provider": {}}, {}, "user 'u' .* auth-provider: not supported. Fix: use a client"),
        ({"tokenFile": "/nowhere"}, {}, "/nowhere of the kubeconfig cannot be read"),
        ({"client-certificate": "/nowhere"}, {}, "/nowhere of the kubeconfig cannot be read"),
        ({"client-key-data": "A"}, {}, "client-key-data of the kubeconfig is not base64"),
        ({}, {"certificate-authority-data": encoded("no PEM")}, "the certificates of the kubeconfig cannot"),
        ({}, {"proxy-url": "socks5://127.0.0.1:1"}, "proxy-url of the kubeconfig cannot be used"),
        ({"exec": {"command": "x"}}, {}, "exec of the kubeconfig needs command and apiVersion"),
    ],
)
def test_what_is_unusable_is_told(
    server: Server, user: dict[str, Any], cluster: dict[str, str], complaint: str
) -> None:
    with pytest.raises(ValueError, match=complaint):
        RestApi(server.kubeconfig_of(user, **cluster))


def tunnel(request: BaseHTTPRequestHandler) -> None:
    """Connect the client with the host that it names, until one of them has no more to say."""
    host, _, port = request.path.partition(":")
    with socket.create_connection((host, int(port)), 10) as target:
        request.send_response(200)
        request.end_headers()
        ends = {request.connection: target, target: request.connection}
        while ready := select.select(list(ends), [], [], 10)[0]:
            for each in ready:
                if not (data := each.recv(65536)):
                    return
                ends[each].sendall(data)


def test_a_proxy_is_used_and_the_name_behind_it_is_checked(server: Server, tmp_path: Path) -> None:
    serving = self_signed(tmp_path, "api.example")
    server.secure(serving)
    cluster = {"certificate-authority": str(serving)}
    with running() as proxy:
        cluster["proxy-url"] = f"http://127.0.0.1:{proxy.http.server_port}"
        proxy.answers, server.answers = [tunnel] * 2, [status(200)]
        with pytest.raises(ApiError, match="IP address mismatch"):
            RestApi(server.kubeconfig_of({}, **cluster)).get("/x")
        named = {**cluster, "tls-server-name": "api.example"}
        assert RestApi(server.kubeconfig_of({}, **named)).get("/x") == {}
        assert [method for method, *_ in proxy.requests] == ["CONNECT"] * 2


def test_a_proxy_of_the_environment_is_not_used(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
        monkeypatch.delenv("no_proxy", raising=False)
        monkeypatch.delenv("NO_PROXY", raising=False)
    server.answers = [status(200)]
    assert RestApi(server.kubeconfig).get("/x") == {}

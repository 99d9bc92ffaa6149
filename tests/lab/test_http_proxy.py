"""A worker whose only way out of the cluster is an HTTP proxy, which the stack file names."""

import http.client
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

import pytest

from lab.topology import GATEWAY, MIRROR_URL
from tests.support.lab import Change, Lab, eventually

pytestmark = pytest.mark.drill

WORKER, ADDRESS = "worker-2", "10.77.0.22"
DROP_IN = "/etc/systemd/system/k3s-agent.service.d/20-busbar-proxy.conf"


class Proxy(ThreadingHTTPServer):
    """A forward proxy for plain HTTP, as the mirror speaks; `seen`: client and URL of each request."""

    def __init__(self) -> None:
        super().__init__((GATEWAY, 0), _Handler)
        self.seen: list[tuple[str, str]] = []

    @property
    def url(self) -> str:
        return f"http://{GATEWAY}:{self.server_port}"


class _Handler(BaseHTTPRequestHandler):
    server: Proxy

    def _forward(self) -> None:
        self.server.seen.append((self.client_address[0], self.path))
        target = urlsplit(self.path)
        upstream = http.client.HTTPConnection(target.netloc, timeout=60)
        headers = {name: value for name, value in self.headers.items() if not name.startswith("Proxy-")}
        upstream.request(self.command, target.path, headers=headers)
        answer = upstream.getresponse()
        self.send_response(answer.status)
        for name, value in answer.getheaders():
            self.send_header(name, value)
        self.end_headers()
        while part := answer.read(1 << 20):
            self.wfile.write(part)
        upstream.close()

    do_GET = do_HEAD = _forward

    def log_message(self, *_: Any) -> None:
        """`seen` has them."""


@pytest.fixture
def proxy() -> Iterator[Proxy]:
    with Proxy() as running:
        threading.Thread(target=running.serve_forever, daemon=True).start()
        yield running
        running.shutdown()


@pytest.fixture
def walled(lab: Lab, changed: Change, proxy: Proxy) -> Iterator[None]:
    """The worker has left, and opens connections to the hosts of the cluster and to the proxy only."""

    def without(cluster: dict[str, Any]) -> None:
        del cluster["hosts"]["workers"][1]

    changed(without)
    outside = f"-p tcp --syn -d {GATEWAY} ! --dport {proxy.server_port} -j REJECT"
    away = "-p tcp --syn ! -d 10.77.0.0/24 ! -o lo -m comment --comment drill -j REJECT"
    lab.ssh(WORKER, f"iptables -w -I OUTPUT {outside} && iptables -w -I OUTPUT {away}")
    yield
    lab.ssh(WORKER, f"iptables -w -D OUTPUT {outside}; iptables -w -D OUTPUT {away}")


@pytest.mark.usefixtures("walled")
def test_a_worker_behind_a_proxy_downloads_joins_and_is_reached(
    lab: Lab, changed: Change, proxy: Proxy
) -> None:
    closed = f"curl -s --max-time 5 {MIRROR_URL}/ || echo closed"
    assert lab.ssh(WORKER, closed).strip() == "closed"

    def with_proxy(cluster: dict[str, Any]) -> None:
        cluster["http_proxy"] = {"url": proxy.url}

    def with_another(cluster: dict[str, Any]) -> None:
        cluster["http_proxy"] = {"url": f"http://{GATEWAY}:1"}

    text = changed(with_another, fails=True)
    assert f"{WORKER}: does not reach the proxy http://{GATEWAY}:1" in text

    changed(with_proxy)
    fetched = {url for client, url in proxy.seen if client == ADDRESS}
    assert f"{MIRROR_URL}/images/nccl.tar.zst" in fetched and any(url.endswith("/k3s") for url in fetched)
    assert not [url for _, url in proxy.seen if not url.startswith(MIRROR_URL)], "the cluster asks itself"
    running = "/proc/$(systemctl show -p MainPID --value k3s-agent)/environ"
    assert f"HTTPS_PROXY={proxy.url}" in lab.ssh(WORKER, f"tr '\\0' '\\n' < {running}").splitlines()
    eventually(lambda: lab.conditions(WORKER)["Ready"] == "True", 60, f"{WORKER} is Ready")
    [pod] = lab.kubectl(
        f"get pods -n gpu-operator --field-selector spec.nodeName={WORKER},status.phase=Running -o name"
    ).split()[:1]
    # From the API server to the kubelet.
    lab.kubectl(f"logs -n gpu-operator --tail 1 {pod}")

    changed(lambda _: None)
    assert lab.ssh(WORKER, f"test -e {DROP_IN} || echo gone").strip() == "gone"

"""A proxy of the site, as /etc/environment names it for logins: for downloads, not within the cluster."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from tests.unit.hosts.bash import output, run


@pytest.fixture
def proxy() -> Iterator[socket.socket]:
    """A port that is asked, or not; it returned no data."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(0)
        yield listener


def asked(proxy: socket.socket, script: str, call: str) -> bool:
    """Whether the call has connected to the proxy."""
    url = f"http://127.0.0.1:{proxy.getsockname()[1]}"
    # The proxy never answers; a port of loopback refuses at once.
    short = 'curl() { command curl "$@" --max-time 1; }; '
    run(script, f"{short}{call} || true", http_proxy=url, https_proxy=url, no_proxy="", NO_PROXY="")
    try:
        proxy.accept()[0].close()
    except BlockingIOError:
        return False
    return True


@pytest.mark.parametrize(
    ("script", "call"),
    [
        ("haproxy", "CONFIG=/dev/null CA_FILE=/dev/null API_PORT=1; healthy 127.0.0.1"),
        ("haproxy", "backends"),
        ("k3s-server", "peer_ping 127.0.0.1"),
        ("k3s-server", "desired_value() { echo 127.0.0.1; }; missing_names"),
        ("k3s-server", "put_token a b"),
    ],
)
def test_hosts_of_the_cluster_are_asked_without_the_proxy(
    proxy: socket.socket, script: str, call: str
) -> None:
    assert not asked(proxy, script, call)


def test_downloads_use_the_proxy(proxy: socket.socket) -> None:
    assert asked(proxy, "k3s-agent", "content_length https://192.0.2.1/k3s")


def test_kubectl_asks_another_server_without_the_proxy() -> None:
    call = "timeout() { shift; env; }; API_SERVER=https://10.0.0.2:6443; api 5 get nodes"
    found = output("k3s-server", call, HTTPS_PROXY="http://10.0.0.9:3128", NO_PROXY="localhost").splitlines()
    assert "NO_PROXY=*" in found

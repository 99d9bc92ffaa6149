"""A proxy of the site, as /etc/environment names it for logins: for downloads, not within the cluster."""

from __future__ import annotations

import socket

import pytest

from tests.unit.hosts.bash import output, run


@pytest.mark.parametrize(
    ("script", "call", "through_proxy"),
    [
        ("haproxy", "CONFIG=/dev/null CA_FILE=/dev/null API_PORT=1; healthy 127.0.0.1", False),
        ("haproxy", "backends", False),
        ("k3s-server", "peer_ping 127.0.0.1", False),
        ("k3s-server", "desired_value() { echo 127.0.0.1; }; missing_names", False),
        ("k3s-server", "put_token a b", False),
        ("k3s-agent", "content_length https://192.0.2.1/k3s", True),
    ],
)
def test_downloads_use_the_proxy_and_hosts_of_the_cluster_are_asked_without_it(
    script: str, call: str, through_proxy: bool
) -> None:
    # The proxy never answers; a port of loopback refuses at once.
    short = 'curl() { command curl "$@" --max-time 0.3; }; '
    with socket.create_server(("127.0.0.1", 0)) as proxy:
        url = f"http://127.0.0.1:{proxy.getsockname()[1]}"
        run(script, f"{short}{call} || true", http_proxy=url, https_proxy=url, no_proxy="", NO_PROXY="")
        proxy.settimeout(0)
        try:
            proxy.accept()[0].close()
            asked = True
        except BlockingIOError:
            asked = False
    assert asked is through_proxy


def test_kubectl_asks_another_server_without_the_proxy() -> None:
    call = "timeout() { shift; env; }; API_SERVER=https://10.0.0.2:6443; api 5 get nodes"
    found = output("k3s-server", call, HTTPS_PROXY="http://10.0.0.9:3128", NO_PROXY="localhost").splitlines()
    assert "NO_PROXY=*" in found

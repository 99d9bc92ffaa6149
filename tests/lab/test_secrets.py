"""The secrets of a running cluster are where they are needed and nowhere else, by their real values."""

import base64
import json
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from lab.paths import LOGS, SSH_KEY
from lab.topology import find
from tests.support.lab import COMMAND_SECONDS, PROJECT, SERVERS, Lab

HOSTS = ("lb-1", "server-1", "server-2", "server-3", "worker-1", "worker-2")
K3S_CONFIG = "/etc/rancher/k3s/config.yaml"
K3S_SERVER = "/var/lib/rancher/k3s/server"
# What an unprivileged process of a host can read: files, and the arguments of every process.
READABLE = "/etc /home /opt /root /run /srv /tmp /var /proc/[0-9]*/cmdline"


@pytest.fixture(scope="module")
def secrets(lab: Lab) -> dict[str, str]:
    """Name -> value, as the hosts and the stack really have them; of keys the second line of their text."""
    written = yaml.safe_load(lab.ssh("server-1", f"cat {K3S_CONFIG}"))
    kubeconfig = yaml.safe_load(
        lab.pulumi("stack", "output", "kubeconfig", "--show-secrets", "--stack", "dev").stdout
    )
    encoded = kubeconfig["users"][0]["user"]["client-key-data"]
    encryption = json.loads(lab.ssh("server-1", f"cat {K3S_SERVER}/cred/encryption-config.json"))
    [key] = encryption["resources"][0]["providers"][0]["aescbc"]["keys"]
    found = {
        "the token of the servers": written["token"],
        "the token of the agents": written["agent-token"],
        "the SSH key": SSH_KEY.read_text(encoding="utf-8").splitlines()[1],
        "the key of the kubeconfig": base64.b64decode(encoded).decode().splitlines()[1],
        "the key of the kubeconfig, encoded": encoded,
        "the key of Secrets in etcd": key["secret"],
        "the key of the CA": lab.ssh("server-1", f"cat {K3S_SERVER}/tls/server-ca.key").splitlines()[1],
    }
    assert all(len(value) >= 32 for value in found.values())
    return found


def _shown(text: str, secrets: dict[str, str]) -> list[str]:
    return [name for name, value in secrets.items() if value in text]


def _asked(host: str, command: str, stdin: str) -> str:
    """What the command prints on the host. Secrets go by stdin: an argument would be found."""
    done = subprocess.run(
        [sys.executable, "-m", "lab", "ssh", host, command],
        cwd=PROJECT, input=stdin, text=True, capture_output=True, timeout=COMMAND_SECONDS, check=True,
    )  # fmt: skip
    return done.stdout


def _readable_by_anyone(host: str, secrets: dict[str, str]) -> list[str]:
    """Paths on the host with one of the secrets, as the user nobody finds them."""
    search = (
        "setpriv --reuid=65534 --regid=65534 --clear-groups "
        f"grep -rlFs --devices=skip -f - {READABLE}; test $? -le 2"
    )
    return _asked(host, search, "\n".join(secrets.values())).split()


@pytest.mark.parametrize("host", HOSTS)
def test_no_file_and_no_process_of_a_host_shows_a_secret_to_other_users(
    lab: Lab, secrets: dict[str, str], host: str
) -> None:
    planted = "/var/tmp/busbar-planted-secret"
    lab.ssh(host, f"install -m 644 /dev/null {planted} && hostname > {planted}")
    try:
        name = lab.ssh(host, "hostname").strip()
        assert planted in _readable_by_anyone(host, {"a word that is there": name}), "the search finds"
        assert _readable_by_anyone(host, secrets) == []
    finally:
        lab.ssh(host, f"rm -f {planted}")


@pytest.mark.parametrize("host", HOSTS)
def test_no_secret_is_in_the_journal_of_a_host(lab: Lab, secrets: dict[str, str], host: str) -> None:
    journal = lab.ssh(host, "journalctl -q --no-pager -o cat")
    assert len(journal.splitlines()) > 20
    assert _shown(journal, secrets) == []


def test_no_secret_is_in_what_the_update_printed(lab: Lab, secrets: dict[str, str]) -> None:
    assert _shown(lab.printed, secrets) == []


def test_of_the_state_the_report_and_the_logs_only_the_kubeconfig_holds_a_secret(
    lab: Lab, secrets: dict[str, str]
) -> None:
    backend = Path(lab.environment["PULUMI_BACKEND_URL"].removeprefix("file://"))
    folders = (backend, PROJECT / ".busbar", LOGS)
    files = [path for folder in folders for path in folder.rglob("*") if path.is_file()]
    assert {"dev.json", "report.html", "verdict.json"} <= {path.name for path in files}, files
    shown = {
        path: name for path in files for name, value in secrets.items() if value.encode() in path.read_bytes()
    }
    kubeconfig = PROJECT / ".busbar" / "dev" / "kubeconfig"
    assert shown == {kubeconfig: "the key of the kubeconfig, encoded"}
    assert kubeconfig.stat().st_mode & 0o077 == 0


def test_no_secret_is_in_an_object_of_the_cluster_that_is_not_a_secret(
    lab: Lab, secrets: dict[str, str]
) -> None:
    objects = lab.kubectl("get nodes,pods,configmaps,events,jobs -A -o yaml")
    assert "worker-1" in objects
    assert _shown(objects, secrets) == []


def test_an_agents_token_does_not_get_what_a_server_joins_with(secrets: dict[str, str]) -> None:
    """K3s hands the keys of the cluster to whoever has the servers' token."""

    def answer(user: str, token: str) -> str:
        address = "https://10.77.0.11:6443/v1-k3s/server-bootstrap"
        request = f"curl -sk -K - -o /dev/null -w '%{{http_code}}' {address}"
        return _asked("worker-1", request, f'user = "{user}:{secrets[token]}"\n').strip()

    assert answer("server", "the token of the servers") == "200", "the request is right"
    assert answer("node", "the token of the agents") in {"401", "403"}
    assert answer("server", "the token of the agents") in {"401", "403"}


ETCD_TLS = f"{K3S_SERVER}/tls/etcd"
MEMBERS = "v3/cluster/member/list"


def _codes(lab: Lab, host: str, urls: list[str], options: str = "-k") -> dict[str, str]:
    """URL -> the status with which it answers a request from the host, "000" if it does not."""
    row = "%{url_effective} %{http_code}\\n"
    ask = f"curl -s {options} -o /dev/null -w '{row}' --max-time 5"
    answers = lab.ssh(host, f"for url in {' '.join(urls)}; do {ask} $url || true; done")
    return dict(line.split() for line in answers.splitlines())


def test_etcd_answers_to_nobody_without_a_certificate(lab: Lab) -> None:
    body = "-X POST -d '{}'"
    login = (
        f"{body} --cacert {ETCD_TLS}/server-ca.crt --cert {ETCD_TLS}/client.crt --key {ETCD_TLS}/client.key"
    )
    own = f"https://127.0.0.1:2382/{MEMBERS}"
    assert _codes(lab, "server-1", [own], login) == {own: "200"}, "the request is right"
    # The ports for clients, for members, and for metrics, which is on loopback only.
    paths = [f"{port}/{path}" for port in (2379, 2380, 2381, 2382) for path in (MEMBERS, "metrics", "health")]
    urls = [f"{scheme}://{find('server-1').address}:{path}" for scheme in ("http", "https") for path in paths]
    for host in ("worker-1", "server-2"):
        # To a request without TLS it may say that TLS is expected.
        assert set(_codes(lab, host, urls, f"-k {body}").values()) <= {"000", "400"}, host


def test_servers_and_kubelets_ask_strangers_for_credentials(lab: Lab) -> None:
    """Apart from whether a server is ready, and what joins need before they have a token: its CA."""
    public = {"livez", "readyz", "cacerts", "ping"}
    paths = {"api", "metrics", "healthz", "version", "v1-k3s/config", "v1-k3s/server-bootstrap", *public}
    of_servers = [f"https://{find(host).address}:6443/{path}" for host in SERVERS for path in sorted(paths)]
    of_kubelets = [
        f"https://{find(host).address}:10250/{path}"
        for host in HOSTS[1:]
        for path in ("pods", "metrics", "healthz")
    ]
    answers = _codes(lab, "lb-1", [*of_servers, *of_kubelets])
    expected = {url: "200" if url.rpartition("/")[2] in public else "401" for url in answers}
    assert (len(answers), answers) == (len(of_servers) + len(of_kubelets), expected)

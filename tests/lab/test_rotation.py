"""Certificates and tokens are rotated under load, and a killed rotation is finished.

What changed is seen from outside: certificates on open ports, which token a server accepts.
"""

import hashlib
import json
import os
import signal
import ssl
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from lab.topology import find
from tests.support.api_load import ApiLoad
from tests.support.lab import KUBECONFIG, PROJECT, SERVERS, UP_SECONDS, WORKERS, Lab, eventually

pytestmark = [pytest.mark.drill(needs="a real K3s"), pytest.mark.usefixtures("real_k3s")]

API_PORT, KUBELET_PORT = 6443, 10250
CONFIG, TLS = "/etc/rancher/k3s/config.yaml", "/var/lib/rancher/k3s/server/tls"
SECRET = "drill-rotation"


class Rotation:
    """Updates with raised numbers of `k3s.rotate`, each with those of before."""

    def __init__(self, lab: Lab) -> None:
        self._lab = lab
        self._numbers: dict[str, int] = {}

    def stack(self, **raised: int) -> str:
        """The path of the changed stack file."""
        self._numbers |= raised

        def change(cluster: dict[str, Any]) -> None:
            cluster["validation"]["enabled"] = False
            cluster["k3s"]["rotate"] = dict(self._numbers)
            cluster["pools"]["lab"]["max_unavailable"] = 1

        return str(self._lab.config_with(change))

    def number(self, name: str) -> int:
        """How often this was rotated so far."""
        return self._numbers.get(name, 0)

    def up(self, *arguments: str, **raised: int) -> None:
        done = self._lab.up("--config-file", self.stack(**raised), *arguments)
        assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture(scope="module")
def rotation(lab: Lab) -> Iterator[Rotation]:
    """With a Secret in the cluster. Numbers cannot be lowered: in the end the cluster is made anew."""
    lab.kubectl(f"delete secret {SECRET} --ignore-not-found")
    lab.kubectl(f"create secret generic {SECRET} --from-literal=answer=42")
    yield Rotation(lab)
    lab.make_anew()


@dataclass(frozen=True)
class Facts:
    """What can be seen of keys and tokens: certificates by host and port, the authority, the tokens."""

    certificates: dict[str, str]
    authorities: set[str]
    server_token: str
    agent_token: str


def _facts(lab: Lab) -> Facts:
    ports = {**dict.fromkeys(SERVERS, (API_PORT, KUBELET_PORT)), **dict.fromkeys(WORKERS, (KUBELET_PORT,))}
    certificates = {
        f"{host}:{port}": _digest(ssl.get_server_certificate((find(host).address, port), timeout=10))
        for host, opened in ports.items()
        for port in opened
    }
    authorities = {_digest(lab.ssh(server, f"cat {TLS}/*-ca.crt {TLS}/etcd/*-ca.crt")) for server in SERVERS}
    return Facts(certificates, authorities, _token(lab, "token"), _token(lab, "agent-token"))


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _token(lab: Lab, key: str, host: str = "server-1") -> str:
    return lab.ssh(host, f"sed -n 's/^{key}: //p' {CONFIG}").strip().rpartition(":")[2]


def _accepts(lab: Lab, server: str, user: str, password: str, path: str) -> int:
    """The status with which a server answers a host that joins with this token."""
    url = f"https://{find(server).address}:{API_PORT}/v1-k3s/{path}"
    return int(
        lab.ssh("lb-1", f"curl -sk -o /dev/null -w '%{{http_code}}' -u {user}:{password} {url}").strip()
    )


def _give_token_of_server_1(lab: Lab, server: str) -> None:
    """The repair in docs/hosts.md, Rotation."""
    line = lab.ssh("server-1", f"grep '^token: ' {CONFIG}").strip()
    passwd = TLS.replace("tls", "cred/passwd")
    lab.ssh(server, f"sed -i 's|^token: .*|{line}|' {CONFIG} && rm -f {passwd} && systemctl restart k3s")


def _all_is_well(lab: Lab, rotation: Rotation) -> None:
    nodes = json.loads(lab.kubectl("get nodes -o json"))["items"]
    assert {node["metadata"]["name"] for node in nodes} == {*SERVERS, *WORKERS}
    assert all(lab.conditions(node["metadata"]["name"])["Ready"] == "True" for node in nodes)
    assert lab.voters() == set(SERVERS)
    rotation.up("--expect-no-changes")
    lab.busbar("verify", "dev")


def test_certificates_and_agent_token_are_rotated_in_one_update_without_a_lost_write(
    lab: Lab, rotation: Rotation
) -> None:
    before = _facts(lab)
    with ApiLoad(KUBECONFIG) as load:
        began = time.monotonic()
        rotation.up(certificates=1, agent_token=1)
        print(f"certificates and agent token: {time.monotonic() - began:.0f} s")
    print(load.account)
    after = _facts(lab)
    assert not load.account.lost
    assert [port for port, found in after.certificates.items() if found == before.certificates[port]] == []
    assert after.authorities == before.authorities and len(after.authorities) == 1
    for server in SERVERS:
        assert _accepts(lab, server, "node", before.agent_token, "config") == 401
        assert _accepts(lab, server, "node", after.agent_token, "config") == 200
    assert {_token(lab, "token", worker) for worker in WORKERS} == {after.agent_token}
    # A server starts again with what is in etcd now: K3s refuses a passwd that is newer there.
    for server in SERVERS:
        lab.ssh(server, "systemctl restart k3s")
    _all_is_well(lab, rotation)


def test_a_killed_rotation_of_the_server_token_costs_no_quorum_and_is_finished_after_a_repair(
    lab: Lab, rotation: Rotation
) -> None:
    before = _facts(lab)
    with ApiLoad(KUBECONFIG) as load:
        update = subprocess.Popen(
            ["pulumi", "up", "--yes", "--skip-preview", "--non-interactive", "--stack", "dev",
             "--config-file", rotation.stack(server_token=1)],
            cwd=PROJECT, env=lab.environment, start_new_session=True,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        eventually(lambda: _token(lab, "token") != before.server_token, UP_SECONDS, "server 1 is rotated")
        os.killpg(update.pid, signal.SIGKILL)
        update.wait(30)
        # A server that restarts now has the old token, and etcd the new one.
        lab.ssh("server-3", "systemctl restart --no-block k3s")
        lines = "journalctl -u k3s -o cat | grep -c 'encrypted with different token' || true"
        eventually(lambda: lab.ssh("server-3", lines).strip() != "0", 120, "server 3 is refused")
        assert lab.pulumi("cancel", "--yes", "--stack", "dev").returncode == 0
        refused = lab.up("--config-file", rotation.stack())
        said = refused.stdout + refused.stderr
        assert refused.returncode != 0 and "k3s was not restarted: etcd would lose its quorum" in said
        assert "silent: server-3-" in said
        _give_token_of_server_1(lab, "server-3")
        began = time.monotonic()
        rotation.up()
        print(f"the update after the repair: {time.monotonic() - began:.0f} s")
    print(load.account)
    after = _facts(lab)
    assert not load.account.lost
    assert after.authorities == before.authorities
    for server in SERVERS:
        assert _token(lab, "token", server) == after.server_token != before.server_token
        assert _accepts(lab, server, "server", before.server_token, "server-bootstrap") == 401
        assert _accepts(lab, server, "server", after.server_token, "server-bootstrap") == 200
    assert lab.kubectl(f"get secret {SECRET} -o jsonpath={{.data.answer}}") == "NDI="
    _all_is_well(lab, rotation)


def test_only_a_snapshot_from_after_a_rotation_of_the_server_token_is_restored(
    lab: Lab, rotation: Rotation
) -> None:
    before = lab.save_snapshot("server-1")
    rotation.up(
        server_token=rotation.number("server_token") + 1, agent_token=rotation.number("agent_token") + 1
    )
    after = lab.save_snapshot("server-1")
    lab.kubectl(f"delete secret {SECRET}")

    refused = lab.restore("--snapshot", before, "--yes")
    assert refused.returncode == 1
    assert "was made with another token than this cluster's" in refused.stderr
    assert lab.kubectl(f"get secret {SECRET} --ignore-not-found") == "", "nothing was restored"
    assert lab.voters() == set(SERVERS)

    done = lab.restore("--snapshot", after, "--yes")
    assert done.returncode == 0, done.stdout + done.stderr
    assert lab.kubectl(f"get secret {SECRET} -o jsonpath={{.data.answer}}") == "NDI="
    _all_is_well(lab, rotation)

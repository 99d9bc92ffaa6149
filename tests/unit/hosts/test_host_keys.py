"""`busbar hosts keys`: what hosts offer beside what is pinned, from real SSH servers on loopback."""

import asyncio
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import asyncssh
import pytest
import yaml

from busbar.cli.before import _problem
from busbar.config import ConfigError
from busbar.hosts import host_keys
from tests.support.cli import busbar
from tests.support.clusters import host, host_key, site, stack_file
from tests.support.ssh_hosts import CLIENT, CLOSED_PORT, HOST, at, machine, public
from tests.unit.hosts.test_ssh import Jump

OTHER = asyncssh.generate_private_key("ssh-ed25519")
NEW, CHANGED, PINNED = "gpu-1", "gpu-2", "server-1"


class Site:
    """The stack file of the smallest site on loopback, whose hosts answer with HOST.

    `keys`: pinned keys other than that, None where one is missing.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "key").write_bytes(CLIENT.export_private_key())

    def run(self, keys: Mapping[str, str | None], port: int, **ssh: Any) -> Any:
        """The command as it is shown; its JSON says the same."""
        data = site(servers=1, workers={"h100": 2}, ssh={"key_file": "key", **ssh})
        hosts = [each for role in ("load_balancers", "servers", "workers") for each in data["hosts"][role]]
        for number, each in enumerate(hosts, start=1):
            pinned = keys.get(each["name"], public(HOST))
            each.update(address=f"127.0.0.{number}", port=port, host_key=pinned)
            if pinned is None:
                del each["host_key"]
        file = stack_file(self.folder, data, "mine")
        shown, found = busbar("hosts", "keys", str(file)), busbar("hosts", "keys", str(file), "--json")
        rows = json.loads(found.stdout)["hosts"] if found.stdout else []
        assert found.exit_code == shown.exit_code
        assert {row["name"]: row["state"] for row in rows} == states(shown)
        return shown

    def ask(
        self, keys: Mapping[str, str | None], jump: asyncssh.SSHKey | None = None, pinned: str | None = None
    ) -> Any:
        """The command while all hosts answer; `jump`: behind a bastion with that key."""

        async def scenario() -> Any:
            # The wildcard address: each host has one of its own.
            server = await asyncssh.create_server(asyncssh.SSHServer, "0.0.0.0", 0, server_host_keys=[HOST])
            async with server, machine(key=jump or OTHER, kind=Jump) as port:
                bastion = {"bastion": {"address": "127.0.0.1", "port": port, "host_key": pinned}}
                ssh: dict[str, Any] = bastion if jump else {}
                return await asyncio.to_thread(self.run, keys, server.get_port(), **ssh)

        return asyncio.run(scenario())


@pytest.fixture
def hosts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    monkeypatch.setenv("COLUMNS", "300")
    return Site(tmp_path)


def states(done: Any) -> dict[str, str]:
    rows = [line.split(None, 3) for line in done.stdout.splitlines() if not line.startswith("host_key")]
    return {row[0]: row[3] for row in rows}


def test_keys_that_are_pinned_answer_and_that_is_all(hosts: Site) -> None:
    done = hosts.ask({})
    assert (done.exit_code, done.stderr) == (0, "")
    assert set(states(done).values()) == {"pinned"}
    assert HOST.get_fingerprint() in done.stdout


@pytest.mark.parametrize("missing", [None, "ssh-ed25519 AAAA...", "ssh-rsa AAAAB3NzaC1yc2E="])
def test_a_key_that_is_not_pinned_is_a_line_to_paste(hosts: Site, missing: str | None) -> None:
    done = hosts.ask({NEW: missing})
    assert done.exit_code == 0
    assert states(done)[NEW] == "not pinned" and states(done)[PINNED] == "pinned"
    [line] = [line for line in done.stdout.splitlines() if line.startswith("host_key")]
    assert yaml.safe_load(line) == {"host_key": public(HOST)}
    assert line.endswith("# hosts.workers[0] (gpu-1)")
    assert "Compare each with its host's console: ssh-keygen -lf" in done.stderr


def test_another_key_than_the_pinned_one_is_named_as_such_and_fails(hosts: Site) -> None:
    others = dict.fromkeys(("lb-1", PINNED, NEW))
    done = hosts.ask({**others, CHANGED: host_key("before")})
    assert (done.exit_code, states(done)[CHANGED]) == (1, "CHANGED")
    before = asyncssh.import_public_key(host_key("before")).get_fingerprint()
    told = "127.0.0.4 has another host key than the pinned one (possible man-in-the-middle): got "
    assert f"{told}{HOST.get_fingerprint()}, pinned {before}" in done.stderr
    pasted = [line for line in done.stdout.splitlines() if line.startswith("host_key")]
    assert len(pasted) == 3 and not any(CHANGED in line for line in pasted)


def test_a_host_that_does_not_answer_is_named_beside_those_that_do(hosts: Site) -> None:
    done = hosts.run({}, CLOSED_PORT)
    assert done.exit_code == 1
    assert "error: hosts.servers[0] (server-1): root@127.0.0.2:1 refuses the connection" in done.stderr
    assert done.stderr.splitlines()[-1].startswith("error: 4 of 4 host keys are not")


def test_behind_a_bastion_hosts_are_asked_through_it(hosts: Site) -> None:
    done = hosts.ask({NEW: None}, OTHER, public(OTHER))
    assert done.exit_code == 0, done.stderr
    assert states(done)["bastion"] == "pinned" and states(done)[NEW] == "not pinned"


@pytest.mark.parametrize(("pinned", "state"), [(None, "not pinned"), (host_key("before"), "CHANGED")])
def test_nobody_logs_in_to_a_bastion_with_another_key(hosts: Site, pinned: str | None, state: str) -> None:
    done = hosts.ask({}, OTHER, pinned)
    assert (done.exit_code, states(done)["bastion"]) == (1, state)
    assert {states(done)[name] for name in (NEW, CHANGED, PINNED)} == {"no key"}
    assert "gpu-1): not asked: it is behind the bastion. Fix: set host_key of ssh.bastion" in done.stderr


def test_keys_of_two_hosts_that_are_exchanged_are_told_from_unknown_ones() -> None:
    one, two = (
        host_keys.Offer("hosts.workers[0]", at(22, name, "worker"), host_key(name), host_key(other))
        for name, other in (("a", "b"), ("b", "a"))
    )
    assert "has the host key of b. Fix: exchange" in (_problem(one, [one, two]) or "")


@pytest.mark.parametrize(
    ("hosts", "finding"),
    [
        (None, "hosts.servers: missing"),
        ({"workers": ["gpu-1"]}, "hosts.workers[0]: "),
        ({"workers": [{"name": "gpu-1", "address": "10.0.0.300"}]}, "hosts.workers[0].address: '10.0.0.300'"),
    ],
)
def test_hosts_that_are_not_valid_are_findings(hosts: Any, finding: str) -> None:
    with pytest.raises(ConfigError) as caught:
        host_keys.listed({"ssh": {"agent": True}, "hosts": hosts})
    assert any(each.startswith(finding) for each in map(str, caught.value.findings)), caught.value.findings


def test_a_key_may_be_missing_wherever_a_host_is_listed_and_the_rest_of_the_file_be_invalid() -> None:
    bastion = host("jump", "192.0.2.98")
    del bastion["name"]
    data: dict[str, Any] = {"hosts": site()["hosts"], "ssh": {"agent": True, "bastion": bastion}}
    groups = ("load_balancers", "servers", "workers")
    data["hosts"]["nfs_server"] = host("nfs-1", "192.0.2.99")
    first = [data["hosts"][group][0] for group in groups]
    for place in (bastion, data["hosts"]["nfs_server"], *first):
        del place["host_key"]
    found = {each.path: each.pinned for each in host_keys.listed(data)[1]}
    missing = ["ssh.bastion", *(f"hosts.{group}[0]" for group in groups), "hosts.nfs_server"]
    assert [path for path, pinned in found.items() if pinned is None] == missing
    assert "hosts.workers[1]" in found

"""What hosts must have so that a lost state can be written anew, and how they differ from a step."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import re
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from busbar import config
from busbar.hosts import k3s
from busbar.hosts.host import Host
from busbar.hosts.login import Login
from busbar.hosts.remote import ScriptError
from busbar.kube import nodes
from busbar.operations import adoption
from busbar.operations.adoption import CannotAdopt, Found, Known
from tests.support.clusters import site
from tests.unit.hosts.bash import output

TOKEN, AGENT = "firsttoken", "agenttoken"
ID = k3s.install_id(TOKEN)
CA = "ab" * 32
ROTATED = {"sha256": {"amd64": "5" * 64}, "rotate": {"server_token": 1}}
RESOURCES = {
    "lb": "busbar-load-balancer@{}",
    "server": "busbar-control-plane@{}",
    "worker": "busbar-worker@{}",
}


def encoded(**files: str) -> dict[str, str]:
    return {path: base64.b64encode(text.encode()).decode() for path, text in files.items()}


def part(resource: str, **files: str) -> dict[str, Any]:
    return {
        "owner": f"busbar/prod/{resource}",
        "install_id": ID,
        "sums": ["5" * 64],
        "files": encoded(**files),
    }


def facts(host: Host, token: str = TOKEN, rotated: str = "", ca: str = CA) -> dict[str, Any]:
    written = {"token": f"K10{CA}::server:{token}", "agent-token": AGENT}
    files = {"/etc/rancher/k3s/config.yaml": yaml.safe_dump(written)} if host.role == "server" else {}
    installed = part(RESOURCES[host.role].format(host.name), **files)
    kept = {"/etc/rancher/k3s/k3s.yaml": "kubeconfig", "/var/lib/busbar/rotated": rotated}
    kept["/var/lib/rancher/k3s/server/token"] = f"K10{ca}::server:x"
    return {"node": host.name, "version": "v1", "files": encoded(**kept), "parts": [installed]}


Answers = Callable[[Host], dict[str, Any]]
Read = Callable[..., Found]


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> Read:
    """Read a site whose hosts have these facts; `changed`: sections of its file."""

    def run(answers: Answers = facts, members: int = 3, **changed: Any) -> Found:
        async def ask(host: Host, *_: Any, **__: Any) -> dict[str, Any]:
            return answers(host)

        @contextlib.asynccontextmanager
        async def opened(_: Login) -> AsyncIterator[Any]:
            yield SimpleNamespace(run=ask)

        found = [SimpleNamespace(name=f"server-{number + 1}", is_server=True) for number in range(members)]
        monkeypatch.setattr(adoption, "Hosts", SimpleNamespace(open=opened))
        monkeypatch.setattr(adoption, "connect", lambda *_: None)
        monkeypatch.setattr(nodes, "read", lambda _: found)
        cluster = config.load(site(**changed), root=Path())
        return asyncio.run(adoption.read(adoption.of_cluster(cluster, Login()), "busbar/prod"))

    return run


def test_tokens_and_install_id_are_read_from_the_hosts(read: Read) -> None:
    found = read()
    expected = {"busbar-control-plane-server-token": TOKEN, "busbar-control-plane-agent-token": AGENT}
    assert (found.install_id, dict(found.secrets.values), found.secrets.lost) == (ID, expected, [])


def test_a_token_from_before_a_rotation_is_named_and_keeps_the_install_id(read: Read) -> None:
    found = read(lambda host: facts(host, "second", "server_token 1\n"), k3s=ROTATED)
    assert found.secrets.lost == ["busbar-control-plane-server-token"]
    assert k3s.install_id(found.secrets.values["busbar-control-plane-server-token"]) == ID
    assert found.secrets.values["busbar-control-plane-server-token-1"] == "second"


def without_answer(name: str) -> Answers:
    def answer(host: Host) -> dict[str, Any]:
        if host.name == name:
            raise ScriptError("no route to host", name)
        return facts(host)

    return answer


def changed(name: str, **mark: Any) -> Answers:
    def answer(host: Host) -> dict[str, Any]:
        found = facts(host)
        if host.name == name:
            found["parts"] = [{**found["parts"][0], **mark}] if mark else []
        return found

    return answer


REFUSED: dict[str, tuple[Answers, dict[str, Any], str]] = {
    "a server that does not answer": (without_answer("server-2"), {}, "server-2: no route to host"),
    "a load balancer that does not answer": (without_answer("lb-1"), {}, "lb-1: no route to host"),
    "a worker that does not answer": (without_answer("gpu-1"), {}, "gpu-1: no route to host"),
    "a server without anything": (changed("server-2"), {}, "server-2: nothing of busbar is installed"),
    "two clusters": (changed("gpu-1", install_id="0" * 16), {}, "the hosts belong to 2 clusters"),
    "another stack": (
        changed("gpu-1", owner="busbar/other/busbar-worker@gpu-1"),
        {},
        "gpu-1 (busbar/other/busbar-worker@gpu-1)",
    ),
    "no host with anything": (lambda host: {**facts(host), "parts": []}, {}, "there is nothing to adopt"),
    "another member of etcd": (
        facts,
        {"members": 4},
        "the members of etcd are server-1, server-2, server-3, server-4",
    ),
    "tokens that differ": (
        lambda host: facts(host, host.name),
        {},
        "the servers do not have the same tokens",
    ),
    "a CA that is not known": (lambda host: facts(host, ca=""), {}, "does not name one CA"),
    "a rotation that is not done": (
        facts,
        {"k3s": ROTATED},
        "k3s.rotate.server_token is 1",
    ),
    "a token of another cluster": (
        lambda host: facts(host, "other"),
        {},
        f"is not the one of the cluster {ID}",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_not_one_whole_cluster_of_this_stack_is_refused(read: Read, case: str) -> None:
    answers, more, expected = REFUSED[case]
    with pytest.raises(CannotAdopt, match=re.escape(expected)):
        read(answers, **more)


VALUES = {"NODE_NAME": "gpu-1", "OWNER": "busbar/prod/busbar-worker@gpu-1", "SHA256_AMD64": "5" * 64}
CONFIG = f"node-name: gpu-1\ntoken: K10{CA}::node:x\n"
DIFFERENT: dict[str, tuple[dict[str, str], dict[str, str], str]] = {
    "as configured": ({}, {"config": CONFIG, "registries": ""}, ""),
    "with lines of the host": ({}, {"config": "node-name: gpu-1\n"}, ""),
    "another text": ({}, {"config": "node-name: gpu-2\n"}, "config is not as configured"),
    "another K3s": ({"SHA256_AMD64": "6" * 64}, {}, "another K3s is installed than configured"),
    "a rotation that is due": (
        {"ROTATE_CERTIFICATES": "2"},
        {},
        "k3s.rotate.certificates is 2, 1 is done there",
    ),
    "a part that is not there": ({"OWNER": "busbar/prod/other"}, {}, "it is not installed"),
    "no installation": ({"OWNER": ""}, {"machines": "a\nb\n"}, ""),
    "what is no file": ({}, {"users": "user a 1\nkey b\n", "secret": "x"}, ""),
}


@pytest.mark.parametrize("case", DIFFERENT)
def test_a_step_is_compared_with_what_is_applied(case: str) -> None:
    values, payload, expected = DIFFERENT[case]
    # The CA in a token is added on a host that joined it later.
    file = f"# Written by busbar\n{CONFIG.replace(f'K10{CA}::node:', '')}node-ip: 192.0.2.1\n"
    known = Known.of(
        {
            "version": "v1",
            "files": encoded(**{"/var/lib/busbar/rotated": "certificates 1\n"}),
            "parts": [part("busbar-worker@gpu-1", **{"/etc/rancher/k3s/config.yaml": file})],
        }
    )
    found = Found(ID, {"gpu-1": known}, adoption.Secrets({}))
    lost: Any = SimpleNamespace(not_files=frozenset({"users"}))
    assert found.difference({**VALUES, **values}, payload, lost) == expected


def test_a_host_reports_its_marks_and_the_contents_of_small_applied_files(tmp_path: Path) -> None:
    state, other = tmp_path / "busbar", tmp_path / "busbar-nfs"
    state.mkdir()
    (tmp_path / "config.yaml").write_text('token: "x"\n')
    (tmp_path / "binary").write_bytes(bytes(2_000_000))
    (state / "owner").write_text(
        f"role=server\nowner=busbar/prod/busbar-control-plane@server-1\ninstall_id={ID}\n"
    )
    sums = [f"{'1' * 64}  {tmp_path / 'config.yaml'}", f"{'2' * 64}  {tmp_path / 'binary'}"]
    (state / "applied.sha256").write_text("\n".join(sums) + "\n")
    stubs = f"begin() {{ :; }}; STATE_DIR={state} NFS_STATE_DIR={other} K3S={tmp_path / 'no'} NODE_NAME=a"
    found = json.loads(output("adopt", f"{stubs}\nmain", FILES=f"{tmp_path / 'config.yaml'} /missing"))
    contents = encoded(**{str(tmp_path / "config.yaml"): 'token: "x"\n'})
    mark = {"owner": "busbar/prod/busbar-control-plane@server-1", "install_id": ID}
    expected = {**mark, "sums": ["1" * 64, "2" * 64], "files": contents}
    assert found == {"node": "a", "version": "", "files": contents, "parts": [expected]}

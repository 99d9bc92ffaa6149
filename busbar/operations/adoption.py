"""Reads over SSH what hosts have of a stack whose state was lost, and compares it with the stack's steps."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import yaml

from busbar import names
from busbar.config import Cluster
from busbar.exits import Failed
from busbar.hosts import k3s
from busbar.hosts.host import Host
from busbar.hosts.inventory import Inventory
from busbar.hosts.login import Login
from busbar.hosts.remote import Hosts, on_each
from busbar.kube import nodes
from busbar.operations.verify import connect
from busbar.text import listed

SCRIPT = "adopt"
SECONDS = 120
CONCURRENT = 64
_SHOWN = 8
_STATE = "/var/lib/busbar"
_CONFIG = "/etc/rancher/k3s/config.yaml"
_KUBECONFIG = "/etc/rancher/k3s/k3s.yaml"
_DATA = "/var/lib/rancher/k3s/server"
_K3S_FILES = (_KUBECONFIG, f"{_DATA}/token", f"{_DATA}/tls/server-ca.crt", f"{_STATE}/rotated")
# The parts of applied files that a host's script adds or replaces: the CA that a token pins, the disk of an
# export (nfs-server.sh), and the MPI type that srun does not list (slurm/controller.sh).
_OF_THE_HOST = re.compile(r"K10[0-9a-f]{64}::\w+:|mp=[^,)]*,|^MpiDefault=.*$", re.MULTILINE)


class CannotAdopt(Failed):
    """The hosts are not those of one cluster of this stack, or do not all answer; the text has the fix."""


@dataclass(frozen=True)
class Part:
    """The traces of one installed step: its owner mark, and the applied files with their present contents."""

    owner: str
    install_id: str
    sums: frozenset[str]
    files: Mapping[str, str]


@dataclass(frozen=True)
class Known:
    """The answer of a host. `version`: of K3s. `files`: those of `Lost.files`."""

    version: str
    parts: tuple[Part, ...]
    files: Mapping[str, str]

    @classmethod
    def of(cls, facts: Mapping[str, Any]) -> Known:
        """From the facts of host/adopt.sh."""
        parts = (
            Part(each["owner"], each["install_id"], frozenset(each["sums"]), _texts(each["files"]))
            for each in facts["parts"]
        )
        return cls(str(facts["version"]), tuple(parts), _texts(facts["files"]))

    @property
    def applied(self) -> dict[str, str]:
        """The applied files of all parts."""
        return {path: text for part in self.parts for path, text in part.files.items()}

    @property
    def ca_sha256(self) -> str:
        """The hash of the cluster's CA, as K3s pins it; empty on a host that is not a server."""
        pinned = re.match(r"K10([0-9a-f]{64})::", self.files.get(f"{_DATA}/token", ""))
        return pinned[1] if pinned else ""

    def facts(self, name: str, *, with_kubeconfig: bool) -> str:
        """The facts that the steps of this host print. The kubeconfig is a secret."""
        found: dict[str, Any] = {
            "node": name,
            "version": self.version,
            "replaced": [],
            "ca_sha256": self.ca_sha256,
            "ca_pem": self.files.get(f"{_DATA}/tls/server-ca.crt", "").rstrip("\n"),
        }
        if with_kubeconfig:
            found["kubeconfig"] = self.files.get(_KUBECONFIG, "")
        return json.dumps(found)


@dataclass(frozen=True)
class Secrets:
    """The values of generated secrets by the names of their resources. `lost`: those that no host has."""

    values: Mapping[str, str]
    lost: Sequence[str] = ()


@dataclass(frozen=True, kw_only=True)
class Lost:
    """A stack whose state was lost.

    `installed`: names of the hosts that must have something of busbar. `files`: read beside the applied ones.
    `not_files`: parts of a payload that a host does not keep as a file. `secrets` reads what the hosts have;
    raises CannotAdopt.
    """

    hosts: Sequence[Host]
    login: Login
    installed: frozenset[str]
    secrets: Callable[[Mapping[str, Known], str], Secrets]
    files: tuple[str, ...] = _K3S_FILES
    not_files: frozenset[str] = frozenset()
    uses_kubernetes: bool = True


@dataclass(frozen=True)
class Found:
    """The answers of the hosts, by their names."""

    install_id: str
    hosts: Mapping[str, Known]
    secrets: Secrets

    def difference(self, values: Mapping[str, str], payload: Mapping[str, str], lost: Lost) -> str:
        """How a host differs from its step with these values and payload; empty where it does not.

        Only a step that installs something has an owner mark, and is compared.
        """
        name, owner = values.get("NODE_NAME", ""), values.get("OWNER")
        if not owner:
            return ""
        known = self.hosts[name]
        part = next((each for each in known.parts if each.owner == owner), None)
        if part is None:
            return "it is not installed"
        return "; ".join(_differences(known, part, values, payload, lost))


def of_cluster(cluster: Cluster, login: Login) -> Lost:
    """The stack of a K3s cluster."""
    inventory = Inventory.of(cluster)

    def secrets(found: Mapping[str, Known], install_id: str) -> Secrets:
        _refuse_other_members(inventory, found[inventory.servers[0].name].files.get(_KUBECONFIG, ""))
        return _join_tokens(cluster, {each.name: found[each.name] for each in inventory.servers}, install_id)

    installed = frozenset(host.name for host in inventory.hosts if host.role != "worker")
    return Lost(hosts=inventory.hosts, login=login, installed=installed, secrets=secrets)


async def read(lost: Lost, owner: str) -> Found:
    """Read the hosts; `owner`: PROJECT/STACK, with which their marks begin.

    Raises CannotAdopt, ValueError (unusable SSH key), ScriptError (bastion).
    """
    files = {"FILES": " ".join(lost.files)}
    async with Hosts.open(lost.login) as hosts:

        async def ask(host: Host) -> Known:
            return Known.of(await hosts.run(host, SCRIPT, files, seconds=SECONDS))

        answers = await on_each(lost.hosts, ask, at_once=CONCURRENT)
    if silent := [answer for answer in answers if isinstance(answer, str)]:
        fix = "repair them; a worker may be taken out of the stack file until the stack is adopted"
        raise CannotAdopt("\n".join([*silent, f"Every host must answer; no changes made. Fix: {fix}"]))
    known = {
        host.name: answer
        for host, answer in zip(lost.hosts, answers, strict=True)
        if isinstance(answer, Known)
    }
    install_id = _one_cluster(known, owner)
    if bare := sorted(name for name in lost.installed if not known[name].parts):
        what = f"{listed(bare, _SHOWN)}: nothing of busbar is installed, and only workers may be new"
        raise CannotAdopt(f"{what}. Fix: take them out of the stack file until the stack is adopted")
    return Found(install_id, known, lost.secrets(known, install_id))


def _one_cluster(found: Mapping[str, Known], owner: str) -> str:
    """The install id. Raises CannotAdopt unless all marks have the same one, and are of this stack."""
    marks = [(name, part) for name, known in found.items() for part in known.parts]
    if not marks:
        raise CannotAdopt("no host has anything of busbar: there is nothing to adopt. Fix: `busbar up`")
    others = sorted(
        {f"{name} ({part.owner})" for name, part in marks if not part.owner.startswith(f"{owner}/")}
    )
    if others:
        raise CannotAdopt(
            f"hosts belong to another stack than {owner}: {listed(others, _SHOWN)}. Fix: give project and "
            "stack that name, or correct the hosts of the stack file"
        )
    by_id: dict[str, list[str]] = {}
    for name, part in marks:
        by_id.setdefault(part.install_id, []).append(name)
    if len(by_id) > 1:
        which = "; ".join(
            f"{install_id}: {listed(names, _SHOWN)}" for install_id, names in sorted(by_id.items())
        )
        raise CannotAdopt(f"the hosts belong to {len(by_id)} clusters ({which}). Fix: list those of one only")
    return marks[0][1].install_id


def _refuse_other_members(inventory: Inventory, kubeconfig: str) -> None:
    """Raise CannotAdopt unless the servers of the file are the members of etcd, and UnknownState."""
    listed_servers = {server.name.lower() for server in inventory.servers}
    members = {node.name for node in nodes.read(connect(kubeconfig, inventory)) if node.is_server}
    if members != listed_servers:
        raise CannotAdopt(
            f"the members of etcd are {listed(sorted(members), _SHOWN)}, and the stack file has the servers "
            f"{listed(sorted(listed_servers), _SHOWN)}. Fix: list exactly the members in hosts.servers"
        )


def _join_tokens(cluster: Cluster, servers: Mapping[str, Known], install_id: str) -> Secrets:
    """The tokens of components/engine/join_tokens.py. Raises CannotAdopt."""
    configs = [yaml.safe_load(known.applied.get(_CONFIG, "")) or {} for known in servers.values()]
    if len(authorities := {known.ca_sha256 for known in servers.values()}) != 1 or "" in authorities:
        raise CannotAdopt(
            f"{_DATA}/token of the servers does not name one CA. Fix: see journalctl -u k3s there"
        )
    pairs = {(_password(config.get("token")), str(config.get("agent-token", ""))) for config in configs}
    if len(pairs) != 1 or not all(*pairs):
        raise CannotAdopt(
            f"the servers do not have the same tokens in {_CONFIG}: a rotation was interrupted, or the files "
            "were changed. Fix: write the tokens that the running cluster uses there"
        )
    [tokens] = pairs
    values: dict[str, str] = {}
    wanted = cluster.k3s.rotate
    for kind, token, number in zip(
        ("server", "agent"), tokens, (wanted.server_token, wanted.agent_token), strict=True
    ):
        done = {_rotations(known).get(f"{kind}_token", 0) for known in servers.values()}
        if done != {number}:
            raise CannotAdopt(
                f"k3s.rotate.{kind}_token is {number}, and {listed(sorted(map(str, done)), _SHOWN)} is done "
                "on the servers. Fix: set it to that number; rotate after the stack is adopted"
            )
        made = [names.token(kind, each) for each in range(number + 1)]
        values |= {**dict.fromkeys(made[:-1], k3s.LOST + install_id), made[-1]: token}
    if k3s.install_id(values[names.token("server", 0)]) != install_id:
        raise CannotAdopt(f"the token in {_CONFIG} of the servers is not the one of the cluster {install_id}")
    return Secrets(values, [name for name, value in values.items() if value.startswith(k3s.LOST)])


def _differences(
    known: Known, part: Part, values: Mapping[str, str], payload: Mapping[str, str], lost: Lost
) -> Iterator[str]:
    sums = {value for key, value in values.items() if key.startswith("SHA256_")}
    if sums and not sums & part.sums:
        yield "another K3s is installed than configured"
    done = _rotations(known)
    for key, value in values.items():
        kind = key.removeprefix("ROTATE_").lower()
        if key.startswith("ROTATE_") and done.get(kind, 0) != int(value):
            yield f"k3s.rotate.{kind} is {value}, {done.get(kind, 0)} is done there"
    texts = [_comparable(text) for text in (*part.files.values(), *known.files.values())]
    for name, text in payload.items():
        # One line is a secret or a value. Every file has more.
        if name in lost.not_files or "\n" not in text:
            continue
        if not any(_comparable(text) in each for each in texts):
            yield f"{name} is not as configured"


def _comparable(text: str) -> str:
    return _OF_THE_HOST.sub("", text).strip()


def _rotations(known: Known) -> dict[str, int]:
    """Kind of rotation -> the number that was done there."""
    lines = (line.split() for line in known.files.get(f"{_STATE}/rotated", "").splitlines())
    return {kind: int(number) for kind, number in lines}


def _password(token: Any) -> str:
    return str(token or "").rpartition(":")[2]


def _texts(encoded: Mapping[str, str]) -> dict[str, str]:
    return {path: base64.b64decode(text).decode(errors="replace") for path, text in encoded.items()}

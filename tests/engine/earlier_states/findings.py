"""What an update did to a running site that a new release of busbar must not do."""

from __future__ import annotations

import base64
import difflib
import json
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from busbar.hosts.scripts import values_of

if TYPE_CHECKING:
    from tests.engine.earlier_states.stack import Step

HARMLESS = ("same", "create", "update", "read", "refresh")
JOBS = ("kubernetes:batch/v1:Job", "kubernetes:kubeflow.org/v2beta1:MPIJob")
RELEASE = "kubernetes:helm.sh/v3:Release"
# Of a release: another folder of the same chart is an upgrade that changes no object.
RELEASED = ("name", "namespace", "version", "values", "description")
INSTALLING = ("k3s-server", "k3s-agent", "haproxy", "haproxy-packages", "nfs-server")
"""The scripts that restart a service where a file or value of theirs has changed."""
_SECRET = "4dabf18193072939515e22adb298388d"


@dataclass(frozen=True, order=True)
class Finding:
    """`kind`: as in test_earlier_states.py."""

    kind: str
    resource: str
    detail: str

    def __str__(self) -> str:
        return f"{self.kind} {self.resource}: {self.detail}"


@dataclass(frozen=True)
class Resource:
    """One resource of a state, with its secrets in plain text."""

    urn: str
    type: str
    custom: bool
    inputs: Mapping[str, Any]
    outputs: Mapping[str, Any]

    @property
    def name(self) -> str:
        return self.urn.rpartition("::")[2]

    @property
    def identity(self) -> tuple[str, str]:
        """What stays when its parent is another."""
        return self.type, self.name

    @property
    def words(self) -> list[str]:
        """The command text of a Command."""
        return shlex.split(self.inputs.get("create") or "")

    @property
    def script(self) -> str:
        """The script of host/ that a Command runs; "" for other resources."""
        return self.values.get("BUSBAR_SCRIPT", "").rpartition("-")[0]

    @property
    def values(self) -> dict[str, str]:
        """The variables that a Command gives its script."""
        return values_of(self.inputs.get("create") or "")

    @property
    def line(self) -> str:
        """The payload of a Command as it is sent."""
        return str((self.inputs.get("stdin") or "{}").splitlines()[0])

    @property
    def payload(self) -> dict[str, str]:
        """What a Command sends to its script: contents of files."""
        return {name: base64.b64decode(value).decode() for name, value in json.loads(self.line).items()}


State = Mapping[tuple[str, str], Resource]


def read(exported: Mapping[str, Any]) -> State:
    """The resources of an exported state, without those that are about to be deleted."""
    found = [
        Resource(
            each["urn"],
            each["type"],
            each["custom"],
            _plain(each.get("inputs", {})),
            _plain(each.get("outputs", {})),
        )
        for each in exported["deployment"]["resources"]
        if not each.get("delete")
    ]
    return {each.identity: each for each in found}


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        if _SECRET in value:
            return _plain(json.loads(value["plaintext"]))
        return {key: _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, list) else value


def of_update(before: Mapping[str, Any], steps: list[Step], after: Mapping[str, Any]) -> Iterator[Finding]:
    """All findings of an update between two exported states."""
    old, new = read(before), read(after)
    yield from _of_steps(old, steps)
    yield from _of_hosts(old, new)
    yield from _of_releases(old, new)
    yield from _of_outputs(outputs(old), outputs(new))


def _of_steps(before: State, steps: list[Step]) -> Iterator[Finding]:
    """Resources that were replaced or deleted, and measurements that ran again.

    A component is nothing outside the state, and the SDK's own providers have its version in their names.
    """
    custom = {
        (each.type, each.name): each
        for each in before.values()
        if each.custom and "::default_" not in each.urn
    }
    for step in steps:
        name, kind = step.urn.rpartition("::")[2], step.urn.split("::")[2].rpartition("$")[2]
        known = custom.get((kind, name))
        if step.operation not in HARMLESS and known:
            yield Finding("deleted" if step.operation == "delete" else "replaced", name, kind)
        elif step.operation == "create" and kind in JOBS:
            yield Finding("measured", name, f"a new {kind}")
        elif step.operation == "update" and known and "collect" in known.words:
            yield Finding("judged", name, "the Command runs again: it needs the evidence of that time")
        elif step.operation == "update" and known and kind.startswith("kubernetes:") and kind != RELEASE:
            yield Finding("changed", name, kind)


def _of_hosts(before: State, after: State) -> Iterator[Finding]:
    """Files and values that are others on a host: its services restart."""
    for identity, old in before.items():
        if old.script not in INSTALLING or identity not in after:
            continue
        new = after[identity]
        was, is_now = {**old.values, **old.payload}, {**new.values, **new.payload}
        for key in sorted(was.keys() - {"BUSBAR_SCRIPT"}):
            if is_now.get(key) != was[key]:
                yield Finding("host", old.name, f"{key}: {_difference(was[key], is_now.get(key))}")


def _difference(was: str, is_now: str | None) -> str:
    """The lines that differ."""
    if is_now is None:
        return "missing now"
    lines = difflib.ndiff(was.splitlines(), is_now.splitlines())
    return " | ".join(line.rstrip() for line in lines if line[0] in "+-")


def _of_releases(before: State, after: State) -> Iterator[Finding]:
    """Charts that were upgraded, or that got other values."""
    for identity, old in before.items():
        if old.type != RELEASE or identity not in after:
            continue
        for key in RELEASED:
            was, is_now = old.inputs.get(key), after[identity].inputs.get(key)
            if was != is_now:
                yield Finding("changed", old.name, f"{key}: {was!r} -> {is_now!r}")


def _of_outputs(before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[Finding]:
    """A lost verdict, and another kubeconfig."""
    for name in ("nccl_passed", "training_passed", "kubeconfig"):
        if after.get(name) != before.get(name):
            yield Finding("changed", name, "the output is another")


def outputs(state: State) -> Mapping[str, Any]:
    [stack] = [each for each in state.values() if each.type == "pulumi:pulumi:Stack"]
    return stack.outputs

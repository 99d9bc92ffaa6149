"""Copies of a stack's state: `busbar up` keeps one after each change, and `busbar recover` imports one.

A copy is what the engine exports, with its secrets encrypted: a line of JSON (Header), then the compressed
export. The newest KEPT copies of each checkout lie on every server of a cluster, or on the controller of
Slurm (host/state-copy.sh), and in the folder of the stack.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import typer
from pydantic import ValidationError

from busbar import names
from busbar.cli.operation import operations_of
from busbar.cli.stack import Target, session
from busbar.cli.stack.engine import Snapshot, import_state, open_stack, snapshot
from busbar.cli.stack.errors import LOST
from busbar.cli.stack.session import Session
from busbar.cli.stackfile import install_id_in
from busbar.config import stackfile
from busbar.exits import DONE, FAILED, Failed, Misuse
from busbar.finding import STACK, Fix, shown, with_fix
from busbar.hosts.inventory import Host, Login
from busbar.hosts.remote import Hosts, ScriptError, on_each
from busbar.manifests.names import digest
from busbar.models import StrictModel
from busbar.operations.lock import requester
from busbar.text import counted, listed
from busbar.writing import write_whole

KEPT = 3
SECONDS = 120
_HERE = "this folder"
_KEYS = {
    "passphrase": "the PULUMI_CONFIG_PASSPHRASE of the stack",
    "service": "the key of Pulumi Cloud, which serves only the stack that made it",
    "cloud": "the key of the cloud that the stack file names",
}


class Header(StrictModel):
    """The stack of a copy. `rotations`: number of the token of servers, and of that of agents."""

    project: str
    stack: str
    time: str
    """UTC, such as 2026-11-28T19:00:00.000000Z: names begin with it, and so sort by time."""
    author: str
    """USER@MACHINE."""
    checkout: str
    """Identifies the folder of the project on that machine."""
    resources: int
    sha256: str
    """The digest of which resources there are and when each was changed: two copies of one state agree."""
    rotations: tuple[int, int]

    @property
    def name(self) -> str:
        return f"{self.time}-{self.checkout}"


@dataclass(frozen=True)
class Place:
    """The copies in the folder of the stack, or those on a host, with its cluster and the rotations there."""

    name: str
    headers: tuple[Header, ...]
    host: Host | None = None
    install_id: str = ""
    rotations: tuple[int, int] = (0, 0)

    @classmethod
    def of_folder(cls, folder: Path) -> Place:
        texts = (path.read_text(errors="replace") for path in sorted((folder / "state").glob("*Z-*")))
        return cls(_HERE, _headers(text.partition("\n")[0] for text in texts))

    @classmethod
    def of_host(cls, host: Host, facts: Mapping[str, Any]) -> Place:
        done = dict(line.split() for line in str(facts["rotated"]).splitlines())
        numbers = int(done.get("server_token", 0)), int(done.get("agent_token", 0))
        return cls(host.name, _headers(map(json.dumps, facts["copies"])), host, facts["install_id"], numbers)


def _headers(lines: Iterable[str]) -> tuple[Header, ...]:
    found = []
    for line in lines:
        try:
            found.append(Header.model_validate_json(line))
        except ValidationError:
            continue  # damaged, or of a later release
    return tuple(found)


def _newest(places: Iterable[Place]) -> list[Header]:
    """The headers of all places, the newest first."""
    every = {header.name: header for place in places for header in place.headers}
    return [every[name] for name in sorted(every, reverse=True)]


def _resources(export: str) -> list[Any]:
    return json.loads(export)["deployment"].get("resources") or []


def _digest(export: str) -> str:
    """The digest leaves out what each update renews: the order of the resources, and ciphertexts."""
    resources = _resources(export)
    return digest(sorted(f"{each['urn']} {each.get('id')} {each.get('modified')}" for each in resources))


def header_of(export: str, target: Target, author: str, former: Sequence[Header] = ()) -> Header:
    """The header of a copy of what the engine has exported; its time is after that of `former` ones."""
    after = [datetime.fromisoformat(each.time) + timedelta(microseconds=1) for each in former]
    known = {each["urn"].rpartition("::")[2] for each in _resources(export)}

    def rotations(kind: str) -> int:
        return sum(names.token(kind, number) in known for number in range(1, len(known)))

    return Header(
        project=stackfile.project_name(target.project) or "",
        stack=target.name,
        # The clock of this machine may have been set back.
        time=max([datetime.now(UTC), *after]).isoformat(timespec="microseconds").replace("+00:00", "Z"),
        author=author,
        checkout=hashlib.sha256(f"{author}:{target.project}".encode()).hexdigest()[:8],
        resources=len(_resources(export)),
        sha256=_digest(export),
        rotations=(rotations("server"), rotations("agent")),
    )


def packed(header: Header, export: str) -> str:
    """The text of a copy."""
    body = base64.b64encode(zlib.compress(export.encode(), 9)).decode()
    return f"{header.model_dump_json()}\n{body}\n"


def read(text: str) -> tuple[Header, str]:
    """The header and the export of a copy. Raises ValueError for a damaged one."""
    line, _, body = text.partition("\n")
    try:
        header, export = Header.model_validate_json(line), zlib.decompress(base64.b64decode(body)).decode()
        is_whole = _digest(export) == header.sha256
    except (KeyError, zlib.error) as error:
        raise ValueError(f"it cannot be read: {error}") from None
    if not is_whole:
        raise ValueError("its checksum differs")
    return header, export


def _keepers(target: Target) -> tuple[Login | None, Sequence[Host]]:
    """The hosts that keep copies: servers, or Slurm's controller; none without hosts. Raises Failed."""
    path = target.project / target.file
    try:
        return operations_of(path).keepers(path)
    except Misuse:
        return None, ()


def _ask(
    login: Login | None, hosts: Sequence[Host], values: Mapping[str, str], **payload: str
) -> list[tuple[Host, Mapping[str, Any]] | str]:
    """The facts of host/state-copy.sh on each host, or why there are none."""

    async def ask(login: Login) -> list[tuple[Host, Mapping[str, Any]] | str]:
        async with Hosts.open(login) as opened:

            async def one(host: Host) -> tuple[Host, Mapping[str, Any]]:
                return host, await opened.run(host, "state-copy", values, payload, seconds=SECONDS)

            return await on_each(hosts, one)

    try:
        return asyncio.run(ask(login)) if login else []
    except (ScriptError, ValueError) as error:  # no login at all
        return [str(error)]


def _places(s: Session, answers: Sequence[tuple[Host, Mapping[str, Any]] | str], missing: str) -> list[Place]:
    """The copies on hosts; hosts that have not answered are printed as `missing`."""
    for each in answers:
        if isinstance(each, str):
            s.say(f"{missing}: {each}")
    return [Place.of_host(*each) for each in answers if not isinstance(each, str)]


def keep(s: Session, former: Snapshot, state: Snapshot) -> None:
    """Keep a copy of the state if it is not that of the newest one here. What goes wrong is a warning.

    A state that has made nothing, such as the new one of a stack whose state is lost, is not worth one.
    """
    if not state.made:
        return
    folder = s.target.folder
    here = Place.of_folder(folder).headers
    header = header_of(state.text, s.target, requester(), here)
    if here and here[-1].sha256 == header.sha256:
        return
    text = packed(header, state.text)
    try:
        write_whole(folder / "state" / header.name, text, 0o600)
        for old in sorted((folder / "state").glob(f"*-{header.checkout}"))[:-KEPT]:
            old.unlink()
        login, hosts = _keepers(s.target)
    except (OSError, Failed) as error:
        s.say(f"warning: no host has a copy of the state: {error}")
        return
    values = {"VERB": "keep", "NAME": header.name, "CHECKOUT": header.checkout, "KEPT": str(KEPT)}
    values["INSTALL_ID"] = install_id_in(state.text)
    kept = _places(s, _ask(login, hosts, values, copy=text), "warning: no copy of the state there")
    # The state of an admin with the same backend is the one that this update began with.
    ours = {header.sha256, _digest(former.text)}
    newest = next((each for each in _newest(kept) if each.checkout != header.checkout), None)
    if newest and newest.sha256 not in ours and newest.time > (here[-1].time if here else ""):
        what = f"warning: {newest.author} has kept another state of this stack at {newest.time}; both stay"
        s.say(with_fix(what, Fix("use one backend for all admins", ("docs", "sites"))))


def recover(target: Target, *, yes: bool) -> int:
    """Run `busbar recover`: find the newest whole copy, ask, import it."""

    def run(s: Session) -> int:
        login, hosts = _keepers(target)
        stack = open_stack(s.engine, target, create=s.say)
        _refuse_known(snapshot(stack), target)
        on_hosts = _places(s, _ask(login, hosts, {"VERB": "list"}), "missing")
        header, export = _choose(s, login, [Place.of_folder(target.folder), *on_hosts])
        refuse(header, on_hosts)
        if not yes and not typer.confirm(f"\nImport the copy of {header.time} into stack {target.name}?"):
            s.say("no changes made")
            return FAILED
        _refuse_known(snapshot(stack), target)
        import_state(stack, export)
        key = (json.loads(export)["deployment"].get("secrets_providers") or {}).get("type", "")
        needed = _KEYS.get(key, "no key")
        s.say(f"imported {counted(header.resources, 'resource')}; their secrets need {needed}")
        s.say(f"Next: `busbar up {shown(target.name)} --refresh`, which goes on as with any older state.")
        return DONE

    return session.run("recover", target, run, asks=not yes)


def _refuse_known(state: Snapshot, target: Target) -> None:
    if state.made:
        has = f"the state of stack {target.name} has {counted(len(state.made), 'resource')}"
        forget = f"; to forget it: `pulumi stack rm --force --preserve-config --stack {STACK}`"
        fix = Fix("to go on with it", ("up", target.name), forget)
        raise Failed(f"{has}, and only a lost one is recovered", fix)


def refuse(header: Header, places: Sequence[Place]) -> None:
    """Raise Failed if the hosts are of two clusters, or have rotated a token since the copy was made."""
    clusters = sorted({each.install_id for each in places} - {""})
    if len(clusters) > 1:
        what = f"the hosts belong to {len(clusters)} clusters ({listed(clusters)})"
        raise Failed(what, "correct the addresses of the hosts in the stack file")
    if (done := max((each.rotations for each in places), default=(0, 0))) > header.rotations:
        raise Failed(
            f"the tokens of servers and agents were rotated {done} times, and the copy of {header.time} is "
            f"from before that ({header.rotations})",
            LOST,
        )


def _choose(s: Session, login: Login | None, places: Sequence[Place]) -> tuple[Header, str]:
    """The newest whole copy of this stack, and its export. Prints which there are. Raises Failed."""
    wanted = (stackfile.project_name(s.target.project) or "", s.target.name)
    clusters, others = {each.install_id for each in places} - {""}, set[str]()
    for header in _newest(places):
        if (header.project, header.stack) != wanted:
            others.add(f"{header.project}/{header.stack}")
            continue
        having = [place for place in places if header in place.headers]
        on = listed([place.name for place in having])
        s.say(f"{header.time}  {counted(header.resources, 'resource')}, by {header.author}, on {on}")
        for place in having:
            try:
                found = read(_fetch(s.target, login, place.host, header.name))
            except (OSError, ValueError) as error:
                s.say(f"  damaged on {place.name}: {error}")
                continue
            if not clusters or install_id_in(found[1]) in clusters:
                return found
            s.say("  of another cluster than the hosts, or from before it was made")
            break
    also = f"; there are copies of {listed(sorted(others))}, which are not imported here" if others else ""
    asked = listed([place.name for place in places])
    raise Failed(f"no whole copy of the state of {'/'.join(wanted)} on {asked}{also}", LOST)


def _fetch(target: Target, login: Login | None, host: Host | None, name: str) -> str:
    """The text of a copy on a host, or in the folder of the stack. Raises OSError and ValueError."""
    if host is None:
        return (target.folder / "state" / name).read_text(errors="replace")
    [answer] = _ask(login, [host], {"VERB": "read", "NAME": name})
    if isinstance(answer, str):
        raise ValueError(answer)
    return base64.b64decode(str(answer[1]["copy"])).decode(errors="replace")

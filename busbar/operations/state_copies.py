"""Copies of a stack's state on its hosts, from which a lost state is recovered (host/state-copy.sh).

A copy is what the engine exports, with its secrets encrypted: a line of JSON (Header), then the compressed
export. The newest KEPT copies of each checkout lie on every server of a cluster, or on the controller of
Slurm, and in the folder of the stack.
"""

from __future__ import annotations

import base64
import hashlib
import json
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from busbar import names
from busbar.exits import Failed
from busbar.finding import Fix
from busbar.hosts.inventory import Host, Login
from busbar.hosts.remote import Hosts, ScriptError, on_each
from busbar.models import StrictModel
from busbar.text import listed
from busbar.writing import write_whole

KEPT = 3
LOST = Fix("follow the page", ("docs", "sites", "'A lost state file'"))
SECONDS = 120
_SCRIPT, _FOLDER = "state-copy", "state"


class Header(StrictModel):
    """What a copy is of. `rotations`: number of the token of servers, and of that of agents."""

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
    """Of the resources, so that two copies of one state agree."""
    rotations: tuple[int, int]

    @property
    def name(self) -> str:
        return f"{self.time}-{self.checkout}"


@dataclass(frozen=True)
class Kept:
    """What a host has: the copies, the cluster that it belongs to, and its rotations, as in Header."""

    host: str
    headers: tuple[Header, ...]
    install_id: str = ""
    rotations: tuple[int, int] = (0, 0)

    @classmethod
    def of(cls, host: str, facts: Mapping[str, Any]) -> Kept:
        done = dict(line.split() for line in str(facts["rotated"]).splitlines())
        numbers = int(done.get("server_token", 0)), int(done.get("agent_token", 0))
        headers = _headers(json.dumps(each) for each in facts["copies"])
        return cls(host, headers, str(facts["install_id"]), numbers)

    @classmethod
    def of_folder(cls, host: str, folder: Path) -> Kept:
        """The copies in the folder of the stack."""
        paths = sorted((folder / _FOLDER).glob("*Z-*"))
        return cls(host, _headers(path.read_text(errors="replace").partition("\n")[0] for path in paths))


def _headers(lines: Any) -> tuple[Header, ...]:
    headers = []
    for line in lines:
        try:
            headers.append(Header.model_validate_json(line))
        except ValidationError:
            continue  # damaged, or of a later release
    return tuple(headers)


def digest(resources: Sequence[Any]) -> str:
    return hashlib.sha256(json.dumps(resources, sort_keys=True).encode()).hexdigest()


def resources_of(export: str) -> list[Any]:
    """The resources in what the engine exported. Raises ValueError and KeyError."""
    return json.loads(export)["deployment"].get("resources") or []


def header(export: str, *, project: str, stack: str, author: str, folder: Path) -> Header:
    """The header of a copy of what the engine exported for the project in `folder`."""
    resources = resources_of(export)
    known = {each["urn"].rpartition("::")[2] for each in resources}
    made = [
        sum(names.token(kind, number) in known for number in range(1, len(known)))
        for kind in ("server", "agent")
    ]
    return Header(
        project=project,
        stack=stack,
        time=datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z"),
        author=author,
        checkout=hashlib.sha256(f"{author}:{folder}".encode()).hexdigest()[:8],
        resources=len(resources),
        sha256=digest(resources),
        rotations=(made[0], made[1]),
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
        is_whole = digest(resources_of(export)) == header.sha256
    except (KeyError, zlib.error) as error:
        raise ValueError(f"it cannot be read: {error}") from None
    if not is_whole:
        raise ValueError("its checksum differs")
    return header, export


def keep_in(folder: Path, header: Header, text: str) -> None:
    """Keep a copy in the folder of the stack, readable by its owner, and the newest KEPT of this checkout."""
    place = folder / _FOLDER
    write_whole(place / header.name, text, 0o600)
    for old in sorted(place.glob(f"*-{header.checkout}"))[:-KEPT]:
        old.unlink()


async def ask(
    login: Login, hosts: Sequence[Host], copy: tuple[Header, str] | None = None
) -> list[Kept | str]:
    """What each host has, or why it has not answered; with a `copy`, after it was kept there."""
    values, payload = {"VERB": "list"}, {}
    if copy:
        header, payload["copy"] = copy
        values = {"VERB": "keep", "NAME": header.name, "CHECKOUT": header.checkout, "KEPT": str(KEPT)}
    try:
        async with Hosts.open(login) as opened:

            async def one(host: Host) -> Kept:
                return Kept.of(host.name, await opened.run(host, _SCRIPT, values, payload, seconds=SECONDS))

            return await on_each(hosts, one)
    except (ScriptError, ValueError) as error:  # no login at all
        return [str(error)]


async def read_from(place: Host | Path, login: Login | None, name: str) -> str:
    """The text of a copy on a host, or in the folder of the stack. Raises OSError, and errors of hosts."""
    if isinstance(place, Path):
        return (place / _FOLDER / name).read_text(errors="replace")
    assert login  # a host has answered
    async with Hosts.open(login) as opened:
        facts = await opened.run(place, _SCRIPT, {"VERB": "read", "NAME": name}, seconds=SECONDS)
    return base64.b64decode(str(facts["copy"])).decode(errors="replace")


def refuse(header: Header, found: Sequence[Kept]) -> None:
    """Raise Failed if the hosts are of two clusters, or have rotated a token since the copy was made."""
    clusters = sorted({each.install_id for each in found} - {""})
    if len(clusters) > 1:
        raise Failed(
            f"the hosts belong to {len(clusters)} clusters ({listed(clusters)})",
            "correct the addresses of the hosts in the stack file",
        )
    if (done := max((each.rotations for each in found), default=(0, 0))) > header.rotations:
        raise Failed(
            f"the tokens of servers and agents were rotated {done} times, and the copy of {header.time} is "
            f"from before that ({header.rotations})",
            LOST,
        )

"""Copies of the state: `busbar up` keeps one after each change, and `busbar recover` imports one."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path

import typer

from busbar.cli.operation import operations_of
from busbar.cli.stack import session
from busbar.cli.stack.engine import Snapshot, import_state, open_stack, snapshot
from busbar.cli.stack.session import Session
from busbar.cli.stack.target import Target
from busbar.config import stackfile
from busbar.exits import DONE, FAILED, Failed, Misuse
from busbar.finding import Fix, with_fix
from busbar.hosts.inventory import Host, Login
from busbar.operations import state_copies
from busbar.operations.lock import requester
from busbar.operations.state_copies import Header, Kept
from busbar.text import counted, listed

_HERE = "this folder"
_KEYS = {
    "passphrase": "the PULUMI_CONFIG_PASSPHRASE of the stack",
    "service": "the key of Pulumi Cloud, which serves only the stack that made it",
    "cloud": "the key of the cloud that the stack file names",
}


def keep(s: Session, former: Snapshot, state: Snapshot) -> None:
    """Keep a copy of the state if it is not that of the newest one here. What goes wrong is a warning."""
    if not state.resources:
        return
    target, project = s.target, stackfile.project_name(s.target.project) or ""
    header = state_copies.header(
        state.text, project=project, stack=target.name, author=requester(), folder=target.project
    )
    before = Kept.of_folder(_HERE, target.folder).headers
    if before and before[-1].sha256 == header.sha256:
        return
    copy = header, state_copies.packed(header, state.text)
    try:
        state_copies.keep_in(target.folder, *copy)
        login, hosts = _keepers(target)
    except (OSError, Failed) as error:
        s.say(f"warning: no host has a copy of the state: {error}")
        return
    found = asyncio.run(state_copies.ask(login, hosts, copy)) if login else []
    for each in found:
        if isinstance(each, str):
            s.say(f"warning: no copy of the state there: {each}")
    # The state of an admin with the same backend is the one that this update began with.
    ours = {header.sha256, state_copies.digest(state_copies.resources_of(former.text))}
    newest = next((each for each in _newest(found) if each.checkout != header.checkout), None)
    if newest and newest.sha256 not in ours and newest.time > (before[-1].time if before else ""):
        what = (
            f"warning: {newest.author} has kept another state of this stack at {newest.time}, from another "
            "folder. Both copies stay"
        )
        s.say(with_fix(what, Fix("use one backend for all admins", ("docs", "sites"))))


def recover(target: Target, *, yes: bool) -> int:
    """Run `busbar recover`: find the newest whole copy, ask, import it."""

    def run(s: Session) -> int:
        login, hosts = _keepers(target)
        stack = open_stack(s.engine, target, create=s.say)
        _refuse_known(snapshot(stack), target)
        found = asyncio.run(state_copies.ask(login, hosts)) if login else []
        for each in found:
            if isinstance(each, str):
                s.say(f"missing: {each}")
        kept = [each for each in found if isinstance(each, Kept)]
        header, export = _choose(s, login, hosts, kept)
        state_copies.refuse(header, kept)
        if not yes and not typer.confirm(f"\nImport the copy of {header.time} into stack {target.name}?"):
            s.say("no changes made")
            return FAILED
        import_state(stack, export)
        key = (json.loads(export)["deployment"].get("secrets_providers") or {}).get("type", "")
        s.say(
            f"imported {counted(header.resources, 'resource')}; their secrets need {_KEYS.get(key, 'no key')}"
        )
        s.say(f"Next: `busbar up {target.name} --refresh`, which goes on as with any older state.")
        return DONE

    return session.run("recover", target, run, asks=not yes)


def _keepers(target: Target) -> tuple[Login | None, Sequence[Host]]:
    """Who keeps copies: servers, or Slurm's controller; nobody for a program without hosts. Raises Failed."""
    path = target.project / target.file
    try:
        return operations_of(path).keepers(path)
    except Misuse:
        return None, ()


def _refuse_known(state: Snapshot, target: Target) -> None:
    if state.made:
        has = f"the state of stack {target.name} has {counted(len(state.made), 'resource')}"
        forget = f"; to forget it: `pulumi stack rm --force --preserve-config {target.name}`"
        fix = Fix("to go on with it", ("up", target.name), forget)
        raise Failed(f"{has}, and only a lost one is recovered", fix)


def _newest(found: Sequence[Kept | str]) -> list[Header]:
    """The headers of all places, the newest first."""
    every = {each.name: each for kept in found if isinstance(kept, Kept) for each in kept.headers}
    return [every[name] for name in sorted(every, reverse=True)]


def _choose(
    s: Session, login: Login | None, hosts: Sequence[Host], kept: Sequence[Kept]
) -> tuple[Header, str]:
    """The newest whole copy of this stack, and its export. Prints which there are. Raises Failed."""
    wanted = (stackfile.project_name(s.target.project) or "", s.target.name)
    places: dict[str, Host | Path] = {_HERE: s.target.folder, **{host.name: host for host in hosts}}
    every = [Kept.of_folder(_HERE, s.target.folder), *kept]
    others: set[str] = set()
    for header in _newest(every):
        if (header.project, header.stack) != wanted:
            others.add(f"{header.project}/{header.stack}")
            continue
        on = [each.host for each in every if header in each.headers]
        s.say(f"{header.time}  {counted(header.resources, 'resource')}, by {header.author}, on {listed(on)}")
        for place in on:
            try:
                return state_copies.read(
                    asyncio.run(state_copies.read_from(places[place], login, header.name))
                )
            except (OSError, Failed, ValueError) as error:
                s.say(f"  damaged on {place}: {error}")
    also = f"; there are copies of {listed(sorted(others))}, which are not imported here" if others else ""
    raise Failed(
        f"no whole copy of the state of {'/'.join(wanted)} on {listed([each.host for each in every])}{also}",
        state_copies.LOST,
    )

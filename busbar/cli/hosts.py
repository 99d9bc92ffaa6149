"""`busbar hosts`: SSH host keys, and hosts from another tool's inventory."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from busbar.cli.operation import operations_of
from busbar.cli.output import error, fail, print_result, print_table, print_text, progress
from busbar.cli.stackfile import AsJson, Project, Stack, find_file, login_of
from busbar.exits import USAGE

if TYPE_CHECKING:
    from busbar.hosts.host_keys import Offer
    from busbar.hosts.inventories import ImportedHosts


def register(group: typer.Typer) -> None:
    group.command()(keys)
    group.command("import")(import_hosts)


def keys(stack: Stack, project: Project = None, as_json: AsJson = False) -> None:
    """Fetch the SSH host keys of all hosts, to compare them with the consoles and to pin them.

    Nothing is written: keys that are missing in the stack file are printed as the lines to add to it. With a
    bastion hosts are asked through it, once its own key is pinned.

    Exit code 0: every host has answered, none with another key than the pinned one; 1: a key has changed, or
    a host was not asked or did not respond; 64: no such stack.
    """
    import asyncio

    from busbar.config.cluster import has_list
    from busbar.hosts import host_keys

    path = find_file(stack, project)
    file, (ssh, offers) = operations_of(path).host_keys(path)
    offers = asyncio.run(host_keys.fetch(offers, lambda: login_of(file, ssh)))
    rows = [_row(each) for each in offers]
    # A key is long, and is printed below.
    cells = [[str(each or "-") for each in [*row.values()][:-1]] for row in rows]
    print_result({"stack": file.stack, "hosts": rows}, as_json, lambda: print_table((), cells))
    to_pin = [each for each in offers if each.offered and each.pinned is None]
    if to_pin and not as_json:
        progress(
            "\nCompare each with its host's console: ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub\n"
            f"Then add to {'the list of hosts' if has_list(file.data) else path.name}:\n"
        )
        print_text("\n".join(f"host_key: {each.offered}   # {each.path} ({each.name})" for each in to_pin))
    for each in offers:
        if problem := _problem(each, offers):
            error(f"{each.path} ({each.name}): {problem}")
    bad = [each for each in offers if each.problem or each.has_changed]
    if bad:
        fail(f"{len(bad)} of {len(offers)} host keys are not as pinned, or not known", 1)


def import_hosts(
    file: Annotated[str, typer.Argument(metavar="FILE", help="The inventory; - for stdin.")],
    as_list: Annotated[
        bool, typer.Option("--json", help="Print a list for hosts_from instead (docs/sites.md).")
    ] = False,
    project: Project = None,
) -> None:
    """Print the section `hosts` from another tool's inventory; nothing is written, and no host is asked.

    FILE has the JSON of `ansible-inventory -i INVENTORY --list` (k3s-ansible, Kubespray or DeepOps). What is
    missing is a comment in the section. Groups and variables without a place there are named on stderr. A
    list is for the project of this folder.

    Exit code 0: printed; 1: no group of it is known; 64: it cannot be read, or gives no valid list.
    """
    from busbar.capability import capabilities
    from busbar.hosts import inventories

    try:
        text = sys.stdin.read() if file == "-" else Path(file).expanduser().read_text(encoding="utf-8")
        found = inventories.parse(text)
    except (OSError, ValueError) as problem:
        reason = getattr(problem, "strerror", None) or problem
        given = "INVENTORY" if file == "-" else shlex.quote(file)
        fail(
            f"{file}: {reason}. Fix: ansible-inventory -i {given} --list | busbar hosts import - (with "
            "Terraform: busbar docs sites 'Hosts from elsewhere')",
            USAGE,
        )
    if as_list:
        _print_list(file, found, project)
        return
    tables = {"": inventories.GROUPS, **{each.name: each.host_groups for each in capabilities()}}
    notes: list[str] = []
    printed: list[str] = []
    for name, table in tables.items():
        core = () if name else ("load_balancers", "servers", "workers")
        section, more = inventories.section(found, table, core)
        notes += more
        if section:
            printed.append(f"# of stacks/{name}\n{section}" if name else section)
    for note in [*notes, *inventories.unknown(found, [*tables.values()])]:
        progress(f"{file}: {note}")
    if not printed:
        known = ", ".join(sorted(group for table in tables.values() for group in table))
        fail(f"{file}: no hosts in a known group, expected one of: {known}", 1)
    print_text("---\n".join(printed))
    progress("Missing beside it: pools, and the pool of each worker where there are several.")
    progress("Host keys: busbar hosts keys STACK")


def _print_list(file: str, found: ImportedHosts, project: Path | None) -> None:
    """Print the contract of busbar.config.stackfile.HostList, for the project of a folder."""
    from busbar.capability import of_project
    from busbar.config import stackfile
    from busbar.config.stackfile import ROLES, host_list
    from busbar.hosts import inventories

    name = stackfile.project_name(stackfile.project_folder(project, Path.cwd()))
    capability = of_project([name] if name else [])
    groups = capability.host_groups if capability else inventories.GROUPS
    roles = capability.host_roles if capability else ROLES
    listed, notes = inventories.host_list(found, groups, roles)
    for note in [*notes, *inventories.unknown(found, [groups])]:
        progress(f"{file}: {note}")
    print_text(host_list(listed, file).text().rstrip())


def _row(offer: Offer) -> dict[str, Any]:
    from busbar.hosts.host_keys import fingerprint

    state = "CHANGED" if offer.has_changed else "pinned" if offer.pinned else "not pinned"
    return {
        "name": offer.name,
        "address": offer.host.address,
        "fingerprint": fingerprint(offer.offered) if offer.offered else None,
        "state": state if offer.offered else "no key",
        "host_key": offer.offered,
    }


def _problem(offer: Offer, offers: Sequence[Offer]) -> str | None:
    """The error about the key of a host, with the fix; None without one."""
    from busbar.hosts.host_keys import fingerprint

    if not offer.has_changed or not offer.offered or not offer.pinned:
        return offer.problem
    others = [each.name for each in offers if each.pinned == offer.offered]
    if others:
        return (
            f"{offer.host.address} has the host key of {others[0]}: the two hosts are swapped. Fix: exchange "
            "their addresses, or their host keys"
        )
    return (
        f"{offer.host.address} has another host key than the pinned one (possible man-in-the-middle): got "
        f"{fingerprint(offer.offered)}, pinned {fingerprint(offer.pinned)}. Fix: if the host was "
        f"reinstalled, compare the key on its console, and set host_key: {offer.offered}"
    )

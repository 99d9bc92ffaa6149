"""`busbar hosts keys`: the SSH host keys of all hosts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from busbar.cli.operation import operations_of
from busbar.cli.output import error, fail, print_result, print_table, print_text, progress
from busbar.cli.stackfile import AsJson, Project, Stack, find_file, login_of

if TYPE_CHECKING:
    from busbar.hosts.host_keys import Offer


def keys(stack: Stack, project: Project = None, as_json: AsJson = False) -> None:
    """Fetch the SSH host keys of all hosts, to compare them with the consoles and to pin them.

    Nothing is written: keys that are missing in the stack file are printed as the lines to add to it. With a
    bastion hosts are asked through it, once its own key is pinned.

    Exit code 0: every host has answered, none with another key than the pinned one; 1: otherwise.
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

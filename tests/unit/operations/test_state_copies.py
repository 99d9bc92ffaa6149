"""Copies of a state: what is in one, which is refused, and the script that keeps them on a host."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest

from busbar.exits import Failed
from busbar.names import token
from busbar.operations.state_copies import KEPT, Header, Kept, header, packed, read, refuse
from tests.unit.hosts.recorded import Host

MARK = "role=server\nowner=busbar/prod/busbar-control-plane@server-1\ninstall_id=0123456789abcdef\n"


def copy(*resources: str, author: str = "ada@laptop") -> tuple[Header, str]:
    found = [{"urn": f"urn:pulumi:prod::busbar::x::{name}"} for name in resources]
    export = json.dumps({"version": 3, "deployment": {"resources": found}})
    made = header(export, project="busbar", stack="prod", author=author, folder=Path("/site"))
    return made, packed(made, export)


def test_a_copy_is_read_back_and_says_what_it_is_of() -> None:
    made, text = copy("first", token("server", 0), token("server", 1), token("agent", 0))
    found, export = read(text)
    assert found == made
    assert (found.stack, found.resources, found.rotations) == ("prod", 4, (1, 0))
    assert json.loads(export)["deployment"]["resources"][0]["urn"].endswith("::first")


@pytest.mark.parametrize("damage", [lambda text: text[:-9], lambda text: "x" + text, lambda text: ""])
def test_a_damaged_copy_is_refused(damage: Any) -> None:
    with pytest.raises(ValueError):
        read(damage(copy("first")[1]))


def test_a_copy_with_other_resources_than_its_header_says_is_refused() -> None:
    (other, _), (_, text) = copy("first"), copy("second")
    with pytest.raises(ValueError, match="its checksum differs"):
        read(f"{other.model_dump_json()}\n{text.splitlines()[1]}\n")


def test_hosts_of_two_clusters_and_a_copy_from_before_a_rotation_are_refused() -> None:
    made, _ = copy("first")
    same = Kept("server-1", (), "a" * 16)
    refuse(made, [same, Kept("server-2", (), ""), Kept("server-3", (), "a" * 16)])
    with pytest.raises(Failed, match="belong to 2 clusters"):
        refuse(made, [same, Kept("server-2", (), "b" * 16)])
    with pytest.raises(Failed, match=r"rotated \(1, 0\) times.*'A lost state file'"):
        refuse(made, [same, Kept("server-2", (), "a" * 16, (1, 0))])


def kept(host: Host, of: Header, text: str) -> Kept:
    payload = {"copy": text}
    values = {"VERB": "keep", "NAME": of.name, "CHECKOUT": of.checkout, "KEPT": str(KEPT)}
    return Kept.of("server-1", host.facts("state-copy", payload, **values))


def test_a_host_keeps_the_newest_copies_of_each_checkout_readable_by_root_only(tmp_path: Path) -> None:
    host = Host(tmp_path)
    host.write("var/lib/busbar/owner", MARK)
    host.write("var/lib/busbar/rotated", "server_token 2\n")
    first = copy("first", author="bob@desktop")
    assert kept(host, *first).headers == (first[0],)
    made = [copy("first", str(number)) for number in range(KEPT + 1)]
    for each in made:
        found = kept(host, *each)
    assert {each.name for each in found.headers} == {each.name for each, _ in (first, *made[1:])}
    assert (found.install_id, found.rotations) == ("0123456789abcdef", (2, 0))
    path = tmp_path / "var/lib/busbar/state" / made[-1][0].name
    assert path.read_text() == made[-1][1] and path.stat().st_mode & 0o777 == 0o600
    answer = host.facts("state-copy", {}, VERB="read", NAME=made[-1][0].name)
    assert base64.b64decode(answer["copy"]).decode() == made[-1][1]


def test_a_host_that_busbar_did_not_install_keeps_nothing(tmp_path: Path) -> None:
    assert kept(Host(tmp_path), *copy("first")) == Kept("server-1", ())
    assert not (tmp_path / "var/lib/busbar").exists()

"""Copies of a state: what is in one, where `busbar up` keeps them, and what `busbar recover` refuses."""

import base64
import json
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pulumi import automation as auto

from busbar.cli.stack import Target, copies
from busbar.cli.stack.copies import KEPT, Header, Place, header_of, packed, read, refuse
from busbar.cli.stack.engine import Snapshot, snapshot
from busbar.exits import Failed
from busbar.names import token
from tests.support.ssh_hosts import at
from tests.unit.hosts.recorded import Host

ROOT = {"type": "pulumi:pulumi:Stack"}
CLUSTER = {"type": "busbar:index:Cluster"}
PROVIDER = {"type": "pulumi:providers:kubernetes", "custom": True}
REFERENCE = {"type": "pulumi:pulumi:StackReference", "custom": True}
TOKEN = {"type": "random:index/randomPassword:RandomPassword", "custom": True}
IDENTITY = {**TOKEN, "type": "pulumi:index:Stash", "name": "cluster-id", "inputs": {"input": {"id": "a"}}}
HOST = {"type": "command:remote:Command", "custom": True, "name": "busbar-worker@gpu-1"}
NAMESPACE = {"type": "kubernetes:core/v1:Namespace", "custom": True}


def state(*resources: dict[str, Any]) -> Snapshot:
    urns = [f"urn:pulumi:prod::busbar::{each['type']}::{each.get('name', 'x')}" for each in resources]
    found = [{**each, "urn": urn} for each, urn in zip(resources, urns, strict=True)]
    text = json.dumps({"deployment": {"resources": found}})
    command = SimpleNamespace(run=lambda *_: auto.CommandResult(stdout=text, stderr="", code=0))
    workspace = SimpleNamespace(work_dir=".", env_vars={}, pulumi_command=command)
    return snapshot(SimpleNamespace(name="prod", workspace=workspace))  # type: ignore[arg-type]


@pytest.mark.parametrize("resource", [HOST, NAMESPACE], ids=["host", "object without hosts"])
def test_a_state_that_has_made_something_is_not_replaced(resource: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(Failed, match="has 1 resource, and only a lost one is recovered"):
        copies._refuse_known(state(ROOT, resource), Target(tmp_path, "prod"))


def test_an_empty_state_and_one_of_an_update_that_preflight_refused_are_replaced(tmp_path: Path) -> None:
    for each in (state(), state(ROOT, CLUSTER, PROVIDER, REFERENCE, TOKEN, IDENTITY)):
        copies._refuse_known(each, Target(tmp_path, "prod"))


def test_a_state_that_is_kept_is_not_compressed_again(session: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    first = state(ROOT, NAMESPACE)
    copies.keep(session, state(), first)
    monkeypatch.setattr(copies, "packed", None)
    copies.keep(session, first, first)
    [kept] = (session.target.folder / "state").iterdir()
    assert read(kept.read_text())[1] == first.text


SERVER = at(22, "server-1", "server")
MARK = "role=server\nowner=busbar/prod/busbar-control-plane@server-1\ninstall_id=0123456789abcdef\n"


def copy(*resources: str, author: str = "ada@laptop") -> tuple[Header, str]:
    found = [{"urn": f"urn:pulumi:prod::busbar::x::{name}"} for name in resources]
    export = json.dumps({"version": 3, "deployment": {"resources": found}})
    made = header_of(export, Target(Path("/site"), "prod"), author)
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


def place(name: str, install_id: str, rotations: tuple[int, int] = (0, 0)) -> Place:
    return Place(name, (), None, install_id, rotations)


def test_hosts_of_two_clusters_and_a_copy_from_before_a_rotation_are_refused() -> None:
    made, _ = copy("first")
    same = place("server-1", "a" * 16)
    refuse(made, [same, place("server-2", ""), place("server-3", "a" * 16)])
    with pytest.raises(Failed, match="belong to 2 clusters"):
        refuse(made, [same, place("server-2", "b" * 16)])
    with pytest.raises(Failed, match=r"rotated \(1, 0\) times.*'A lost state file'"):
        refuse(made, [same, place("server-2", "a" * 16, (1, 0))])


@pytest.fixture
def session(tmp_path: Path) -> Any:
    """A session of the stack `prod` in a folder with a project; `said` has what it says."""
    (tmp_path / "Pulumi.yaml").write_text("name: tiny\n")
    (tmp_path / "Pulumi.prod.yaml").write_text("config: {}\n")
    said: list[str] = []
    return SimpleNamespace(target=Target(tmp_path, "prod"), say=said.append, said=said)


def kept(host: Host, of: Header, text: str, install_id: str = "0123456789abcdef") -> Place:
    payload = {"copy": text}
    values = {"VERB": "keep", "NAME": of.name, "CHECKOUT": of.checkout, "KEPT": str(KEPT)}
    values["INSTALL_ID"] = install_id
    return Place.of_host(SERVER, host.facts("state-copy", payload, **values))


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
    assert kept(Host(tmp_path), *copy("first")) == Place("server-1", (), SERVER)
    assert not (tmp_path / "var/lib/busbar").exists()


@pytest.mark.parametrize("install_id", ["", "f" * 16])
def test_a_host_of_another_cluster_keeps_nothing(tmp_path: Path, install_id: str) -> None:
    """Else `busbar recover` of its own stack may find it, where the folder was copied with its names."""
    host = Host(tmp_path)
    host.write("var/lib/busbar/owner", MARK)
    assert kept(host, *copy("first"), install_id).headers == ()


def test_the_newest_whole_copy_is_taken_from_any_place(session: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    old, new = (
        (header_of(text, session.target, "ada@laptop"), text)
        for text in (state(ROOT, each).text for each in (NAMESPACE, HOST))
    )
    folder = session.target.folder / "state"
    folder.mkdir(parents=True)
    (folder / old[0].name).write_text(packed(*old))
    (folder / new[0].name).write_text(packed(*new)[:-9])
    on_server = Place("server-1", (new[0],), SERVER)
    here = Place.of_folder(session.target.folder)
    assert here.headers == (old[0], new[0])
    answer = {"copy": base64.b64encode(packed(*new).encode()).decode()}
    monkeypatch.setattr(copies, "_ask", lambda login, hosts, values: [(hosts[0], answer)])
    assert copies._choose(session, None, [here, on_server]) == new
    assert session.said[1].startswith("  damaged on this folder: it cannot be read: ")
    monkeypatch.setattr(copies, "_ask", lambda *_: ["server-1: is not responding"])
    assert copies._choose(session, None, [here, on_server]) == old
    session.target = Target(session.target.project, "other")
    with pytest.raises(Failed, match=r"of tiny/other on this folder; there are copies of tiny/prod, which"):
        copies._choose(session, None, [here])


def test_a_copy_of_another_cluster_than_the_hosts_is_passed_over(session: Any) -> None:
    """A new state in place of the lost one, as `busbar up` made one until preflight refused the hosts."""
    folder = session.target.folder / "state"
    folder.mkdir(parents=True)
    made = [{**HOST, "inputs": {"create": f"env INSTALL_ID={each * 16} bash"}} for each in "ab"]
    for text in (state(ROOT, each).text for each in (*made, TOKEN)):
        header = header_of(text, session.target, "ada@laptop")
        (folder / header.name).write_text(packed(header, text))
    here, on_server = Place.of_folder(session.target.folder), place("server-1", "a" * 16)
    assert "a" * 16 in copies._choose(session, None, [here, on_server])[1]
    with pytest.raises(Failed, match="no whole copy of the state of tiny/prod on this folder, server-1"):
        copies._choose(session, None, [here, place("server-1", "c" * 16)])


def test_a_state_that_has_made_nothing_displaces_no_copy(session: Any) -> None:
    copies.keep(session, state(), state(ROOT, CLUSTER, TOKEN))
    assert not session.target.folder.exists()


def test_a_newer_state_and_a_silent_host_are_warnings(session: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    other, _ = copy("other", author="bob@desktop")
    asked: list[dict[str, str]] = []

    def ask(login: Any, hosts: Any, values: dict[str, str], **payload: str) -> list[Any]:
        asked.append({**values, **payload})
        facts = {"install_id": "", "rotated": "", "copies": [other.model_dump(mode="json")]}
        return [(SERVER, facts), "server-2: is not responding"]

    monkeypatch.setattr(copies, "_keepers", lambda _: (None, [SERVER]))
    monkeypatch.setattr(copies, "_ask", ask)
    installed = {**HOST, "inputs": {"create": f"sudo env INSTALL_ID={'a' * 16} bash"}}
    copies.keep(session, state(), state(ROOT, installed))
    assert asked[0]["INSTALL_ID"] == "a" * 16
    [path] = (session.target.folder / "state").iterdir()
    assert (asked[0]["VERB"], asked[0]["NAME"], asked[0]["copy"]) == ("keep", path.name, path.read_text())
    first, second = session.said
    assert first == "warning: no copy of the state there: server-2: is not responding"
    assert second.startswith("warning: bob@desktop has kept another state of this stack at ")


def test_a_state_that_others_made_meanwhile_is_kept(session: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    export, states = state(ROOT, NAMESPACE).text, iter([state(), state(ROOT, HOST)])
    monkeypatch.setattr(copies, "_keepers", lambda _: (None, ()))
    monkeypatch.setattr(copies, "open_stack", lambda *_, **__: None)
    monkeypatch.setattr(copies, "snapshot", lambda _: next(states))
    monkeypatch.setattr(copies, "_choose", lambda *_: (header_of(export, session.target, "ada"), export))
    monkeypatch.setattr(copies, "import_state", lambda *_: pytest.fail("imported"))
    monkeypatch.setattr("busbar.cli.stack.session.run", lambda verb, target, run, **_: run(session))
    session.engine = None
    with pytest.raises(Failed, match="has 1 resource, and only a lost one is recovered"):
        copies.recover(session.target, yes=True)


def test_the_newest_copy_stays_the_newest_after_the_clock_was_set_back(
    session: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(KEPT + 1):
        now = datetime(2026, 7, 1, 12 - number, tzinfo=UTC)
        monkeypatch.setattr(
            copies,
            "datetime",
            SimpleNamespace(now=lambda _, now=now: now, fromisoformat=datetime.fromisoformat),
        )
        last = state(ROOT, *[NAMESPACE] * number)
        copies.keep(session, state(), last)
    kept = sorted((session.target.folder / "state").iterdir())
    assert (len(kept), read(kept[-1].read_text())[1]) == (KEPT, last.text)

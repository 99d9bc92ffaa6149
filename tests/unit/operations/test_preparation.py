"""Hosts download ahead what they install later; a host on which that fails stops nothing."""

import asyncio
import json
from typing import Any

import pytest

from busbar.hosts.inventory import Host
from busbar.operations.preparation import Preparation, prepare
from tests.support.cli import busbar
from tests.support.ssh_hosts import CLOSED_PORT, at, login, machine, printing

VALUES = {"server": {"VERSION": "v1"}, "worker": {"VERSION": "v1", "IMAGES": "aa http://m/i.tar"}}


def spec(*hosts: Host, **changes: Any) -> Preparation:
    made = Preparation(login=login(), hosts=hosts, values=VALUES, timeout_seconds=20)
    return made.model_copy(update=changes)


def test_each_host_downloads_what_its_role_installs() -> None:
    commands: list[str] = []

    async def scenario() -> dict[str, str]:
        async with machine(printing({"node": "x"}, commands)) as port:
            return await prepare(spec(at(port, "s-1", "server"), at(port, "w-1", "worker")), {}, print)

    assert sorted(asyncio.run(scenario())) == ["s-1", "w-1"]
    assert sorted("IMAGES=" in each for each in commands) == [False, True]


def test_a_host_that_does_not_respond_stops_no_other_one_and_is_not_recorded() -> None:
    said: list[str] = []

    async def scenario() -> dict[str, str]:
        async with machine(printing({"node": "x"}, [])) as port:
            gone = at(CLOSED_PORT, "w-1", "worker")
            return await prepare(spec(gone, at(port, "w-2", "worker")), {}, said.append)

    assert list(asyncio.run(scenario())) == ["w-2"]
    [note] = said
    assert note.startswith("note: 1 of 2 hosts have not downloaded everything ahead: w-1: ")


def test_a_host_that_is_prepared_is_not_asked_again() -> None:
    asked = spec(at(CLOSED_PORT, "w-1", "worker"))
    previous = {"w-1": asked.digest(asked.hosts[0])}
    assert asyncio.run(prepare(asked, previous, lambda text: pytest.fail(text))) == previous


@pytest.mark.parametrize("change", [{"port": 2}, {"host_key": "ssh-ed25519 BBBB"}, {"role": "server"}])
def test_another_machine_or_role_is_prepared_again(change: dict[str, Any]) -> None:
    host = at(CLOSED_PORT, "w-1", "worker")
    asked = spec(host)
    assert asked.digest(Host(**{**host.data(), **change})) != asked.digest(host)


def test_after_the_deadline_what_is_done_counts() -> None:
    said: list[str] = []
    found = asyncio.run(prepare(spec(at(CLOSED_PORT, "w-1", "worker"), timeout_seconds=0), {}, said.append))
    assert (found, "timed out after 0 s" in said[0]) == ({}, True)


def test_the_command_ends_with_0_and_prints_what_is_prepared(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = spec(at(CLOSED_PORT, "w-1", "worker"), at(CLOSED_PORT, "w-2", "worker"))
    previous = {"w-1": asked.digest(asked.hosts[0])}
    monkeypatch.setenv("PULUMI_COMMAND_STDOUT", json.dumps(previous))
    done = busbar("prepare", stdin=asked.model_dump_json())
    assert (done.exit_code, json.loads(done.stdout)) == (0, previous)
    assert "1 of 2 hosts have not downloaded everything ahead: w-2: " in done.stderr

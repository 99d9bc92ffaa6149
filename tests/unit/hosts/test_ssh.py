"""The SSH connection to a host, to a real server on loopback."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from busbar.hosts import ssh
from tests.support.ssh_hosts import at, login, machine, public


def test_what_the_ssh_config_of_a_user_says_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / ".ssh").mkdir()
    (tmp_path / ".ssh/config").write_text("Host *\n  HostName none.invalid\n  ProxyCommand false\n")
    monkeypatch.setenv("HOME", str(tmp_path))

    async def offered() -> tuple[str, str]:
        async with machine() as port:
            host = at(port, "worker-1", "worker")
            async with await ssh.connect(host, ssh.load_keys(login()), None) as connection:
                logged_in = connection.get_server_host_key()
            assert logged_in is not None
            return public(logged_in), await ssh.offered_key(host, None)

    by_login, by_asking = asyncio.run(offered())
    assert by_login == by_asking == at(0, "worker-1", "worker").host_key

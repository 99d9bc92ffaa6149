"""A host to log in to: an SSH server on loopback that runs commands for real, with keys made for the test."""

from __future__ import annotations

import asyncio
import subprocess
import threading
from pathlib import Path
from typing import Any

import asyncssh


class _Doorman(asyncssh.SSHServer):
    """Lets a login pass on to other hosts, as a bastion must."""

    def connection_requested(self, *where: Any) -> bool:
        return True


class SshHost:
    """Accepts one key for any user; `accept_env` names the variables it lets in."""

    def __init__(self, root: Path, accept_env: frozenset[str] = frozenset()) -> None:
        self.root = root
        self.accept_env = accept_env
        self.commands = 0
        self._host_key = asyncssh.generate_private_key("ssh-ed25519")
        self._user_key = asyncssh.generate_private_key("ssh-ed25519")
        self.host_key = self._host_key.export_public_key("openssh").decode().strip()
        self.private_key = self._user_key.export_private_key("openssh").decode()
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, daemon=True).start()
        self._server = asyncio.run_coroutine_threadsafe(self._listen(), self._loop).result(10)
        self.port = self._server.sockets[0].getsockname()[1]

    async def _listen(self) -> Any:
        return await asyncssh.listen(
            "127.0.0.1",
            0,
            server_factory=_Doorman,
            server_host_keys=[self._host_key],
            authorized_client_keys=asyncssh.import_authorized_keys(
                self._user_key.export_public_key("openssh").decode()
            ),
            process_factory=self._serve,
            sftp_factory=True,
            encoding=None,
        )

    async def _serve(self, process: asyncssh.SSHServerProcess[bytes]) -> None:
        self.commands += 1
        sent = {_text(key): _text(value) for key, value in (process.env or {}).items()}
        child = await asyncio.create_subprocess_shell(
            _text(process.command or ""),
            cwd=self.root,
            env={"PATH": "/usr/bin:/bin", **{key: sent[key] for key in sent if key in self.accept_env}},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        out, errors = await child.communicate(await process.stdin.read())
        process.stdout.write(out)
        process.stderr.write(errors)
        if child.returncode is not None and child.returncode < 0:
            process.exit_with_signal({9: "KILL", 15: "TERM"}[-child.returncode])
        else:
            process.exit(child.returncode or 0)

    def connection(self, **more: Any) -> dict[str, Any]:
        """The `connection` input to reach this host."""
        return {
            "host": "127.0.0.1",
            "port": self.port,
            "privateKey": self.private_key,
            "hostKey": self.host_key,
            "dialErrorLimit": 1,
            **more,
        }

    def close(self) -> None:
        async def stop() -> None:
            self._server.close()
            await self._server.wait_closed()

        asyncio.run_coroutine_threadsafe(stop(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)


def _text(value: bytes | str) -> str:
    return value.decode() if isinstance(value, bytes) else value

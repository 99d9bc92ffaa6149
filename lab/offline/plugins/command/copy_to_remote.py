"""remote.CopyToRemote: put an asset on a host over SFTP.

Followed from pulumi-command 1.2.1 (provider/pkg/provider/remote/copyController.go). Not here: archives made
of assets, and sources that must be downloaded.
"""

from __future__ import annotations

import os
import posixpath
from typing import Any

import asyncssh

from lab.offline.plugins.command import connection_input
from lab.offline.plugins.command.base import differ
from lab.offline.plugins.command.ssh_dial import dial
from lab.offline.plugins.command.ssh_loop import wait_for
from lab.offline.plugins.sdk.resource import Call, Difference, Failure, ProviderError, Resource, unique
from lab.offline.plugins.sdk.values import Properties, Unknown, asset_kind, reveal

_FIELDS = frozenset({"connection", "triggers", "source", "remotePath"})


class CopyToRemote(Resource):
    """Copies at creation and when content or path changed; never removes anything."""

    def check(self, call: Call, olds: Properties, news: Properties) -> tuple[Properties, list[Failure]]:
        inputs, failures = connection_input.check(news)
        source = reveal(news.get("source"))
        if not isinstance(source, Unknown) and asset_kind(source) is None:
            failures.append(Failure("asset", "either asset or archive must be set"))
        if reveal(news.get("remotePath")) is None:
            failures.append(Failure("remotePath", "Missing required property 'remotePath'"))
        return inputs, failures

    def diff(self, call: Call, id: str, state: Properties, news: Properties) -> Difference:
        return differ(call, state, news, _FIELDS)

    def create(self, call: Call, inputs: Properties) -> tuple[str, Properties]:
        if not call.preview:
            wait_for(_copy(call, reveal(inputs)))
        return unique(""), inputs

    def update(self, call: Call, id: str, state: Properties, news: Properties) -> Properties:
        old, new = reveal(state), reveal(news)
        content_changed = (old.get("source") or {}).get("hash") != (new.get("source") or {}).get("hash")
        if not call.preview and (content_changed or old.get("remotePath") != new.get("remotePath")):
            wait_for(_copy(call, new))
        return news


async def _copy(call: Call, inputs: Properties) -> None:
    source, target = inputs["source"], inputs["remotePath"]
    async with await dial(inputs["connection"], call.show, call.cancelled) as connection:
        try:
            async with connection.start_sftp_client() as sftp:
                if "text" in source and asset_kind(source) == "asset":
                    await _put_text(sftp, source["text"], target)
                elif source.get("path"):
                    await _put_path(sftp, source["path"], target)
                else:
                    raise ProviderError(
                        "this replacement of the command plugin copies text and local paths only"
                    )
        except asyncssh.SFTPError as error:
            raise ProviderError(f"failed to copy to remote path {target}: {error.reason}") from error


async def _put_text(sftp: asyncssh.SFTPClient, text: str, target: str) -> None:
    if await sftp.isdir(target):
        raise ProviderError(
            f"remote path {target} is a directory; when using a text asset, remotePath must be a file path"
        )
    await _write(sftp, text.encode(), target)


async def _put_path(sftp: asyncssh.SFTPClient, source: str, target: str) -> None:
    try:
        if os.path.isdir(source):
            await _put_folder(sftp, source, target)
            return
        with open(source, "rb") as file:
            data = file.read()
    except OSError as error:
        raise ProviderError(str(error)) from error
    if await sftp.isdir(target):
        target = posixpath.join(target, os.path.basename(source))
    await _write(sftp, data, target)


async def _put_folder(sftp: asyncssh.SFTPClient, source: str, target: str) -> None:
    # A trailing slash means the content of the folder, none the folder itself.
    top = target if source.endswith("/") else posixpath.join(target, os.path.basename(source))
    for folder, _, files in os.walk(source):
        inside = os.path.relpath(folder, source)
        there = top if inside == "." else posixpath.join(top, inside)
        if await sftp.isfile(there):
            raise ProviderError(f"remote path {there} exists but is not a directory")
        await sftp.makedirs(there, exist_ok=True)
        for name in files:
            with open(os.path.join(folder, name), "rb") as file:
                await _write(sftp, file.read(), posixpath.join(there, name))


async def _write(sftp: asyncssh.SFTPClient, data: bytes, target: str) -> None:
    await sftp.makedirs(posixpath.dirname(target) or ".", exist_ok=True)
    file: Any
    async with sftp.open(target, "wb") as file:
        await file.write(data)

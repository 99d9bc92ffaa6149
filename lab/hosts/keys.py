"""SSH keys: public test host keys, and a private client key per run state.

A host key of the lab derives from the host's name alone, so that a stack file can pin it as a constant.
It protects nothing: anyone with this file can compute the private key.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

_SEED = "busbar lab: public test key of host {name}"


def host_key(name: str) -> Ed25519PrivateKey:
    """The ed25519 host key of the lab's host `name`; always the same one."""
    return Ed25519PrivateKey.from_private_bytes(hashlib.sha256(_SEED.format(name=name).encode()).digest())


def public_line(key: Ed25519PrivateKey) -> str:
    """`ssh-ed25519 AAAA…`, the format of known_hosts and authorized_keys, without a comment."""
    return key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode()


def private_text(key: Ed25519PrivateKey) -> bytes:
    """The private key in OpenSSH's format, unencrypted."""
    return key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption())


def write_private(path: Path, key: Ed25519PrivateKey) -> None:
    """Write `path` (0600) and `path`.pub."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    path.unlink(missing_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(private_text(key))
    path.with_name(path.name + ".pub").write_text(public_line(key) + "\n")


def ensure_client_key(path: Path) -> str:
    """Make the client key of this run state if it is missing; returns its public line."""
    public = path.with_name(path.name + ".pub")
    if not (path.exists() and public.exists()):
        write_private(path, Ed25519PrivateKey.generate())
    return public.read_text().strip()

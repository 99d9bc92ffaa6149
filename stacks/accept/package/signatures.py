"""SSH signatures of a document, by ssh-keygen: of SHA256SUMS, one file per signer."""

from __future__ import annotations

import base64
import hashlib
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from busbar.exits import Failed, NoVerdict
from stacks.accept.package.document import SIGNATURES, SUMS

NAMESPACE = "acceptance@busbar"
MAX_SIGNATURES, MAX_BYTES = 64, 16 << 10
SECONDS = 60
NAME = re.compile(rf"{SIGNATURES}/[0-9a-f]{{32}}\.sig")


@dataclass(frozen=True)
class Signature:
    """A signature. `state`: bad: of other data, or another namespace; unknown: nobody vouches for the key.

    `principal`: the name that allowed_signers gives to a good one.
    """

    file: str
    state: Literal["good", "bad", "unknown"]
    text: str
    principal: str = ""


def sign(folder: Path, key: Path) -> Path:
    """Sign the document with a private key, or with the public key of one in ssh-agent. Raises Failed."""
    public = key.with_name(f"{key.name}.pub")
    key = public if not key.exists() and public.exists() else key
    # The data goes in on stdin: given a file name, ssh-keygen may exit with 0 and write nothing.
    done = _ssh_keygen("-Y", "sign", "-f", str(key), "-n", NAMESPACE, data=(folder / SUMS).read_bytes())
    if done.returncode or not done.stdout.startswith(b"-----BEGIN SSH SIGNATURE-----"):
        said = (done.stderr or done.stdout).decode("utf-8", "replace")
        fix = f"ssh-add {key.with_suffix('') if key.suffix == '.pub' else key}, and name its public key"
        fix = f"chmod 600 {key}" if "too open" in said else fix
        raise Failed(f"{key}: ssh-keygen did not sign: {_said(done)}. Fix: {fix}")
    path = folder / SIGNATURES / f"{hashlib.sha256(_signer(done.stdout)).hexdigest()[:32]}.sig"
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(done.stdout)
    path.chmod(0o644)
    return path


def _signer(signature: bytes) -> bytes:
    """The public key in a signature (PROTOCOL.sshsig); a certificate of a key is another one than the key."""
    blob = base64.b64decode(b"".join(signature.splitlines()[1:-1]))
    length = int.from_bytes(blob[10:14])
    return blob[14 : 14 + length]


def check(folder: Path, names: list[str], signers: Path | None) -> list[Signature]:
    """The state of each signature; SIGNERS: a file allowed_signers of OpenSSH. Raises NoVerdict."""
    data = (folder / SUMS).read_bytes()
    return [_check(folder / name, name, data, signers) for name in names]


def _check(file: Path, name: str, data: bytes, signers: Path | None) -> Signature:
    about = ("-n", NAMESPACE, "-s", str(file))
    valid = _ssh_keygen("-Y", "check-novalidate", *about, data=data)
    if valid.returncode:
        return Signature(name, "bad", f"not of these data in the namespace {NAMESPACE}: {_said(valid)}")
    key = _key(valid.stdout)
    if signers is None:
        return Signature(name, "unknown", f"key {key}: no signers are known. Fix: --signers FILE")
    found = _ssh_keygen("-Y", "find-principals", "-s", str(file), "-f", str(signers), data=b"")
    principal = found.stdout.decode("utf-8", "replace").splitlines()
    if found.returncode or not principal:
        return Signature(name, "unknown", f"key {key}: {_said(found)}")
    given = ("-f", str(signers), "-I", principal[0])
    verified = _ssh_keygen("-Y", "verify", *given, *about, data=data)
    if verified.returncode:
        return Signature(name, "unknown", f"key {key} of {principal[0]}: {_said(verified)}")
    return Signature(name, "good", f"{principal[0]}, key {key}", principal[0])


def _key(printed: bytes) -> str:
    found = re.search(rb"SHA256:[A-Za-z0-9+/]+", printed)
    return found[0].decode() if found else "?"


def _said(done: subprocess.CompletedProcess[bytes]) -> str:
    text = (done.stderr or done.stdout).decode("utf-8", "replace")
    told = [line for line in text.splitlines() if "@@@" not in line and not line.startswith("Signing data")]
    return " ".join(" ".join(told).split())[:300] or f"exit code {done.returncode}"


def _ssh_keygen(*words: str, data: bytes) -> subprocess.CompletedProcess[bytes]:
    try:
        return subprocess.run(
            ["ssh-keygen", *words], input=data, capture_output=True, timeout=SECONDS, check=False
        )
    except FileNotFoundError:
        raise NoVerdict("ssh-keygen is not on PATH. Fix: install OpenSSH's client (openssh-client)") from None
    except subprocess.TimeoutExpired:
        raise NoVerdict(f"ssh-keygen timed out after {SECONDS} s") from None

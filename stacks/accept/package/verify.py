"""Signs a document, and verifies one: its files, its signatures, and all evidence judged again."""

from __future__ import annotations

import base64
import hashlib
import re
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from busbar.exits import DONE, FAILED, NO_VERDICT, Failed, Misuse, NoVerdict
from busbar.text import listed
from busbar.zstd import ZstdFile
from stacks.accept.package import criteria, document
from stacks.accept.package.criteria import offered
from stacks.accept.package.document import ACCEPTANCE, CRITERIA, REPORT, SIGNATURES, SUMS
from stacks.accept.package.evidence import (
    FOLDER,
    RUN,
    Evidence,
    Untrusted,
    digest_of,
    files_of,
    read_json,
    sha256,
)
from stacks.accept.package.subjects.inventory import NO_VALUE

NAMESPACE = "acceptance@busbar"
MAX_SIGNATURES, MAX_BYTES = 64, 16 << 10
SECONDS = 60
_SIGNATURE = re.compile(rf"{SIGNATURES}/[0-9a-f]{{32}}\.sig")
_SUM = re.compile(r"([0-9a-f]{64})  (\S+)")
# The limit is that of all files together: zstd may make GB of a few KB.
MAX_UNPACKED = 2 << 30
# Every release reads these from the evidence; all else is judged.
FACTS = (
    "schema", "run", "stack", "cluster", "cluster_id", "began", "ended", "criteria", "sum", "files", "nodes",
)  # fmt: skip


@dataclass(frozen=True)
class Signature:
    """A signature. `state`: bad: of other data, or another namespace; unknown: nobody vouches for the key.

    `principal`: the name that allowed_signers gives to a good one.
    """

    state: Literal["good", "bad", "unknown"]
    text: str
    principal: str = ""


@dataclass(frozen=True)
class Verified:
    """The result of a verification.

    `refusals`: what is not as agreed, as sentences. `differences`: rows that this release judges otherwise.
    `unsigned`: signers that were asked for, without a good signature.
    """

    document: Mapping[str, Any]
    again: Mapping[str, Any]
    same_release: bool
    differences: list[str]
    signatures: list[Signature]
    unsigned: list[str]
    refusals: list[str]

    @property
    def exit_code(self) -> int:
        """0: accepted, signed by known signers, the same when judged again; 1: refused; 2: not decided."""
        verdicts = [self.document.get("verdict"), self.again["verdict"]]
        is_forged = self.same_release and self.differences
        is_bad = any(each.state == "bad" for each in self.signatures)
        if "refused" in verdicts or is_forged or is_bad or self.refusals:
            return FAILED
        is_signed = any(each.state == "good" for each in self.signatures) and not self.unsigned
        return DONE if verdicts == ["accepted"] * 2 and is_signed and not self.differences else NO_VERDICT


def verify(
    folder: Path,
    signers: Path | None,
    *,
    agreed: Path | None = None,
    signed_by: Sequence[str] = (),
    cluster_id: str | None = None,
    machines: Path | None = None,
) -> Verified:
    """Verify the document in FOLDER. Raises Untrusted, in one sentence, for a folder that is refused.

    AGREED: the buyer's criteria. MACHINES: a file with the id of a machine, or the serial of it or of one of
    its parts, per line. Raises NoVerdict where the folder cannot be read.
    """
    files = files_of(folder)
    signatures = check_files(files)
    stored = read_json(files[ACCEPTANCE])
    if not isinstance(stored, dict):
        raise Untrusted(f"{ACCEPTANCE} is not a JSON object")
    if (schema := stored.get("schema")) != document.SCHEMA:
        why = f"has the schema {schema!r}, expected {document.SCHEMA}"
        raise Untrusted(f"{ACCEPTANCE} {why}. Fix: verify it with the busbar that wrote it")
    if stored.get("files") != document.hashes_of(files):
        raise Untrusted(f"{ACCEPTANCE}: `files` is not that of the evidence")
    try:
        again, texts = document.contents(folder)
        begun = Evidence(folder).begun
    except Misuse as error:  # of its criteria
        raise Untrusted(str(error)) from None
    same = stored.get("busbar") == again["busbar"] and begun.busbar == document.release()
    if same and (hidden := [each for each in offered(begun.site) if each not in begun.rows]):
        raise Untrusted(f"{FOLDER}/{RUN} hides rows of its release: {listed(hidden)}")
    differences = _compare(stored, again, same=same)
    for path, text in texts.items() if same and not differences else ():
        if files[path].read_text(encoding="utf-8", errors="replace") != text:
            raise Untrusted(f"{path} is not what its evidence gives")
    found = [_signature(files[name], files[SUMS].read_bytes(), signers) for name in signatures]
    good = {each.principal for each in found if each.state == "good"}
    unsigned = [name for name in signed_by if name not in good]
    refusals: list[str] = []
    if agreed:
        refusals += criteria.differences(criteria.parse(agreed), criteria.parse(folder / CRITERIA))
    if cluster_id and again["cluster_id"] != cluster_id:
        refusals.append(f"the cluster has the id {again['cluster_id']}, expected {cluster_id}")
    refusals += _other_machines(machines, again["nodes"]) if machines else []
    return Verified(stored, again, same, differences, found, unsigned, refusals)


def _other_machines(file: Path, nodes: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """The nodes that FILE does not list, and its entries that no node has. Raises Misuse."""
    try:
        text = re.sub("#.*", "", file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise Misuse(f"{file}: {error}") from None
    # /etc/machine-id is kept as a digest.
    entries = {
        entry: {entry.lower(), digest_of(entry)} for line in text.splitlines() if (entry := line.strip())
    }
    if not entries:
        raise Misuse(f"{file}: no machine is listed. Fix: a machine id or a serial per line")
    found = {name: _names(node) for name, node in nodes.items()}
    wanted, there = set().union(*entries.values()), set().union(*found.values())
    for name, names in found.items():
        if not names & wanted:
            yield f"{name} (machine id {nodes[name]['machine']}) is not in {file}"
    for entry, names in entries.items():
        if not names & there:
            yield f"{file}: no node of the folder has {entry}"


def _names(node: Mapping[str, Any]) -> set[str]:
    """Whatever identifies a node: its machine id and serial, and those of its parts."""
    parts = [*node.get("gpus", ()), *node.get("hcas", ())]
    found = [node.get("machine"), node.get("serial")]
    found += [part.get(key) for part in parts for key in ("uuid", "serial", "guid")]
    return {str(each).lower() for each in found if each and each not in NO_VALUE}


def check_files(files: Mapping[str, Path]) -> list[str]:
    """Compare the files with SHA256SUMS; the names of the signatures. Raises Untrusted."""
    signatures = [path for path in files if path.startswith(f"{SIGNATURES}/")]
    for path in signatures:
        if not _SIGNATURE.fullmatch(path) or files[path].stat().st_size > MAX_BYTES:
            raise Untrusted(f"{path!r} is not a signature that busbar writes")
    if len(signatures) > MAX_SIGNATURES:
        raise Untrusted(f"there are more than {MAX_SIGNATURES} signatures")
    wanted = _sums(files)
    there = {path for path in files if document.is_listed(path)}
    if missing := sorted(wanted.keys() - there):
        raise Untrusted(f"{missing[0]!r} is missing")
    if more := sorted(there - wanted.keys()):
        raise Untrusted(f"{more[0]!r} is not listed in {SUMS}")
    for path, digest in wanted.items():
        if sha256(files[path]) != digest:
            raise Untrusted(f"{path!r} has another sha256 than in {SUMS}: it was changed")
    own = {path for path in there if not path.startswith(f"{FOLDER}/")}
    if other := sorted(own ^ {ACCEPTANCE, CRITERIA, REPORT}):
        what = "is no file of an acceptance" if other[0] in own else "is missing"
        raise Untrusted(f"{other[0]!r} {what}")
    size = 0
    for path in sorted(there):
        for length in _lengths(path, files[path]):
            size += length
            if size > MAX_UNPACKED:
                raise Untrusted(f"the evidence unpacks to more than {MAX_UNPACKED >> 20} MiB")
    return signatures


def _lengths(path: str, file: Path) -> Iterator[int]:
    """The lengths of the parts of a file, unpacked. Raises Untrusted."""
    if not path.endswith(".zst"):
        yield file.stat().st_size
        return
    try:
        with ZstdFile(file) as packed:
            while chunk := packed.read(1 << 20):
                yield len(chunk)
    except Exception as error:  # ZstdError, EOFError and what else damaged data give
        raise Untrusted(f"{path!r} cannot be unpacked: {type(error).__name__}") from None


def _sums(files: Mapping[str, Path]) -> dict[str, str]:
    if SUMS not in files:
        raise Untrusted(f"{SUMS} is missing: this is not the document of an acceptance")
    found: dict[str, str] = {}
    for line in files[SUMS].read_text(encoding="utf-8", errors="replace").splitlines():
        entry = _SUM.fullmatch(line)
        if entry is None or entry[2] in found:
            raise Untrusted(f"{SUMS} has the line {line[:80]!r}, expected each file once with its sha256")
        found[entry[2]] = entry[1]
    return found


def _compare(stored: Mapping[str, Any], again: Mapping[str, Any], *, same: bool) -> list[str]:
    """Compare the document with its evidence; the rows that are judged otherwise. Raises Untrusted.

    SAME: this release has written it, so that each of its values must be the same.
    """
    try:
        before = {row["id"]: (row["result"], row.get("reason")) for row in stored["rows"]}
        now = {row["id"]: (row["result"], row["reason"]) for row in again["rows"]}
        found = [
            f"{name}: was {before[name][0]} ({before[name][1]}), is {now[name][0]} ({now[name][1]})"
            for name in now
            if before[name][0] != now[name][0]
        ]
    except (KeyError, TypeError):
        raise Untrusted(f"{ACCEPTANCE}: its rows are not those of the criteria") from None
    for key in FACTS if found or not same else sorted(again.keys() | stored.keys()):
        if stored.get(key) != again.get(key):
            raise Untrusted(f"{ACCEPTANCE}: `{key[:80]}` is not that of the evidence")
    if before.keys() != now.keys():
        raise Untrusted(f"{ACCEPTANCE}: its rows are not those of the criteria")
    return found


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


def _signature(file: Path, data: bytes, signers: Path | None) -> Signature:
    about = ("-n", NAMESPACE, "-s", str(file))
    valid = _ssh_keygen("-Y", "check-novalidate", *about, data=data)
    if valid.returncode:
        return Signature("bad", f"not of these data in the namespace {NAMESPACE}: {_said(valid)}")
    key = next(iter(re.findall(r"SHA256:[A-Za-z0-9+/]+", valid.stdout.decode("utf-8", "replace"))), "?")
    if signers is None:
        return Signature("unknown", f"key {key}: no signers are known. Fix: --signers FILE")
    found = _ssh_keygen("-Y", "find-principals", "-s", str(file), "-f", str(signers), data=b"")
    principal = found.stdout.decode("utf-8", "replace").splitlines()
    if found.returncode or not principal:
        return Signature("unknown", f"key {key}: {_said(found)}")
    given = ("-f", str(signers), "-I", principal[0])
    verified = _ssh_keygen("-Y", "verify", *given, *about, data=data)
    if verified.returncode:
        return Signature("unknown", f"key {key} of {principal[0]}: {_said(verified)}")
    return Signature("good", f"{principal[0]}, key {key}", principal[0])


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

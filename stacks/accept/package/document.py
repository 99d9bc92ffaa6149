"""The document: it is computed from its evidence alone, when it is written and when it is verified.

Whoever signs it signs the list of the sums of its files.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

from markupsafe import Markup

from busbar import __version__
from busbar.exits import DONE, FAILED, NO_VERDICT, Failed, Misuse, NoVerdict
from busbar.fabric.diagnosis.stages import comparable
from busbar.fabric.localise import Known
from busbar.fabric.localise.groups import GOOD
from busbar.judge.nccl.expected import JUDGE
from busbar.judge.nccl.report.html import style
from busbar.judge.nccl.report.svg import curve_svg, series_svg, template
from busbar.release import commit
from busbar.text import listed
from busbar.writing import write_whole
from busbar.zstd import ZstdFile
from stacks.accept.package import criteria as contract
from stacks.accept.package import evidence as kept
from stacks.accept.package import kinds
from stacks.accept.package.evidence import FOLDER, Evidence, Untrusted, files_of, or_none, sha256
from stacks.accept.package.subjects import STAGES
from stacks.accept.package.subjects.cabling import design_of, design_of_run, read_design
from stacks.accept.package.subjects.inventory import NO_VALUE
from stacks.accept.package.subjects.soak import dots

CRITERIA, ACCEPTANCE, REPORT, SUMS = "acceptance.yaml", "acceptance.json", "report.html", "SHA256SUMS"
SIGNATURES = "signatures"
SCHEMA = 3
"""Raised when the meaning of a document changes; another one is refused."""
# Settings of a measurement that are versions, with that of NCCL.
VERSIONS = ("k3s", "gpu-operator", "network-operator", "image", "nccl")
# The share of the expected busbw below which a cell of the page has this colour.
COLOURS = ((1 / 3, "#e06666"), (0.6, "#ea8f7a"), (0.8, "#f4b183"), (GOOD, "#ffe08a"), (1e9, "#a9dfb3"))
WORDS = {"accepted": "Accepted on", "refused": "Refused; passed are", "undecided": "Not decided; passed are"}

NAMESPACE = "acceptance@busbar"
MAX_BYTES, SECONDS = 16 << 10, 60
_SIGNATURE = re.compile(rf"{SIGNATURES}/[0-9a-f]{{32}}\.sig")
# The limit is that of all files together: zstd may make GB of a few KB.
MAX_UNPACKED = 2 << 30
# Every release reads these from the evidence; all else is judged.
FACTS = (
    "schema", "run", "stack", "cluster", "cluster_id", "began", "ended", "criteria", "sum", "files", "nodes",
)  # fmt: skip


def acceptance(folder: Path, evidence: Evidence, hashes: Mapping[str, str]) -> dict[str, Any]:
    """The content of acceptance.json. HASHES: file -> sha256. Raises Untrusted, Misuse for bad criteria."""
    begun, usual = evidence.begun, contract.possible(evidence.begun.site)
    criteria = contract.read(folder / CRITERIA, begun.site)
    found = [kinds.result(row, evidence, hashes) for row in criteria.rows]
    for row in found:
        ours = usual[row["id"]]
        row["own_words"] = any(row[key] not in ("", getattr(ours, key)) for key in ("measured", "source"))
    reports, pools = evidence.inventory.hosts, begun.site.pools
    workers = {name: pool for pool, each in pools.items() for name in each.workers}
    if len(workers) != sum(len(each.workers) for each in pools.values()):
        raise Untrusted("a worker is twice in the site")
    if foreign := sorted(reports.keys() - workers.keys()):
        raise Untrusted(f"the inventory has {foreign[0]!r}, which is no worker of the site")
    installed = {each.owner.install_id for each in reports.values()}
    if len(installed) > 1:
        raise Untrusted("the inventory has workers of several clusters")
    said: set[str | None] = {each.also.simulated for each in reports.values()}
    versions, ended = dict[str, str](), [begun.began]
    for stage in STAGES:
        if done := evidence.stage(stage.name):
            ended.append(done.ended)
        if printed := or_none(partial(evidence.printed, stage.name)):
            said |= {str(host.get("simulated") or "") for host in printed.hosts.values()}
        for pool in pools:
            if log := or_none(partial(evidence.judged, stage.name, pool)):
                said.add(log.verdict.simulated)
                settings = {**log.record.settings, "nccl": log.verdict.nccl_version}
                versions |= {key: value for key in VERSIONS if (value := settings.get(key))}
    # Also rows that this release has, and the one that ran it does not name.
    here, all_rows = {row.id for row in criteria.rows}, (*begun.rows, *contract.offered(begun.site))
    taken_out = [name for name in dict.fromkeys(all_rows) if name not in here]
    quarantined = {name: why for pool in pools.values() for name, why in pool.quarantined.items()}
    left_out = {name: f"in quarantine: {why}" for name, why in quarantined.items()}
    left_out |= kinds.failed_nodes(found)
    return {
        "simulated": "; ".join(sorted(each for each in said if each)) or None,
        "schema": SCHEMA,
        "verdict": kinds.verdict(found),
        "run": begun.run,
        "stack": begun.site.stack,
        "cluster": begun.site.cluster,
        "cluster_id": next(iter(installed), "") or None,
        "began": begun.began,
        "ended": max(ended),
        "busbar": {**begun.busbar, "judge": JUDGE},
        "versions": versions,
        "criteria": {"file": CRITERIA, "sha256": hashes[CRITERIA]},
        "counts": {
            "passed": sum(row["required"] and row["result"] == "pass" for row in found),
            "rows": len(found) + len(taken_out),
            "taken_out": len(taken_out),
            "not_required": sum(not row["required"] for row in found),
        },
        "taken_out": taken_out,
        "left_out": left_out,
        "holds_on": len(workers.keys() - left_out.keys()),
        "bought": len(workers) + len(quarantined),
        "nodes": {name: {"pool": pool, **_node(evidence, name)} for name, pool in workers.items()},
        "sum": hashlib.sha256(sums_of(hashes).encode()).hexdigest(),
        "rows": found,
        "files": dict(hashes),
    }


def _node(evidence: Evidence, name: str) -> dict[str, Any]:
    """The parts of a worker, for a list of parts."""
    report = evidence.inventory.hosts.get(name)
    if report is None:
        met = [found.hosts[name].machine for _, found in evidence.met if name in found.hosts]
        return {"machine": met[-1] if met else None}
    fw = {(each.name, each.port): each.fw for each in report.hcas}
    hcas = [{**each.model_dump(), "firmware": fw.get((each.name, each.port))} for each in report.also.hcas]
    return {
        "machine": report.also.machine or None,
        "serial": report.also.serial or None,
        "driver": next((gpu.driver for gpu in report.gpus.list), None) if report.gpus else None,
        "gpus": [each.model_dump() for each in report.also.gpus],
        "hcas": hcas,
    }


def headline(found: Mapping[str, Any], verdict: str = "") -> str:
    """The verdict with the number of rows that it stands on; VERDICT in place of that of the document."""
    counts = found["counts"]
    left = [f"{counts[key]} {key.replace('_', ' ')}" for key in ("taken_out", "not_required") if counts[key]]
    more = f" ({', '.join(left)})" if left else ""
    return f"{WORDS[verdict or found['verdict']]} {counts['passed']} of {counts['rows']} rows{more}"


def report(found: Mapping[str, Any], evidence: Evidence, signers: Sequence[str] = ()) -> str:
    """The page: no script, font or link. SIGNERS: a text on each signature that is known."""
    curves, pools = {}, evidence.begun.site.pools
    for pool in pools:
        log, more = (or_none(partial(evidence.judged, stage, pool)) for stage in ("collectives", "repeats"))
        for name, result in log.verdict.collectives.items() if log else ():
            if result.curve:
                runs = more.by_size(name) if more else None
                curves[f"{pool}: {name}"] = Markup(curve_svg(name, result, inline=True, runs=runs))
    figures = {pool: made for pool in pools if (made := or_none(partial(_figures, evidence, pool)))}
    series = {pool: shown for pool in pools if (shown := or_none(partial(dots, evidence, pool)))}
    return template("stacks.accept.package", "report.html.j2").render(
        found=found, signers=signers, headline=headline(found), style=style(), curves=curves, figures=figures,
        colours=COLOURS, soak=Markup(series_svg(series)) if series else "",
    )  # fmt: skip


def _figures(evidence: Evidence, pool: str) -> dict[str, list[tuple[float, float] | None]]:
    """Per node: alone, best pair, each rail, as a share and GB/s. Empty without runs. Raises Untrusted."""
    facts = evidence.begun.site.pools[pool]
    known = comparable(Known(evidence.results(pool, *kinds.OF_NODES), facts.group_gbps))
    best: dict[tuple[str, str | int], tuple[float, float]] = {}
    for group, share in known.shares().items():
        what = ("alone" if len(group.nodes) == 1 else "pair") if group.rail is None else group.rail
        for node in group.nodes:
            best[node, what] = max(best.get((node, what), (0.0, 0.0)), (share, known.results[group] or 0.0))
    columns = ("alone", "pair", *range(facts.required.rails))
    return {node: [best.get((node, what)) for what in columns] for node in facts.workers if best}


def release() -> dict[str, str]:
    """Version and commit of this release."""
    return {"version": __version__, "commit": commit()}


def hashes_of(files: Mapping[str, Path]) -> dict[str, str]:
    """The digests of the criteria and of all evidence."""
    return {path: sha256(file) for path, file in files.items() if path.split("/")[0] in (CRITERIA, FOLDER)}


def sums_of(hashes: Mapping[str, str]) -> str:
    """The text of SHA256SUMS."""
    return "".join(f"{digest}  {path}\n" for path, digest in hashes.items())


def is_listed(path: str) -> bool:
    """Whether a file stands in SHA256SUMS: each but that one and the signatures of it."""
    return path != SUMS and not path.startswith(f"{SIGNATURES}/")


def contents(folder: Path) -> tuple[dict[str, Any], dict[str, str]]:
    """The acceptance, and the text of every file that is computed from the evidence."""
    evidence = Evidence(folder)
    try:
        found = acceptance(folder, evidence, hashes_of(files_of(folder)))
    except (ArithmeticError, LookupError, TypeError, ValueError) as error:
        raise Untrusted(f"{FOLDER} cannot be judged: {type(error).__name__}") from None
    return found, {ACCEPTANCE: json.dumps(found, indent=1) + "\n", REPORT: report(found, evidence) + "\n"}


def write(folder: Path) -> dict[str, Any]:
    """Write the document from its evidence. Returns the acceptance."""
    found, texts = contents(folder)
    for name, text in texts.items():
        write_whole(folder / name, text)
    hashes = {path: sha256(file) for path, file in files_of(folder).items() if is_listed(path)}
    write_whole(folder / SUMS, sums_of(hashes))
    # Others read it too. The records of jobs are made for their owner alone.
    for path in (folder, *folder.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)
    return found


@dataclass(frozen=True)
class Signature:
    """A signature. `state`: bad: of other data, or another namespace; unknown: nobody vouches for the key.

    `principals`: the names that a line of allowed_signers gives to a good one.
    """

    state: Literal["good", "bad", "unknown"]
    text: str
    principals: Sequence[str] = ()


@dataclass(frozen=True)
class Verified:
    """The result of a verification.

    `refusals`: what is not as agreed, as sentences. `differences`: rows that this release judges otherwise.
    `unsigned`: signers that were asked for, without a good signature.
    """

    stored: Mapping[str, Any]
    again: Mapping[str, Any]
    same_release: bool
    differences: list[str]
    signatures: list[Signature]
    unsigned: list[str]
    refusals: list[str]

    @property
    def exit_code(self) -> int:
        """0: accepted, signed by known signers, the same when judged again; 1: refused; 2: not decided."""
        verdicts = [self.stored.get("verdict"), self.again["verdict"]]
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
    criteria: Path | None = None,
    signed_by: Sequence[str] | None = None,
    cluster_id: str | None = None,
    machines: Path | None = None,
    cabling: Path | None = None,
    after: str | None = None,
) -> Verified:
    """Verify the document in FOLDER. Raises Untrusted where it is refused, NoVerdict for an unreadable one.

    CRITERIA, CABLING: the buyer's. MACHINES: a file with the id of a machine, or a serial of it, per line.
    """
    files = files_of(folder)
    signatures = check_files(files)
    stored = kept.read_json(files[ACCEPTANCE])
    if not isinstance(stored, dict):
        raise Untrusted(f"{ACCEPTANCE} is not a JSON object")
    if (schema := stored.get("schema")) != SCHEMA:
        why = f"has the schema {schema!r}, expected {SCHEMA}"
        raise Untrusted(f"{ACCEPTANCE} {why}. Fix: verify it with the busbar that wrote it")
    if stored.get("files") != hashes_of(files):
        raise Untrusted(f"{ACCEPTANCE}: `files` is not that of the evidence")
    try:
        again, texts = contents(folder)
        begun = Evidence(folder).begun
    except Misuse as error:  # of its criteria
        raise Untrusted(str(error)) from None
    same = begun.busbar == release()
    if same and (hidden := [each for each in contract.offered(begun.site) if each not in begun.rows]):
        raise Untrusted(f"{FOLDER}/{kept.RUN} hides rows of its release: {listed(hidden)}")
    differences = _compare(stored, again, same=same)
    for path, text in texts.items() if same and not differences else ():
        if files[path].read_bytes() != text.encode("utf-8", "replace"):
            raise Untrusted(f"{path} is not what its evidence gives")
    found = [_signature(files[name], files[SUMS].read_bytes(), signers) for name in signatures]
    unsigned = [name for name in signed_by or () if not any(name in each.principals for each in found)]
    refusals: list[str] = []
    if criteria is not None:
        refusals += contract.differences(contract.parse(criteria), contract.parse(folder / CRITERIA))
    if cluster_id is not None and again["cluster_id"] != cluster_id:
        refusals.append(f"the cluster has the id {again['cluster_id']}, expected {cluster_id!r}")
    refusals += _other_machines(machines, again["nodes"]) if machines else []
    if cabling is not None and read_design(design_of(cabling)) != design_of_run(Evidence(folder)):
        refusals.append(f"the cabling in {FOLDER}/{kept.RUN} is not that of {cabling}")
    if after is not None and again["began"] < after:
        refusals.append(f"the run began at {again['began']}, expected {after} or later")
    return Verified(stored, again, same, differences, found, unsigned, refusals)


def _other_machines(file: Path, nodes: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """The nodes that FILE does not list, and its entries that no node has. Raises Misuse."""
    try:
        text = re.sub("#.*", "", file.read_text(encoding="utf-8-sig"))
    except (OSError, ValueError) as error:
        raise Misuse(f"{file}: {error}") from None
    # /etc/machine-id is kept as a digest.
    lines = filter(None, map(str.strip, text.splitlines()))
    entries = {entry: {entry.lower(), kept.digest_of(entry)} for entry in lines}
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
    return {str(each).lower() for each in found if each and not NO_VALUE.fullmatch(each)}


def check_files(files: Mapping[str, Path]) -> list[str]:
    """Compare the files with SHA256SUMS; the names of the signatures. Raises Untrusted."""
    signatures = [path for path in files if path.startswith(f"{SIGNATURES}/")]
    for path in signatures:
        if not _SIGNATURE.fullmatch(path) or files[path].stat().st_size > MAX_BYTES:
            raise Untrusted(f"{path!r} is not a signature that busbar writes")
    if SUMS not in files or files[SUMS].stat().st_size > kept.MAX_JSON:
        raise Untrusted(f"{SUMS} is missing or too large: this is not the document of an acceptance")
    text = files[SUMS].read_text(encoding="utf-8", errors="replace")
    wanted = {path: digest for digest, _, path in (line.partition("  ") for line in text.splitlines())}
    there = {path: sha256(file) for path, file in files.items() if is_listed(path)}
    for path in sorted({*wanted, *there, ACCEPTANCE, CRITERIA, REPORT}):
        if path not in there:
            raise Untrusted(f"{path[:200]!r} is missing")
        if path not in wanted:
            raise Untrusted(f"{path!r} is not listed in {SUMS}")
        if wanted[path] != there[path]:
            raise Untrusted(f"{path!r} has another sha256 than in {SUMS}: it was changed")
        if path not in (ACCEPTANCE, CRITERIA, REPORT) and not path.startswith(f"{FOLDER}/"):
            raise Untrusted(f"{path!r} is no file of an acceptance")
    if text != sums_of(there):
        raise Untrusted(f"{SUMS} does not have each file once with its sha256")
    size = 0
    for path in there:
        size += _unpacked_size(files[path], MAX_UNPACKED - size)
        if size > MAX_UNPACKED:
            raise Untrusted(f"the evidence unpacks to more than {MAX_UNPACKED >> 20} MiB")
    return signatures


def _unpacked_size(file: Path, most: int) -> int:
    """The size of a file, also unpacked, which is read only until it is above MOST. Raises Untrusted."""
    if file.suffix != ".zst":
        return file.stat().st_size
    size = 0
    try:
        with ZstdFile(file) as packed:
            while size <= most and (chunk := packed.read(1 << 20)):
                size += len(chunk)
    except Exception as error:  # ZstdError, EOFError and what else damaged data give
        raise Untrusted(f"{file.name} cannot be unpacked: {type(error).__name__}") from None
    return size


def _compare(stored: Mapping[str, Any], again: Mapping[str, Any], *, same: bool) -> list[str]:
    """The rows that are judged otherwise. SAME: each other value must be the same too. Raises Untrusted."""
    with kept.judging(ACCEPTANCE):
        before = {row["id"]: (row["result"], row.get("reason")) for row in stored["rows"]}
    now = {row["id"]: (row["result"], row["reason"]) for row in again["rows"]}
    if before.keys() != now.keys():
        raise Untrusted(f"{ACCEPTANCE}: its rows are not those of the criteria")
    found = [
        f"{name}: was {before[name][0]} ({before[name][1]}), is {now[name][0]} ({now[name][1]})"
        for name in now
        if before[name][0] != now[name][0]
    ]
    for key in FACTS if found or not same else sorted(again.keys() | stored.keys()):
        if stored.get(key) != again.get(key):
            raise Untrusted(f"{ACCEPTANCE}: `{key[:80]}` is not that of the evidence")
    return found


def sign(folder: Path, key: Path) -> Path:
    """Sign the document with a private key, or with the public key of one in ssh-agent. Raises Failed."""
    public = key.with_name(f"{key.name}.pub")
    key = public if not key.exists() and public.exists() else key
    # The data goes in on stdin: given a file name, ssh-keygen may exit with 0 and write nothing.
    done = _ssh_keygen("-Y", "sign", "-f", str(key), "-n", NAMESPACE, data=(folder / SUMS).read_bytes())
    if done.returncode or not done.stdout.startswith(b"-----BEGIN SSH SIGNATURE-----"):
        fix = f"ssh-add {key.with_suffix('') if key.suffix == '.pub' else key}, and name its public key"
        fix = f"chmod 600 {key}" if b"too open" in done.stderr else fix
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
    verified = _ssh_keygen("-Y", "verify", "-f", str(signers), "-I", principal[0], *about, data=data)
    if verified.returncode:
        return Signature("unknown", f"key {key} of {principal[0]}: {_said(verified)}")
    return Signature("good", f"{', '.join(principal)}, key {key}", principal)


def _said(done: subprocess.CompletedProcess[bytes]) -> str:
    text = (done.stderr or done.stdout).decode("utf-8", "replace")
    told = [line for line in text.splitlines() if "@@@" not in line and not line.startswith("Signing data")]
    return " ".join(" ".join(told).split())[:300] or f"exit code {done.returncode}"


def _ssh_keygen(*words: str, data: bytes) -> subprocess.CompletedProcess[bytes]:
    try:
        return subprocess.run(["ssh-keygen", *words], input=data, capture_output=True, timeout=SECONDS)
    except FileNotFoundError:
        raise NoVerdict("ssh-keygen is not on PATH. Fix: install OpenSSH's client (openssh-client)") from None
    except subprocess.TimeoutExpired:
        raise NoVerdict(f"ssh-keygen timed out after {SECONDS} s") from None

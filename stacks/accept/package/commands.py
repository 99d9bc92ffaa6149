"""`busbar accept`: from the criteria to a document that others can judge again."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from busbar.cli.output import print_text, progress
from busbar.cli.stackfile import Project, Stack, load_stack, stack_argument
from busbar.exits import DONE, FAILED, NO_VERDICT, Misuse

if TYPE_CHECKING:
    from busbar.config import Cluster
    from busbar.config.stackfile import StackFile
    from stacks.accept.package.site import Site

CODES = {"accepted": DONE, "refused": FAILED, "undecided": NO_VERDICT}
UNFINISHED = "unfinished"


def _option(name: str, value: str, text: str, **more: Any) -> Any:
    return typer.Option(name, metavar=value, help=text, **more)


_FILE: Any = {"exists": True, "dir_okay": False}
CriteriaFile = Annotated[
    Path | None, _option("--criteria", "FILE", "acceptance.yaml; default: the default rows.")
]
Idle = Annotated[bool, typer.Option("--idle", help="Take only free nodes; any pod that needs them ends it.")]
Document = Annotated[
    Path, typer.Argument(metavar="FOLDER", help="Folder of an acceptance.", exists=True, file_okay=False)
]
Key = Annotated[Path, _option("--key", "FILE", "SSH key; of one in ssh-agent its public key.")]
Signers = Annotated[Path | None, _option("--signers", "FILE", "OpenSSH's allowed_signers.", **_FILE)]
Cabling = Annotated[
    Path | None, _option("--cabling", "FILE", "Design of the cabling: a CSV file node,hca,switch,port.")
]
Soak = Annotated[
    str | None, _option("--soak", "HOURS", "Hours of load on each pool, 1h to 168h; default: none.")
]
Storage = Annotated[
    str | None, _option("--storage", "PATH", "Folder on shared storage, the same on all workers.")
]
_PROOF = "Folder of the proof that an update of stacks/training has made during this run."
Training = Annotated[Path | None, _option("--training", "FOLDER", _PROOF, file_okay=False)]
_IMAGE = "Image with DCGM and bash for the stress; default: DCGM of the hosts."
DcgmImage = Annotated[str | None, _option("--dcgm-image", "IMAGE", _IMAGE)]
SomeStack = Annotated[str | None, stack_argument()]
_FOREIGN = "Kubeconfig of a cluster that busbar did not make, for STACK."
Kubeconfig = Annotated[Path | None, _option("--kubeconfig", "FILE", _FOREIGN, **_FILE)]
_LIST = "With --kubeconfig: list of its hosts, for a login by SSH."
Listed = Annotated[Path | None, _option("--hosts", "FILE", _LIST)]
_KEYS = "With --kubeconfig: YAML with keys of `validation`."
Settings = Annotated[Path | None, _option("--settings", "FILE", _KEYS)]
_AGREED = "Criteria that were agreed on; other ones are refused."
AgreedCriteria = Annotated[Path | None, _option("--criteria", "FILE", _AGREED, **_FILE)]
SignedBy = Annotated[
    list[str] | None,
    _option("--signed-by", "NAME", "Who must have signed, by the name in --signers; repeatable."),
]
ClusterId = Annotated[str | None, _option("--cluster-id", "ID", "Id of the cluster; another one is refused.")]
_MACHINES = "A machine id or a serial per line; other machines are refused."
MachinesFile = Annotated[Path | None, _option("--machines", "FILE", _MACHINES, **_FILE)]
ReportFile = Annotated[Path | None, _option("--report", "PATH", "Write the page of this release there.")]
For = Annotated[str | None, _option("--for", "STACK", "Stack that sets the thresholds.")]


def register(group: typer.Typer) -> None:
    """Add the commands to `busbar accept`."""
    for command in (criteria, plan, cabling, run, sign, verify):
        group.command(command.__name__)(command)


def criteria(
    of: For = None,
    project: Project = None,
    soak: Soak = None,
    kubeconfig: Kubeconfig = None,
    settings: Settings = None,
) -> None:
    """Print the criteria as acceptance.yaml, or without --for and --kubeconfig their JSON Schema.

    Exit code 0: printed; 64: no such stack.
    """
    import json

    from stacks.accept.package import criteria as contract

    if of is None and kubeconfig is None:
        print_text(json.dumps(contract.schema(), indent=2))
    else:
        _, _, site = _soaked(of, project, soak, kubeconfig, settings)
        print_text(contract.text(contract.default(site)).rstrip())


def plan(stack: Stack, project: Project = None, criteria: CriteriaFile = None, soak: Soak = None) -> None:
    """Print the time, the GPUs and the node-minutes of each stage, and start nothing.

    Exit code 0: printed; 64: no such stack, or criteria that are not valid.
    """
    from rich.console import Console

    from busbar.judge.tables import table
    from stacks.accept.package import criteria as contract
    from stacks.accept.package.subjects import STAGES

    _, _, site = _soaked(stack, project, soak)
    rows = contract.read(criteria, site) if criteria else contract.default(site)
    made, total = table("stage", right=("rows", "minutes", "GPUs held", "node-minutes")), 0
    of, wanted = [row.parts[0] for row in rows.rows], contract.stages_of(rows.rows)
    hours = max((pool.soak_hours for pool in site.pools.values()), default=0)
    for stage in STAGES:
        more = 3600 * hours if stage.continues else 0
        pools = [(len(pool.workers), pool.required.gpus) for pool in site.pools.values()]
        seconds = sum(stage.seconds(nodes) + more for nodes, _ in pools) if stage.name in wanted else 0
        total += round(seconds)
        held = max((nodes * gpus for nodes, gpus in pools), default=0) if stage.holds_gpus and seconds else 0
        cost = sum(nodes * (stage.seconds(nodes) + more) for nodes, _ in pools) / 60 if held else 0
        made.add_row(stage.name, str(of.count(stage.name)), f"{seconds / 60:.0f}", str(held), f"{cost:.0f}")
    Console().print(made)
    print_text(f"{total / 60:.0f} minutes on free nodes, pool after pool. Nothing is left running.")
    if hours:
        print_text("If the command ends during the soak, its job goes on, with 12 hours of load at most.")


def cabling(stack: Stack, project: Project = None) -> None:
    """Print the cabling as it is built, as a CSV file that `run` takes as the design.

    Exit code 0: printed; 2: no worker answers, or none sees the fabric; 64: no such stack.
    """
    from stacks.accept.package.running import Running
    from stacks.accept.package.subjects.cabling import as_built

    file, cluster, site = _load(stack, project)
    print_text(as_built(Running(Path(), "cabling", site, file, cluster, True, progress)).rstrip("\n"))


def run(
    stack: SomeStack = None,
    project: Project = None,
    criteria: CriteriaFile = None,
    idle: Idle = False,
    cabling: Cabling = None,
    soak: Soak = None,
    storage: Storage = None,
    training: Training = None,
    dcgm_image: DcgmImage = None,
    kubeconfig: Kubeconfig = None,
    hosts: Listed = None,
    settings: Settings = None,
) -> None:
    """Run the stages that have not ended yet, then write the document. Nothing of the stack changes.

    A run that was interrupted is continued by the same command.

    Exit code 0: accepted; 1: refused; 2: a row or a stage without a result; 64: no such stack, or criteria
    that are not valid; 130: interrupted.
    """
    from stacks.accept.package import criteria as contract
    from stacks.accept.package import document
    from stacks.accept.package.evidence import Evidence
    from stacks.accept.package.running import Running, now, run_stage
    from stacks.accept.package.subjects import STAGES

    file, cluster, site = _soaked(stack, project, soak, kubeconfig, settings, hosts)
    home = file.project / ".busbar" / file.stack / "acceptance"
    folder = home / UNFINISHED
    with _alone(home):
        begun = _begin(folder, site, criteria, _options(cabling, storage, training, dcgm_image))
        rows = contract.read(folder / document.CRITERIA, site).rows
        wanted = contract.stages_of(rows)
        on = Running(
            folder, begun, site, file, cluster, idle, progress,
            kubeconfig=kubeconfig, logs_in=kubeconfig is None or hosts is not None, rows=rows,
        )  # fmt: skip
        for stage in STAGES:
            if stage.name in wanted and Evidence(folder).stage(stage.name) is None:
                run_stage(stage, on)
        found = document.write(folder)
        done = home / f"{now().replace('-', '').replace(':', '')}-{begun}"
        folder.rename(done)
    word = document.headline(found)
    print_text(f"{word}{'; simulated: ' + found['simulated'] if found['simulated'] else ''}")
    _show(found)
    print_text(f"{word}: {done}")
    raise typer.Exit(CODES[found["verdict"]])


def sign(folder: Document, key: Key) -> None:
    """Sign a document with an SSH key, beside the signatures of others, and say what was signed.

    Exit code 0: signed, whatever the verdict is; 1: the folder is not a whole document, the key does not
    sign, or no ssh-keygen; 2: the folder cannot be read.
    """
    from stacks.accept.package import verify as verifying
    from stacks.accept.package.document import headline

    found = verifying.verify(folder, None)
    print_text(f"signed: {verifying.sign(folder, key)}")
    print_text(f"what it says: {headline(found.again)}")


def verify(
    folder: Document,
    signers: Signers = None,
    criteria: AgreedCriteria = None,
    signed_by: SignedBy = None,
    cluster_id: ClusterId = None,
    machines: MachinesFile = None,
    report: ReportFile = None,
) -> None:
    """Check the files and signatures of a document, and judge all of its evidence again.

    Exit code 0: accepted, signed by known signers, and the same when judged again; 1: refused; 2: not
    decided: no signature, an unknown or an expired key, a row without a result, or a folder that cannot be
    read; 64: bad usage.
    """
    from busbar.writing import write_whole
    from stacks.accept.package import verify as verifying
    from stacks.accept.package.document import headline, release

    agreed = verifying.Agreed(criteria, signed_by or (), cluster_id, machines)
    found = verifying.verify(folder, signers, agreed)
    again = found.again
    verdict = {DONE: "accepted", FAILED: "refused", NO_VERDICT: "undecided"}[found.exit_code]
    word = headline(again, verdict)
    print_text(f"{word}{'; simulated: ' + again['simulated'] if again['simulated'] else ''}")
    if not found.same_release:
        made, own = (f"{each.get('version')} ({each.get('commit')})" for each in (again["busbar"], release()))
        print_text(f"made by busbar {made}, judged again by {own}: the page in the folder is not compared")
    print_text(f"sha256 of the criteria: {again['criteria']['sha256']}")
    print_text(f"sha256 of criteria and evidence: {again['sum']}")
    _show(again)
    for each in found.signatures:
        print_text(f"signature {each.state}: {each.text}")
    if not found.signatures:
        print_text("signature: none")
    for name in found.unsigned:
        print_text(f"not signed by {name}")
    for text in found.differences:
        print_text(f"differs: {text}")
    for text in found.refusals:
        print_text(f"not as agreed: {text}")
    if agreed.unasked:
        print_text(f"nobody has asked: {', '.join(agreed.unasked)}")
    if report:
        write_whole(report, verifying.page(folder, found))
        print_text(f"page of this release: {report}")
    print_text(f"{word}: {again['cluster']}, run {again['run']} of {again['ended']}")
    raise typer.Exit(found.exit_code)


def _load(stack: str, project: Path | None) -> tuple[StackFile, Cluster, Site]:
    from stacks.accept.package.site import Site

    file, cluster = load_stack(stack, project)
    return file, cluster, Site.of(file.stack, cluster)


def _soaked(
    stack: str | None,
    project: Path | None,
    soak: str | None,
    kubeconfig: Path | None = None,
    settings: Path | None = None,
    hosts: Path | None = None,
) -> tuple[StackFile, Cluster, Site]:
    """The stack, or the cluster of a kubeconfig, with a soak of this length. Raises Misuse."""
    from stacks.accept.package.site import Site, describe

    if kubeconfig is None and stack is not None:
        file, cluster, site = _load(stack, project)
    elif kubeconfig is not None and stack is None:
        from busbar.fabric.commands.nccl import read_settings
        from busbar.kube.client import connect

        api = connect({"KUBECONFIG": str(kubeconfig)})
        file = describe(api, read_settings(settings), project or Path.cwd(), hosts)
        cluster = file.cluster()
        # TCP uses no rails, and the API does not tell of them.
        over_tcp = cluster.validation.required_transport == "socket"
        site = Site.of(file.stack, cluster, **({"rails": 0} if over_tcp else {}))
    else:
        raise Misuse("expected either STACK or --kubeconfig FILE")
    if soak:
        from stacks.accept.package.subjects.soak import hours_of

        site = site.soaked(hours_of(soak))
    return file, cluster, site


def _begin(folder: Path, site: Site, criteria: Path | None, options: dict[str, str]) -> str:
    """Begin a run, or continue the one in the folder; its name. Raises Misuse if that is another one."""
    from busbar.writing import write_whole
    from stacks.accept.package import criteria as contract
    from stacks.accept.package.document import CRITERIA, release
    from stacks.accept.package.evidence import FOLDER, RUN, Begun, Evidence, write_json
    from stacks.accept.package.running import now

    text = contract.text(contract.read(criteria, site)) if criteria else ""
    if (folder / FOLDER / RUN).is_file():
        begun = Evidence(folder).begun
        other = "another stack file or --soak" if begun.site != site else ""
        if text and contract.text(contract.read(folder / CRITERIA, begun.site)) != text:
            other = "other criteria"
        if any(begun.options.get(name) != value for name, value in options.items()):
            other = f"another --{' or --'.join(options)}"
        if other:
            raise Misuse(f"{begun.run} began with {other}. Fix: remove {folder} to begin another run")
        progress(f"continuing {begun.run}, which began at {begun.began}")
        return begun.run
    named = f"accept-{secrets.token_hex(3)}"
    rows = contract.offered(site)
    begun = Begun(run=named, began=now(), busbar=release(), site=site, rows=rows, options=options)
    write_whole(folder / CRITERIA, text or contract.text(contract.default(site)))
    write_json(folder / FOLDER / RUN, begun)
    return named


def _options(
    cabling: Path | None, storage: str | None, training: Path | None, dcgm_image: str | None = None
) -> dict[str, str]:
    """The options that the run keeps. Raises Misuse."""
    from stacks.accept.package.subjects.cabling import read_design
    from stacks.accept.package.subjects.stress import DCGM_IMAGE

    given = {"storage": storage} if storage else {}
    given |= {"training": str(training.resolve())} if training else {}
    given |= {DCGM_IMAGE: dcgm_image} if dcgm_image else {}
    if storage and (not storage.startswith("/") or storage.strip("/") == "" or not storage.isprintable()):
        raise Misuse(f"--storage is {storage!r}, expected the path of a folder, such as /mnt/shared")
    if dcgm_image:
        from pydantic import TypeAdapter, ValidationError

        from busbar.config.types import Image

        try:
            TypeAdapter(Image).validate_python(dcgm_image)
        except ValidationError as error:
            raise Misuse(f"--dcgm-image {dcgm_image!r} {error.errors()[0]['msg']}") from None
    if cabling is None:
        return given
    try:
        text = cabling.read_text(encoding="utf-8-sig")
        read_design(text)
    except OSError as error:
        raise Misuse(f"{cabling}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise Misuse(f"{cabling}: it is not a text in UTF-8") from None
    except ValueError as error:
        raise Misuse(f"{cabling}: {error}. Fix: busbar accept cabling STACK prints such a file") from None
    return {**given, "cabling": text}


@contextmanager
def _alone(home: Path) -> Iterator[None]:
    """Keep a second run of the stack away. Raises Misuse."""
    import fcntl

    home.mkdir(parents=True, exist_ok=True)
    with (home / ".lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Misuse(f"another busbar accept run works in {home}. Fix: wait for its end") from None
        yield


def _show(found: Any) -> None:
    from rich.console import Console
    from rich.text import Text

    from busbar.judge.tables import styled, table

    made = table("row", "result", "reason")
    for row in found["rows"]:
        mark = "" if row["required"] else " (not required)"
        made.add_row(row["id"] + mark, styled(row["result"]), Text(row["reason"]))
    Console().print(made)
    for row in found["rows"]:
        if row["own_words"]:
            print_text(f"the seller's words on {row['id']}: {row['measured']}; {row['source']}")
    print_text(f"holds on {found['holds_on']} of {found['bought']} nodes")
    for row in found["taken_out"]:
        print_text(f"taken out of the criteria: {row}")

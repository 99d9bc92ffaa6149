"""`busbar accept`: from the criteria to a document that others can judge again."""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from busbar.cli.output import print_text, progress
from busbar.cli.stackfile import Project, Stack, load_stack, stack_argument
from busbar.exits import DONE, FAILED, NO_VERDICT, Misuse

if TYPE_CHECKING:
    from busbar.config import Cluster
    from busbar.config.stackfile import StackFile
    from stacks.accept.package.evidence import Begun
    from stacks.accept.package.site import Site

CODES = {"accepted": DONE, "refused": FAILED, "undecided": NO_VERDICT}
UNFINISHED = "unfinished"


def _option(name: str, value: str, text: str, **more: Any) -> Any:
    return typer.Option(name, metavar=value, help=text, **more)


def _file(name: str, text: str) -> Any:
    return _option(name, "FILE", text, exists=True, dir_okay=False)


_FOLDER = typer.Argument(metavar="FOLDER", help="Folder of an acceptance.", exists=True, file_okay=False)
Document = Annotated[Path, _FOLDER]
Key = Annotated[Path, _option("--key", "FILE", "SSH key; of one in ssh-agent its public key.")]
CriteriaFile = Annotated[Path | None, _option("--criteria", "FILE", "acceptance.yaml; default: all rows.")]
Soak = Annotated[str | None, _option("--soak", "HOURS", "Load on each pool, 1h to 168h; default: none.")]
Kubeconfig = Annotated[Path | None, _file("--kubeconfig", "Cluster that busbar did not make, for STACK.")]
Settings = Annotated[Path | None, _option("--settings", "FILE", "With --kubeconfig: keys of `validation`.")]
_PROOF = _option("--training", "FOLDER", "Proof of stacks/training, made during this run.", file_okay=False)
_SIGNED_BY = _option("--signed-by", "NAME", "A signer that is asked for; repeatable.")
_AFTER = _option("--after", "TIME", "Refuse older runs (UTC).", formats=["%Y-%m-%d", "%Y-%m-%dT%H:%M:%SZ"])
_CLUSTER_ID = _option("--cluster-id", "ID", "Id of the cluster; another one is refused.")


def register(group: typer.Typer) -> None:
    """Add the commands to `busbar accept`."""
    for command in (criteria, plan, cabling, run, sign, verify):
        group.command(command.__name__)(command)


def criteria(
    of: Annotated[str | None, _option("--for", "STACK", "Stack that sets the thresholds.")] = None,
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
        _, _, site = _load(of, project, soak, kubeconfig, settings)
        print_text(contract.text(contract.default(site)).rstrip())


def plan(stack: Stack, project: Project = None, criteria: CriteriaFile = None, soak: Soak = None) -> None:
    """Print the time, the GPUs and the node-minutes of each stage, and start nothing.

    Exit code 0: printed; 64: no such stack, or criteria that are not valid.
    """
    from rich.console import Console

    from busbar.judge.tables import table
    from stacks.accept.package import criteria as contract
    from stacks.accept.package.subjects import STAGES

    _, _, site = _load(stack, project, soak)
    rows = (contract.read(criteria, site) if criteria else contract.default(site)).rows
    of, wanted = [row.parts[0] for row in rows], contract.stages_of(rows)
    pools = [(len(pool.workers), pool.required.gpus, 3600 * pool.soak_hours) for pool in site.pools.values()]
    made, total = table("stage", right=("rows", "minutes", "GPUs held", "node-minutes")), 0.0
    for stage in STAGES:
        seconds = held = cost = 0.0
        for nodes, gpus, soaked in pools if stage.name in wanted else ():
            of_pool = stage.seconds(nodes) + (soaked if stage.continues else 0)
            seconds += of_pool
            if stage.holds_gpus:
                held, cost = max(held, nodes * gpus), cost + nodes * of_pool / 60
        total += seconds
        figures = (f"{each:.0f}" for each in (seconds / 60, held, cost))
        made.add_row(stage.name, str(of.count(stage.name)), *figures)
    Console().print(made)
    print_text(f"{total / 60:.0f} minutes on free nodes, pool after pool. Nothing is left running.")
    if soak:
        print_text("If the command ends during the soak, its job goes on, with 12 hours of load at most.")


def cabling(stack: Stack, project: Project = None) -> None:
    """Print the cabling as it is built, as a CSV file that `run` takes as the design.

    Exit code 0: printed; 2: no worker answers, or none sees the fabric; 64: no such stack.
    """
    from stacks.accept.package.evidence import Begun
    from stacks.accept.package.running import Running, now
    from stacks.accept.package.subjects.cabling import as_built

    file, cluster, site = _load(stack, project)
    begun = Begun(run="cabling", began=now(), busbar={}, site=site, rows=())
    print_text(as_built(Running(Path(), begun, file, cluster, True, progress)).rstrip("\n"))


def run(
    stack: Annotated[str | None, stack_argument()] = None,
    project: Project = None,
    criteria: CriteriaFile = None,
    idle: Annotated[bool, typer.Option("--idle", help="Take only free nodes; any pod ends it.")] = False,
    cabling: Annotated[Path | None, _option("--cabling", "FILE", "CSV: node,hca,switch,port.")] = None,
    soak: Soak = None,
    storage: Annotated[str | None, _option("--storage", "PATH", "Folder that all workers share.")] = None,
    training: Annotated[Path | None, _PROOF] = None,
    dcgm_image: Annotated[str | None, _option("--dcgm-image", "IMAGE", "In place of hosts' DCGM.")] = None,
    kubeconfig: Kubeconfig = None,
    hosts: Annotated[Path | None, _option("--hosts", "FILE", "With --kubeconfig: hosts, for SSH.")] = None,
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

    file, cluster, site = _load(stack, project, soak, kubeconfig, settings, hosts)
    home = file.project / ".busbar" / file.stack / "acceptance"
    folder = home / UNFINISHED
    with _alone(home):
        begun = _begin(folder, site, criteria, _options(cabling, storage, training, dcgm_image))
        rows = contract.read(folder / document.CRITERIA, site).rows
        wanted = contract.stages_of(rows)
        on = Running(
            folder, begun, file, cluster, idle, progress,
            kubeconfig=kubeconfig, logs_in=kubeconfig is None or hosts is not None, rows=rows,
        )  # fmt: skip
        for stage in STAGES:
            if stage.name in wanted and Evidence(folder).stage(stage.name) is None:
                run_stage(stage, on)
        found = document.write(folder)
        done = home / f"{now().replace('-', '').replace(':', '')}-{begun.run}"
        folder.rename(done)
    word = _show(found, document.headline(found))
    print_text(f"{word}: {done}")
    raise typer.Exit(CODES[found["verdict"]])


def sign(folder: Document, key: Key) -> None:
    """Sign a document with an SSH key, beside the signatures of others, and say what was signed.

    Exit code 0: signed, whatever the verdict is; 1: the folder is not a whole document, the key does not
    sign, or no ssh-keygen; 2: the folder cannot be read.
    """
    from stacks.accept.package import document

    found = document.verify(folder, None)
    print_text(f"signed: {document.sign(folder, key)}")
    print_text(f"what it says: {document.headline(found.again)}")


def verify(
    folder: Document,
    signers: Annotated[Path | None, _file("--signers", "OpenSSH's allowed_signers.")] = None,
    criteria: Annotated[Path | None, _file("--criteria", "Criteria that were agreed on.")] = None,
    signed_by: Annotated[list[str] | None, _SIGNED_BY] = None,
    cluster_id: Annotated[str | None, _CLUSTER_ID] = None,
    machines: Annotated[Path | None, _file("--machines", "A machine id or a serial per line.")] = None,
    cabling: Annotated[Path | None, _file("--cabling", "Design that was agreed on, as for `run`.")] = None,
    after: Annotated[datetime | None, _AFTER] = None,
    report: Annotated[Path | None, _option("--report", "PATH", "Write the page of this release.")] = None,
) -> None:
    """Check the files and signatures of a document, and judge all of its evidence again.

    Exit code 0: accepted, signed by known signers, and the same when judged again; 1: refused, also where
    criteria, cluster, machines, cabling or time are other than asked for; 2: not decided: no signature, an
    unknown or an expired key, a row without a result, or a folder that cannot be read; 64: bad usage.
    """
    from busbar.judge.nccl.report.svg import write_report
    from stacks.accept.package import document
    from stacks.accept.package.evidence import TIME, Evidence

    told: Any = {"criteria": criteria, "signed_by": signed_by, "cluster_id": cluster_id, "machines": machines}
    told |= {"cabling": cabling, "after": after and after.strftime(TIME)}
    found = document.verify(folder, signers, **told)
    again = found.again
    [verdict] = [name for name, code in CODES.items() if code == found.exit_code]
    about = []
    if not found.same_release:
        releases = again["busbar"], document.release()
        made, own = (f"{each.get('version')} ({each.get('commit')})" for each in releases)
        about = [f"made by busbar {made}, judged again by {own}: the page in the folder is not compared"]
    about.append(f"sha256 of the criteria: {again['criteria']['sha256']}")
    about.append(f"sha256 of criteria and evidence: {again['sum']}")
    word = _show(again, document.headline(again, verdict), about)
    known = [f"{each.state}: {each.text}" for each in found.signatures]
    said = [f"signature {text}" for text in known] or ["signature: none"]
    said += [f"not signed by {name}" for name in found.unsigned]
    said += [f"differs: {text}" for text in found.differences]
    said += [f"not as agreed: {text}" for text in found.refusals]
    if unasked := [f"--{name.replace('_', '-')}" for name, value in told.items() if value in (None, [])]:
        said.append(f"nobody has asked: {', '.join(unasked)}")
    if report:
        try:
            write_report(report, document.report(again, Evidence(folder), known))
        except OSError as error:
            raise Misuse(f"{report} not written: {error.strerror}") from None
        said.append(f"page of this release: {report}")
    said.append(f"{word}: {again['cluster']}, run {again['run']} of {again['ended']}")
    print_text("\n".join(map(_plain, said)))
    raise typer.Exit(found.exit_code)


def _load(
    stack: str | None,
    project: Path | None,
    soak: str | None = None,
    kubeconfig: Path | None = None,
    settings: Path | None = None,
    hosts: Path | None = None,
) -> tuple[StackFile, Cluster, Site]:
    """The stack, or the cluster of a kubeconfig, with a soak of this length. Raises Misuse."""
    from stacks.accept.package.site import Site, describe
    from stacks.accept.package.subjects.soak import hours_of

    known: dict[str, int] = {}
    if kubeconfig is None and stack is not None:
        file, cluster = load_stack(stack, project)
    elif kubeconfig is not None and stack is None:
        from busbar.fabric.commands.nccl import read_settings
        from busbar.kube.client import connect

        api = connect({"KUBECONFIG": str(kubeconfig)})
        file = describe(api, read_settings(settings), project or Path.cwd(), hosts)
        cluster = file.cluster()
        # TCP uses no rails, and the API does not tell of them.
        known = {"rails": 0} if cluster.validation.required_transport == "socket" else {}
    else:
        raise Misuse("expected either STACK or --kubeconfig FILE")
    return file, cluster, Site.of(file.stack, cluster, hours_of(soak) if soak else 0.0, **known)


def _begin(folder: Path, site: Site, criteria: Path | None, options: dict[str, str]) -> Begun:
    """Begin a run, or continue the one in the folder. Raises Misuse if that is another one."""
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
        if changed := [name for name, value in options.items() if begun.options.get(name) != value]:
            other = f"another --{' or --'.join(changed)}"
        if other:
            raise Misuse(f"{begun.run} began with {other}. Fix: move {folder} away to begin another one")
        progress(f"continuing {begun.run}, which began at {begun.began}")
        return begun
    begun = Begun(
        run=f"accept-{secrets.token_hex(3)}", began=now(), busbar=release(), site=site,
        rows=contract.offered(site), options=options,
    )  # fmt: skip
    write_whole(folder / CRITERIA, text or contract.text(contract.default(site)))
    write_json(folder / FOLDER / RUN, begun)
    return begun


def _options(
    cabling: Path | None, storage: str | None, training: Path | None, dcgm_image: str | None = None
) -> dict[str, str]:
    """The options that the run keeps. Raises Misuse."""
    from pydantic import TypeAdapter, ValidationError

    from busbar.config.types import Image
    from stacks.accept.package.subjects.cabling import design_of

    if storage and (not storage.startswith("/") or storage.strip("/") == "" or not storage.isprintable()):
        raise Misuse(f"--storage is {storage!r}, expected the path of a folder, such as /mnt/shared")
    try:
        TypeAdapter(Image | None).validate_python(dcgm_image)
    except ValidationError as error:
        raise Misuse(f"--dcgm-image {dcgm_image!r} {error.errors()[0]['msg']}") from None
    design = design_of(cabling) if cabling else None
    path = str(training.resolve()) if training else None
    given = {"storage": storage, "training": path, "dcgm-image": dcgm_image, "cabling": design}
    return {name: value for name, value in given.items() if value}


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


def _show(found: Any, word: str, about: Sequence[str] = ()) -> str:
    """Print the verdict, then ABOUT, then the rows. Returns WORD, the verdict."""
    from rich.console import Console
    from rich.text import Text

    from busbar.judge.tables import styled, table

    simulated = f"; simulated: {found['simulated']}" if found["simulated"] else ""
    print_text("\n".join(map(_plain, [f"{word}{simulated}", *about])))
    made = table("row", "result", "reason")
    for row in found["rows"]:
        mark = "" if row["required"] else " (not required)"
        made.add_row(row["id"] + mark, styled(row["result"]), Text(_plain(row["reason"])))
    Console().print(made)
    for row in found["rows"]:
        if row["own_words"]:
            print_text(_plain(f"the seller's words on {row['id']}: {row['measured']}; {row['source']}"))
    print_text(f"holds on {found['holds_on']} of {found['bought']} nodes")
    for row in found["taken_out"]:
        print_text(f"taken out of the criteria: {_plain(row)}")
    return word


def _plain(text: str) -> str:
    """A text of a folder on one line, without what a terminal obeys."""
    return "".join(each if each.isprintable() else "?" for each in text)

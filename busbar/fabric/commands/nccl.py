"""`busbar nccl run` and `clean`: the measurement on clusters that are not of a stack."""

from __future__ import annotations

import shlex
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from busbar.cli import nccl as option
from busbar.cli.output import as_yaml, fail, print_text, progress
from busbar.exits import FAILED, NO_VERDICT, Misuse

if TYPE_CHECKING:
    from busbar.config.stackfile import StackFile
    from busbar.fabric.measure import Plan
    from busbar.kube.client import RestApi


EXAMPLES = (
    "busbar nccl run --dry-run",
    "busbar nccl run --nodes gpu-1,gpu-2 --profile h100-ib-8x400",
    "busbar nccl run --nodes pool=h100 --gpus 8 --hca nvidia.com/hostdev=8 --profile h100-ib-8x400",
)
cluster = partial(option.value, "The cluster")
Kubeconfig = Annotated[Path, cluster("FILE", "The kubeconfig, one file.", envvar="KUBECONFIG")]
Context = Annotated[str | None, cluster("NAME", "Context in the kubeconfig; default: the current one.")]
DEFAULT_KUBECONFIG = Path("~/.kube/config")


def register(app: typer.Typer) -> None:
    app.command("run", epilog=option.epilog(EXAMPLES))(run)
    app.command("clean")(clean)


def run(
    kubeconfig: Kubeconfig = DEFAULT_KUBECONFIG,
    context: Context = None,
    nodes: Annotated[
        str | None,
        cluster("SELECTOR|NAMES", "Label selector, or names with commas; default: all Nodes with GPUs."),
    ] = None,
    expect_nodes: Annotated[
        int | None, cluster("N", "Number of Nodes that must be measured; default: all that have GPUs.", min=1)
    ] = None,
    namespace: Annotated[
        str | None, cluster("NAME", "Existing namespace that admits the pods; default: a temporary one.")
    ] = None,
    gpus: Annotated[int | None, option.system("N", "GPUs per Node; default: all.", min=1)] = None,
    hca: Annotated[
        list[str] | None,
        option.system("NAME=UNITS", "Extended resource for HCAs, units per Node; may be repeated."),
    ] = None,
    profile: option.Profile = None,
    rails: option.Rails = None,
    rate_gbps: option.RateGbps = None,
    transport: option.Transport = None,
    expected_busbw: option.ExpectedBusbw = None,
    image: Annotated[
        str | None, option.value(None, "IMAGE", "Image with nccl-tests, Open MPI and sshd.")
    ] = None,
    settings: Annotated[
        Path | None,
        option.value(None, "FILE", "YAML with keys of `validation` in a stack file; options win."),
    ] = None,
    folder: Annotated[
        Path | None, option.output("DIR", "Folder for log, verdict and report; default: .busbar/RUN.")
    ] = None,
    dry_run: Annotated[
        bool,
        option.flag(
            "--dry-run", "Print what would be created as YAML, and where each value is from; create nothing."
        ),
    ] = False,
    as_json: option.AsJson = False,
    full: option.Full = False,
) -> None:
    """Measure Nodes of a running cluster with an MPIJob, judge its log, and remove everything again.

    What is not given is read from the cluster.

    Exit code 0: pass; 1: fail; 2: no verdict, also if the cluster cannot run the job or a Node is missing, or
    a pass that could not be removed; 64: bad usage; 70: an error of busbar itself; 130: interrupted.
    """
    given: dict[str, Any] = {"profile": profile, "transport": transport, "image": image}
    given["expected_busbw_gbps"] = expected_busbw
    api = _connect(kubeconfig, context)
    from busbar.fabric.measure import LeftBehind, Request, measure, plan, read_facts, require_rights
    from busbar.judge.archive import REPORT
    from busbar.judge.nccl.report.terminal import verdict_text
    from busbar.kube.wait import SystemClock

    asked = Request(
        nodes=nodes,
        expect_nodes=expect_nodes,
        gpus=gpus,
        hcas=None if hca is None else dict(map(_units, hca)),
        rails=rails,
        rate_gbps=rate_gbps,
        namespace=namespace,
        validation=read_settings(settings)
        | {key: value for key, value in given.items() if value is not None},
    )
    name = new_run()
    if not dry_run:
        require_rights(api, namespace)
    planned = plan(read_facts(api, nodes), asked, name)
    if dry_run:
        objects = planned.objects({})
        for path, manifest in objects:
            if "/namespaces/" in path:
                manifest["metadata"]["namespace"] = planned.job.namespace
        print_text(f"{explained(planned, '# ')}\n{as_yaml([manifest for _, manifest in objects])}")
        return
    progress(explained(planned, ""))
    folder, left = folder or Path(".busbar", name), None
    options_of_clean = _options(kubeconfig, context)
    try:
        verdict = measure(api, planned, str(folder), SystemClock(), progress, options=options_of_clean)
    except LeftBehind as error:
        verdict, left = error.found, error
    more = f"{folder}/{REPORT}; --full prints gates and table"
    text = "" if as_json else verdict_text(verdict, sys.stdout, full=full, more=more)
    print_text(text or verdict.model_dump_json(indent=1))
    if left:
        fail(left, verdict.exit_code or NO_VERDICT)
    raise typer.Exit(verdict.exit_code)


def clean(
    runs: Annotated[
        list[str] | None, typer.Argument(metavar="[RUN]...", help="Runs to remove, whoever started them.")
    ] = None,
    kubeconfig: Kubeconfig = DEFAULT_KUBECONFIG,
    context: Context = None,
    namespace: Annotated[str | None, cluster("NAME", "Only in this namespace.")] = None,
) -> None:
    """Remove what a killed `busbar nccl run` left in a cluster: objects with its label, nothing else.

    Without RUN: runs whose time is over. Other runs are named and kept.

    Exit code 0: no run is left; 1: one was kept, or the API refuses or is not responding; 64: bad usage.
    """
    api = _connect(kubeconfig, context)
    from busbar.fabric.measure import clean as remove
    from busbar.kube.wait import SystemClock

    removed: list[str] = []

    def said(text: str) -> None:
        removed.append(text)
        progress(text)

    kept = remove(api, runs or (), namespace, SystemClock(), said)
    if not kept and not removed:
        progress("nothing to remove")
    for each in kept:
        progress(f"kept {each} of {each.run}: its process may be alive until {each.until or 'its end'}")
    if kept:
        named = " ".join(sorted({each.run for each in kept}))
        where = _options(kubeconfig, context) + (f" --namespace {namespace}" if namespace else "")
        progress(f"Fix: busbar nccl clean {named}{where}")
        raise typer.Exit(FAILED)


def _options(kubeconfig: Path, context: str | None) -> str:
    """The options by which another command reaches the same cluster."""
    return f" {shlex.join(['--kubeconfig', str(kubeconfig), *(['--context', context] if context else [])])}"


def options_of(file: StackFile) -> str:
    """The options by which `clean` reaches the cluster of a stack."""
    kept = file.project / ".busbar" / file.stack / "kubeconfig"
    if kept.is_file():
        return _options(kept, None)
    words = ("pulumi", "stack", "output", "kubeconfig", "--show-secrets", "--stack", file.stack, "--cwd")
    return f" --kubeconfig <({shlex.join([*words, str(file.project)])})"


def _connect(kubeconfig: Path, context: str | None) -> RestApi:
    """A client of the cluster. Raises Misuse."""
    # The message comes before the imports, which take a while.
    progress(f"reading {kubeconfig}{f', context {context}' if context else ''}")
    from busbar.kube.client import connect

    api = connect({"KUBECONFIG": str(kubeconfig)}, context)
    progress(f"cluster {api.server}")
    return api


def _units(text: str) -> tuple[str, int]:
    name, _, units = text.partition("=")
    if not units.isdecimal() or "/" not in name:
        raise typer.BadParameter(f"--hca {text}: expected RESOURCE=UNITS, such as nvidia.com/hostdev=8")
    return name, int(units)


def read_settings(path: Path | None) -> dict[str, Any]:
    """The mapping in a file of settings. Raises Misuse."""
    import yaml

    if path is None:
        return {}
    try:
        found = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise Misuse(f"{path}: {error.strerror}") from None
    except yaml.YAMLError as error:
        raise Misuse(f"{path}: not YAML: {error}") from None
    if not isinstance(found, dict):
        raise Misuse(f"{path}: expected keys of `validation`, such as min_bytes: 1G")
    return found


def new_run() -> str:
    import secrets

    return f"run-{secrets.token_hex(3)}"


def explained(planned: Plan, mark: str) -> str:
    """The values of a plan with their sources, and its notes; each line begins with MARK."""
    width = max(len(value) for _, value, _ in planned.sources)
    lines = [f"{mark}{name:<13}{value:<{width}}  {source}" for name, value, source in planned.sources]
    return "\n".join([*lines, *(f"{mark}note: {note}" for note in planned.notes)])

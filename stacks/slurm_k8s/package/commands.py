"""`busbar slurm_k8s`: the configuration of stacks/slurm_k8s, and the steps of its updates."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from busbar.cli.ending import when_interrupted
from busbar.cli.engine import compact, engine_command, stop_on_sigterm
from busbar.cli.output import progress
from busbar.exits import Failed

if TYPE_CHECKING:
    from pathlib import Path

    import typer

    from busbar.config import Finding
    from busbar.kube.client import RestApi
    from stacks.slurm_k8s.package.config import Slurm
    from stacks.slurm_k8s.package.operations import UpdateSpec
    from stacks.slurm_k8s.package.ready import ReadySpec
    from stacks.slurm_k8s.package.steps import StepSpec
    from stacks.slurm_k8s.package.survey import SurveySpec


def register(group: typer.Typer) -> None:
    """There are no commands for people, so help does not list the group."""
    group.info.hidden = True


def describe(path: Path) -> tuple[list[str], list[Finding]]:
    """A stack file in a few lines, and the warnings on it. Raises ConfigError."""
    from stacks.slurm_k8s.package import config

    return [*_describe(config.read(path))], []


def _describe(slurm: Slurm) -> Iterator[str]:
    yield f"cluster {slurm.cluster}, pools: {', '.join(slurm.pools) or 'all'}, namespace {slurm.namespace}"
    yield f"slurm-operator {slurm.version} from {slurm.charts}; Slurm {slurm.image_tag} from {slurm.images}"
    one = "; lost with its server" if slurm.state.accept_state_on_one_node else ""
    yield f"state: {slurm.state.size}, class {slurm.state.storage_class or 'default'}{one}"
    database = slurm.accounting
    yield f"accounting: {f'{database.database} on {database.host}' if database else 'none'}"
    yield f"login: {slurm.login.service}, port {slurm.login.port}"


@engine_command("slurm_k8s survey", "stacks.slurm_k8s.package.survey:SurveySpec")
def survey(api: RestApi, spec: SurveySpec) -> Any:
    """Name what on the cluster is in the way, else note the places of Nodes; the request is JSON on stdin.

    The cluster: KUBECONFIG. Prints {"findings": []}; exits with 1 and every finding where there is one.
    """
    from stacks.slurm_k8s.package.survey import findings, place

    if found := findings(api, spec):
        raise Failed("nothing was installed:\n" + "\n".join(f"  - {each}" for each in found))
    place(api, spec.levels)
    return {"findings": []}


@engine_command("slurm_k8s step", "stacks.slurm_k8s.package.steps:StepSpec")
def step(api: RestApi, spec: StepSpec) -> Any:
    """Wait for a step of an update or a destroy; the request is JSON on stdin (steps.StepSpec).

    The cluster: KUBECONFIG. Prints {"found"}; exits with 1 at the deadline, and where jobs keep a destroy.
    """
    from busbar.kube.wait import SystemClock
    from stacks.slurm_k8s.package import steps

    return {"found": steps.run(api, spec, SystemClock(), progress)}


@engine_command("slurm_k8s ready", "stacks.slurm_k8s.package.ready:ReadySpec")
def ready(api: RestApi, spec: ReadySpec) -> Any:
    """Wait until all nodes are in Slurm, and run a job on them; the request is JSON on stdin.

    The cluster: KUBECONFIG. Prints {"passed", "reasons", "nodes", "drained"}; the exit code is 0 for any
    result.
    """
    from busbar.kube.wait import SystemClock
    from stacks.slurm_k8s.package.ready import ready as run
    from stacks.slurm_k8s.package.rest import SlurmApi

    return run(SlurmApi(api, spec.namespace), api, spec, SystemClock(), progress)


@engine_command("slurm_k8s measure", "stacks.slurm_k8s.package.operations:UpdateSpec")
def measure(api: RestApi, spec: UpdateSpec) -> str:
    """Measure a pool by a job of Slurm and judge its log; the request is JSON on stdin.

    The cluster: KUBECONFIG; its hosts and login: those of its stack file. Prints the verdict in short as JSON
    (busbar.outputs.contract.summarize). Exit code 0 for any verdict. Log, verdict and report are in `folder`.
    """
    from stacks.slurm_k8s.package.operations import measure_update

    stop_on_sigterm()
    with when_interrupted("; the job is cancelled"):
        return compact(measure_update(api, spec))

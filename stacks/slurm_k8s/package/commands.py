"""`busbar slurm_k8s`: the configuration of stacks/slurm_k8s, and the steps of its updates."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from busbar.cli.engine_commands import engine_command
from busbar.cli.output import progress
from busbar.exits import Failed

if TYPE_CHECKING:
    from pathlib import Path

    import typer

    from busbar.config import Finding
    from busbar.kube.client import RestApi
    from stacks.slurm_k8s.package.admission import AdmissionSpec
    from stacks.slurm_k8s.package.config import Slurm
    from stacks.slurm_k8s.package.guards import ChangeSpec, RemovalSpec
    from stacks.slurm_k8s.package.ready import ReadySpec
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
    yield f"login: {slurm.login.service}, port {slurm.login.port}"


@engine_command("slurm_k8s survey", "stacks.slurm_k8s.package.survey:SurveySpec")
def survey(api: RestApi, spec: SurveySpec) -> Any:
    """Name what on the cluster is in the way; the request is JSON on stdin (survey.SurveySpec).

    The cluster: KUBECONFIG. Prints {"findings": []}; exits with 1 and every finding where there is one.
    """
    from stacks.slurm_k8s.package.survey import findings

    if found := findings(api, spec):
        raise Failed("nothing was installed:\n" + "\n".join(f"  - {each}" for each in found))
    return {"findings": []}


@engine_command("slurm_k8s admission", "stacks.slurm_k8s.package.admission:AdmissionSpec")
def admission(api: RestApi, spec: AdmissionSpec) -> Any:
    """Wait until the operator's webhook accepts an object; the request is JSON on stdin.

    The cluster: KUBECONFIG. Prints {"accepted"}; exits with 1 at the deadline.
    """
    from busbar.kube.wait import SystemClock
    from stacks.slurm_k8s.package.admission import wait

    return {"accepted": wait(api, spec, SystemClock(), progress)}


@engine_command("slurm_k8s before-change", "stacks.slurm_k8s.package.guards:ChangeSpec")
def before_change(api: RestApi, spec: ChangeSpec) -> Any:
    """Wait until slurmrestd is ready, before pods of a running Slurm change; the request is JSON on stdin.

    The cluster: KUBECONFIG. Prints {"slurmrestd"}; exits with 1 at the deadline.
    """
    from busbar.kube.wait import SystemClock
    from stacks.slurm_k8s.package.guards import before_change as run

    return {"slurmrestd": run(api, spec, SystemClock(), progress)}


@engine_command("slurm_k8s after-removal", "stacks.slurm_k8s.package.guards:ChangeSpec")
def after_removal(api: RestApi, spec: ChangeSpec) -> None:
    """Wait until no pod of Slurm is left; the request is JSON on stdin. The cluster: KUBECONFIG."""
    from busbar.kube.wait import SystemClock
    from stacks.slurm_k8s.package.guards import after_removal as run

    run(api, spec, SystemClock(), progress)


@engine_command("slurm_k8s before-removal", "stacks.slurm_k8s.package.guards:RemovalSpec")
def before_removal(api: RestApi, spec: RemovalSpec) -> Any:
    """Refuse a destroy while there are jobs, or cancel them; the request is JSON on stdin.

    The cluster: KUBECONFIG. Prints {"cancelled"}; exits with 1 and the jobs where it refuses.
    """
    from busbar.kube.wait import SystemClock
    from stacks.slurm_k8s.package.guards import before_removal as run
    from stacks.slurm_k8s.package.rest import SlurmApi

    return {"cancelled": run(SlurmApi(api, spec.namespace), spec, SystemClock(), progress)}


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

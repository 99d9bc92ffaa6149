"""The charts of a stack on the cluster of another stack, for `busbar verify` and `up --converge`."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from busbar.capability import Capability
from busbar.cli.stack.errors import NO_STACK
from busbar.cli.stackfile import SecretError, named, read_outputs, read_state
from busbar.config import stackfile
from busbar.finding import STACK, Finding, Fix
from busbar.helm import drift as charts
from busbar.helm.drift import Difference
from busbar.helm.releases import statuses
from busbar.kube.client import ApiError, RestApi
from busbar.kube.health import problem
from busbar.names import CLUSTER_ID
from busbar.operations.verify import API_LOG, CLUSTER, Verified, drift, installed
from busbar.outputs import ClusterOutputs, ContractError

_REFERENCE = "pulumi:pulumi:StackReference"
RELEASE = "kubernetes:helm.sh/v3:Release"


class Consumed(NamedTuple):
    """The cluster on which a stack is, and the stack's Helm releases there, (namespace, name).

    `api`: None of a stack that has made nothing, and where it is `gone`. `outputs`: of the cluster's stack.
    """

    api: RestApi | None = None
    outputs: Mapping[str, Any] = {}
    releases: Sequence[tuple[str, str]] = ()
    gone: str = ""


def consumed(state: str, path: Path) -> Consumed:
    """The cluster that the state names, also by the name of its stack in the file. Raises SecretError."""
    resources = json.loads(state)["deployment"].get("resources") or []
    stacks = [each["id"] for each in resources if each["type"] == _REFERENCE]
    known = [each["inputs"]["input"]["id"] for each in resources if each["urn"].endswith(f"::{CLUSTER_ID}")]
    if not (stacks and known):
        return Consumed()  # An update that was refused has made nothing.
    current, outputs = None, dict[str, Any]()
    given = [str(each["cluster"]) for each in stackfile.sections(path) if "cluster" in each]
    for stack in (*given, stacks[0]):
        if current != known[0]:
            try:
                outputs = json.loads(read_outputs(stack, path.parent))
            except SecretError as error:
                if not NO_STACK.search(str(error)):
                    raise
                if stack == stacks[0]:
                    fix = "if renamed, name it in the file; if gone: pulumi state delete --all --stack STACK"
                    raise SecretError(f"no stack {stack}: its cluster may still be there", fix) from error
            current = outputs.get("cluster_id") or outputs.get("cluster_name")
    if current != known[0]:
        what = f"{'another' if current else 'no'} cluster now"
        return Consumed(gone=f"{stacks[0]} has {what}; {known[0]}, on which this stack was, is gone")
    made = [each["inputs"] for each in resources if each["type"] == RELEASE and not each.get("delete")]
    releases = [(each["namespace"], each["name"]) for each in made]
    return Consumed(RestApi(outputs["kubeconfig"]), outputs, releases)


def differences(found: Consumed) -> list[Difference]:
    """The objects of the releases that are not as Helm has applied them. Raises ApiError."""
    return charts.differences(found.api, found.releases) if found.api else []


def verify(path: Path, capability: Capability) -> Verified:
    """Compare a stack, as Operations do. Raises ConfigError and SecretError."""
    found = [*_findings(path, capability)]
    names = dict.fromkeys([CLUSTER, *(each.host for each in found)])
    return Verified([(name, "") for name in names], found)


def _findings(path: Path, capability: Capability) -> Iterator[Finding]:
    config = capability.read(path)
    on = consumed(read_state(stackfile.stack_of(path), path.parent), path)
    if on.api is None:
        fix = Fix(command=("destroy" if on.gone else "up", STACK))
        yield Finding((CLUSTER,), on.gone or "this stack has installed nothing", fix, kind="unknown")
        return
    try:
        yield from installed(on.releases, statuses(on.api))
        for each in differences(on):
            refused = problem(each.what, "repair what the API server names")
            yield refused if each.refused else drift(CLUSTER, each.what)
        yield from capability.problems(config, ClusterOutputs.from_dict(on.outputs), on.api)
    except ApiError as error:
        yield Finding((CLUSTER,), f"it cannot be compared: {error}", error.fix or API_LOG, kind="unknown")
    except ContractError as error:
        what = f"the outputs of {config.cluster} cannot be read: {error}"
        fix = Fix(command=("up", named(config.cluster, path.parent)))
        yield Finding((CLUSTER,), what, fix, kind="unknown")

"""The program of a capability on another stack's cluster, under mocks."""

import json
from collections.abc import Mapping
from functools import cache
from typing import Any

from pulumi.runtime import mocks

from tests.program.answers import KUBECONFIG
from tests.program.harness import LOCAL, PROVIDER, RELEASE, ROOT, STASH, Resource, Run, run_program
from tests.support.measured import outputs

CLUSTER = "organization/busbar/site"
REFERENCE = "pulumi:pulumi:StackReference"
NAMESPACE = "kubernetes:core/v1:Namespace"
PASSWORD = "MOCK-PASSWORD"


def run_on_cluster(
    name: str,
    config: Mapping[str, Any],
    printed: Mapping[str, str],
    *,
    of_cluster: Mapping[str, Any] | None = None,
    more: Mapping[str, str] | None = None,
    preview: bool = False,
    uid: str = "1",
    secrets: tuple[str, ...] = (),
) -> Run:
    """Run the program of stacks/NAME with this configuration. Equal calls run it once.

    `printed`: by the command of this name; others print {}. `of_cluster`: the outputs of its stack, which by
    default has passed. `more`: keys beside the configuration. `uid`: of objects of Kubernetes. `secrets`:
    keys of the stack, each with PASSWORD.
    """
    of_stack = {**(outputs() if of_cluster is None else of_cluster), "kubeconfig": KUBECONFIG}
    state = {"outputs": of_stack, "secretOutputNames": ["kubeconfig"]}
    asked = {f"busbar-{name}:{name}": json.dumps(config), **(more or {})}
    return _run(name, json.dumps(state), json.dumps(printed), json.dumps(asked), preview, uid, secrets)


@cache
def _run(
    name: str, state: str, printed: str, config: str, preview: bool, uid: str, secrets: tuple[str, ...]
) -> Run:
    texts = json.loads(printed)

    def answer(args: mocks.MockResourceArgs) -> dict[str, Any]:
        if args.typ == LOCAL:
            return {"stdout": texts.get(args.name, "{}"), "stderr": ""}
        if args.typ == RELEASE and "version" in args.inputs:
            return {"status": {"version": f"{args.inputs['version']}-found"}}
        if args.typ == "random:index/randomPassword:RandomPassword":
            return {"result": PASSWORD}
        if args.typ.startswith("kubernetes:") and "metadata" in args.inputs:
            return {"metadata": {**args.inputs["metadata"], "uid": uid}}
        return json.loads(state) if args.typ == REFERENCE else {}

    return run_program(
        {},
        answer,
        preview=preview,
        program=ROOT / "stacks" / name / "__main__.py",
        project=f"busbar-{name}",
        config=json.loads(config),
        secrets=dict.fromkeys(secrets, PASSWORD),
    )


def created(run: Run) -> list[Resource]:
    """What is outside the program, but the cluster's outputs, its provider, and what the engine stores."""
    return [each for each in run.custom if each.type not in (REFERENCE, PROVIDER, STASH)]

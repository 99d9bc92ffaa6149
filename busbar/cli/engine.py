"""The hidden commands that the engine runs: one JSON request on stdin, one line on stdout.

`ENGINE_COMMANDS` has all of them; `step` runs those of capabilities. The request is the JSON of the model
that a command names; the cluster is that of KUBECONFIG. Exit code 0: done; 1: the cluster or a host cannot
be reached or refuses, or a wait timed out; 64: a request that is not valid, or no kubeconfig. The engine
keeps nothing of a command that failed, and runs it again in the next update.
"""

from __future__ import annotations

import importlib
import inspect
import json
import os
import pkgutil
import signal
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from busbar.cli.output import fail, progress
from busbar.exits import USAGE, Failed

if TYPE_CHECKING:
    from pydantic import BaseModel

    from busbar.collect.spec import CollectSpec, JobSpec
    from busbar.kube.client import RestApi
    from busbar.kube.drain import StaleNodesSpec
    from busbar.kube.taints import TaintsSpec
    from busbar.manifests.image_pull import ImagePull
    from busbar.operations.preparation import Preparation
    from busbar.operations.removal import HostRemoval, Teardown

    Request = TypeVar("Request", bound=BaseModel)


Found = TypeVar("Found")

PREVIOUS_RESULT = "PULUMI_COMMAND_STDOUT"
"""The variable in which the command plugin passes the previous result, where the program asks for that."""
KNOWN_HOSTS = "BUSBAR_KNOWN_HOSTS"
"""The variable in which `busbar up --converge` passes what is known of other hosts to preflight."""

ENGINE_COMMANDS: dict[str, Callable[..., None]] = {}
"""Commands by their words after `busbar`. Those of `remove` stay within 1.x: a later release removes a host
by the words that the state has."""
# Time in seconds that the API may not respond before a pull: a load balancer may fail over meanwhile.
PULL_SECONDS = 60


def engine_command(
    words: str, model: str, *, on_cluster: bool = True
) -> Callable[[Callable[..., Any]], Callable[[], None]]:
    """Make a command of a function of the request, a `model` (module:class), and with `on_cluster` of an API.

    Its result is printed as JSON, a text as it is, None not at all.
    """

    def made(act: Callable[..., Any]) -> Callable[[], None]:
        def run() -> None:
            import asyncio

            module, name = model.split(":")
            spec = request(getattr(importlib.import_module(module), name))
            found = _on_cluster(act, spec) if on_cluster else act(spec)
            _print(asyncio.run(found) if inspect.iscoroutine(found) else found)

        run.__doc__ = act.__doc__
        ENGINE_COMMANDS[words] = run
        return run

    return made


def step(
    capability: Annotated[str, typer.Argument(help="Name of the capability.")],
    name: Annotated[str, typer.Argument(help="Name of its step.")],
) -> None:
    """Run one of the `steps` of a Capability on its cluster; its function says what it needs."""
    from busbar.capability import capabilities

    steps = {f"{each.name} {step}": path for each in capabilities() for step, path in each.steps.items()}
    if (path := steps.get(f"{capability} {name}")) is None:
        fail(f"step: {capability} {name} is not one of {', '.join(sorted(steps))}", USAGE)
    _run_step(path)


def _run_step(path: str) -> None:
    """Print the result of a function of an Api, the request, a Clock and a ProgressCallback, as JSON."""
    from busbar.kube.wait import SystemClock

    act = pkgutil.resolve_name(path)
    _, model, *_ = inspect.signature(act, eval_str=True).parameters.values()
    spec = request(model.annotation)
    _print(_on_cluster(lambda api, spec: act(api, spec, SystemClock(), progress), spec))


ENGINE_COMMANDS |= {
    "step": step,
    "wait allocatable": lambda: _run_step("busbar.kube.allocatable:wait"),
    "wait api": lambda: _run_step("busbar.kube.health:await_endpoint"),
}


def _print(found: Any) -> None:
    if found is not None:
        typer.echo(found if isinstance(found, str) else json.dumps(found, sort_keys=True))


def _on_cluster(act: Callable[..., Any], spec: BaseModel) -> Any:
    from busbar.kube.client import ASK_VERIFY, ApiError, connect
    from busbar.kube.wait import TimedOut

    api = connect()
    try:
        return act(api, spec)
    except (ApiError, TimedOut) as error:
        fix = ASK_VERIFY if isinstance(error, TimedOut) else error.fix
        raise Failed(f"{error} (server {api.server})", fix) from error


def request(model: type[Request]) -> Request:
    """The request on stdin. Ends the command with 64 where it is not valid."""
    from pydantic import ValidationError

    try:
        return model.model_validate_json(sys.stdin.read())
    except ValidationError as error:
        # The place of the error is printed, never the value, which may be a private key.
        found = error.errors(include_input=False, include_url=False)
        texts = (": ".join(filter(None, (".".join(map(str, each["loc"])), each["msg"]))) for each in found)
        fail(f"stdin: {'; '.join(texts)}", USAGE)


def compact(found: object) -> str:
    """One line of JSON without blanks."""
    return json.dumps(found, sort_keys=True, separators=(",", ":"))


def stop_on_sigterm() -> None:
    """Let SIGTERM raise KeyboardInterrupt, as SIGINT does, so that unfinished work is undone."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)


def say(text: str) -> None:
    """Print a note of a host or of the operation on stderr."""
    progress(text.removeprefix("busbar: "))


@engine_command("set-taints", "busbar.kube.taints:TaintsSpec")
def set_taints(api: RestApi, spec: TaintsSpec) -> Any:
    """Set the taints of workers; former ones are removed, those of others stay. Prints {"changed"}."""
    from busbar.capability import drain_hooks
    from busbar.kube import taints
    from busbar.kube.wait import SystemClock

    return {"changed": taints.apply(api, spec, SystemClock(), progress, partial(drain_hooks, api))}


@engine_command("prepare", "busbar.operations.preparation:Preparation", on_cluster=False)
async def prepare_hosts(spec: Preparation) -> Any:
    """Download what hosts install later on all of them at once. Prints {host: digest of what is there}.

    Hosts whose digest is in the previous result are left out. Exit code 0 also where hosts fail.
    """
    from busbar.operations import preparation

    return await preparation.prepare(spec, json.loads(os.environ.get(PREVIOUS_RESULT) or "{}"), say)


@engine_command("remove host", "busbar.operations.removal:HostRemoval", on_cluster=False)
async def remove_host(spec: HostRemoval) -> None:
    """Remove what busbar installed on a host. One that is gone is recorded and named, and stops nothing."""
    from busbar.operations import removal

    if reason := await removal.remove_host(spec, say):
        path = removal.write_record(Path(spec.folder), spec.resource, spec.host, reason)
        say(f"could not be cleaned: {spec.host.name}: {reason}; recorded in {path}")


@engine_command("remove cluster", "busbar.operations.removal:Teardown", on_cluster=False)
async def remove_cluster(spec: Teardown) -> None:
    """Tell the servers that the whole cluster is being removed: none of them has to leave etcd then."""
    from busbar.operations import removal

    await removal.announce_teardown(spec, say)


@engine_command("remove keep", "busbar.operations.removal:Teardown", on_cluster=False)
async def remove_keep(spec: Teardown) -> None:
    """Tell the servers that the cluster stays: a `destroy` that was interrupted had told them otherwise."""
    from busbar.operations import removal

    await removal.announce_teardown(spec, say, kept=True)


@engine_command("remove nodes", "busbar.kube.drain:StaleNodesSpec")
def remove_nodes(api: RestApi, spec: StaleNodesSpec) -> Any:
    """Drain and delete the Nodes of workers that are not configured any more. Prints {"deleted"}."""
    from busbar.capability import drain_hooks
    from busbar.kube import drain
    from busbar.kube.wait import SystemClock

    stop_on_sigterm()  # which uncordons the nodes that it has cordoned
    hooks = partial(drain_hooks, api)
    return {"deleted": drain.remove_stale_nodes(api, spec, SystemClock(), progress, hooks)}


@engine_command("nccl pull-image", "busbar.manifests.image_pull:ImagePull")
def pull_image(api: RestApi, pull: ImagePull) -> Any:
    """Create one Job per node that pulls an image; no Job is waited for.

    Prints {"image", "nodes", "created", "existing"}, the last three as numbers. Exit code 0 also where the
    API refuses or is not responding: the measurement pulls the image then.
    """
    from busbar.kube.client import ApiError
    from busbar.kube.objects import create
    from busbar.kube.wait import Deadline, SystemClock, TimedOut, wait_until
    from busbar.manifests.image_pull import render

    total, is_new = len(pull.nodes), list[bool]()
    deadline = Deadline(SystemClock(), PULL_SECONDS)
    try:
        for job in render(pull):
            one = partial(create, api, pull.path, job)
            is_new.append(wait_until(one, deadline, poll_seconds=1, progress=progress))
    except (ApiError, TimedOut) as error:
        progress(
            f"note: image {pull.image} is not pulled ahead on {total - len(is_new)} of {total} nodes of pool "
            f"{pull.pool}: {error}. The measurement pulls it when it starts."
        )
    counts = {"created": is_new.count(True), "existing": is_new.count(False)}
    return {"image": pull.image, "nodes": total, **counts}


@engine_command("nccl collect", "busbar.collect.spec:CollectSpec")
def collect(api: RestApi, spec: CollectSpec) -> Any:
    """Follow an MPIJob's launcher and judge its log.

    Prints the verdict in short (outputs.contract.summarize), or the former one that stays, as `kept` where
    the GPUs are held. With another `judge` a kept log is judged again. Log, verdict and report are written to
    the folder of the request, and the record (busbar.judge.archive) there and into the cluster.

    Exit code 0 for any verdict; 1 also where restarting kubelets have rejected the job's pods twice.
    """
    from busbar.capability import notify
    from busbar.collect.busy import Kept
    from busbar.collect.collector import collect as run
    from busbar.hooks import call
    from busbar.judge.archive import VERDICT
    from busbar.kube.wait import SystemClock
    from busbar.outputs.contract import previous_result, summarize

    folder, previous = Path(spec.folder), previous_result(os.environ.get(PREVIOUS_RESULT))
    try:
        found = followed(
            "MPIJob",
            "the launcher's pod",
            spec,
            lambda: run(api, spec, SystemClock(), progress, previous=previous, pool=folder.name),
        )
    except Kept as kept:
        return compact(kept.found)
    file = f"{spec.folder}/{VERDICT}"
    short = summarize(found.verdict, verdict_file=file, config_map=found.config_map, record=found.record)
    if found.record:
        call("verdict_made", folder, short, progress)
    notify(lambda: api, progress)
    return compact(short)


def followed(kind: str, where: str, spec: JobSpec, follow: Callable[[], Found]) -> Found:
    """The result of `follow` for a job. Raises Failed if nothing is known of it; `where` has its log."""
    from busbar.collect.watch import Unreachable

    try:
        return follow()
    except Unreachable as error:
        raise Failed(
            f"no verdict on {kind} {spec.namespace}/{spec.job}: timed out after "
            f"{spec.deadline_seconds:.0f} s: {error}. The log is still in {where}. Fix: run the same "
            "command again when the API answers."
        ) from error

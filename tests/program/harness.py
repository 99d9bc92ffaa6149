"""The whole of `__main__.py` under Pulumi's mocks: what it registers, exports and says, without an engine.

Mocks prove requests (what is asked of the engine, in which order, with what marked as secret); that a Command
runs when it should is for the lab to prove. Built on internals of the SDK, as its own mocks are.
"""

import asyncio
import json
import os
import runpy
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Executor
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeVar, TypeVarTuple
from unittest import mock

import pulumi
import yaml
from google.protobuf import json_format
from pulumi.runtime import mocks, resource, settings, stack
from pulumi.runtime._callbacks import _CallbackServicer
from pulumi.runtime.proto import engine_pb2, source_pb2

from busbar.components.engine import node_steps
from busbar.finding import Finding
from busbar.helm import releases
from busbar.kube import batches, health, nodes
from busbar.names import removal_of
from tests.support.host_commands import files_of, values_of

ROOT = Path(__file__).resolve().parents[2]

SECRET_MARK = "4dabf18193072939515e22adb298388d"  # the SDK's signature of a wrapped value
SECRET_SIGNATURE = "1b47061264138c4ac30d75fd1eb44270"

COMMAND = "command:remote:Command"
LOCAL = "command:local:Command"
RELEASE = "kubernetes:helm.sh/v3:Release"
PROVIDER = "pulumi:providers:kubernetes"
STASH = "pulumi:index:Stash"

AT_THE_END: batches.Nodes | None = None
"""What the end of an update finds; None: all workers are Ready."""
DEAD_SERVERS: Mapping[str, str] = {}
"""What the end of an update finds wrong with servers of the cluster, by name."""


def ask_nodes(*_: object, **__: object) -> batches.Nodes:
    """The cluster answers, before workers change, that it has no Nodes."""
    return batches.Nodes(names=frozenset(), ready=frozenset())


@dataclass(frozen=True)
class Resource:
    """One request to register a resource."""

    urn: str
    request: Any

    @property
    def name(self) -> str:
        return str(self.request.name)

    @property
    def type(self) -> str:
        return str(self.request.type)

    @property
    def raw(self) -> dict[str, Any]:
        """The inputs as sent, with secrets still wrapped."""
        return json_format.MessageToDict(self.request.object)

    @property
    def inputs(self) -> dict[str, Any]:
        """The inputs with secrets unwrapped."""
        return dict(unwrap(self.raw))

    @property
    def ahead(self) -> set[str]:
        """URNs that are registered, and so made, before: what it depends on, its parent and its provider.

        A child waits for what its component depends on: the SDK registers the component first, and
        that waits.
        """
        provider = self.request.provider.rpartition("::")[0]  # URN::ID
        return {*self.request.dependencies, *filter(None, [self.request.parent, provider])}


@dataclass
class Run:
    """What one run of the program did."""

    resources: dict[str, Resource] = field(default_factory=dict)
    registered_outputs: dict[str, Any] = field(default_factory=dict)
    messages: list[str] = field(default_factory=list)
    debug_messages: list[str] = field(default_factory=list)
    error: BaseException | None = None
    looked_for: set[tuple[str, str | None]] = field(default_factory=set)
    """Namespaces and releases that were looked for on the cluster at the end."""

    def ask_installed(self, expected: releases.Expected) -> list[str]:
        self.looked_for |= {(namespace, release) for namespace, release, _ in expected}
        return []

    @property
    def outputs(self) -> dict[str, Any]:
        """The stack outputs, secrets unwrapped."""
        return dict(unwrap(self.raw_outputs))

    @property
    def raw_outputs(self) -> dict[str, Any]:
        """The stack outputs as sent."""
        [outputs] = [o for urn, o in self.registered_outputs.items() if "::pulumi:pulumi:Stack::" in urn]
        return dict(outputs)

    def of_type(self, token: str) -> list[Resource]:
        """All resources of a type, in the order of their registration."""
        return [resource for resource in self.resources.values() if resource.type == token]

    def named(self, name: str) -> Resource:
        """The one resource of that name (components have names of their own)."""
        [found] = [resource for resource in self.resources.values() if resource.name == name]
        return found

    def removal(self, name: str) -> Resource:
        """The resource that removes what the one of this name installs."""
        return self.named(removal_of(name))

    def request(self, name: str) -> dict[str, Any]:
        """What a `busbar` command is asked on stdin."""
        return dict(json.loads(self.named(name).inputs["stdin"]))

    def values(self, name: str) -> dict[str, str]:
        """The values that a step on a host is given."""
        return values_of(self.named(name).inputs["create"])

    def files(self, name: str) -> dict[str, str]:
        """The files that a step sends to its host."""
        return files_of(self.named(name).inputs["stdin"])

    def config(self, name: str) -> dict[str, Any]:
        """The config.yaml that a step sends to its host."""
        return dict(yaml.safe_load(self.files(name)["config"]))

    @property
    def custom(self) -> list[Resource]:
        """All resources that are something outside the program: no components, no stack."""
        return [resource for resource in self.resources.values() if resource.request.custom]

    def waits_for(self, later: Resource, earlier: Resource) -> bool:
        """Whether `later` begins after `earlier`, directly or through others."""
        seen: set[str] = set()
        ahead = later.ahead
        while ahead:
            urn = ahead.pop()
            if urn == earlier.urn:
                return True
            if urn not in seen:
                seen.add(urn)
                if urn in self.resources:  # a resource that is read, such as a StackReference, is not
                    ahead |= self.resources[urn].ahead
        return False


def unwrap(value: Any) -> Any:
    """The value with every secret in it opened."""
    if isinstance(value, dict):
        if SECRET_MARK in value:
            return unwrap(value.get("value"))
        return {key: unwrap(item) for key, item in value.items()}
    return [unwrap(item) for item in value] if isinstance(value, list) else value


def texts(value: Any, *, secret: bool = False, path: str = "") -> Iterator[tuple[str, str, bool]]:
    """All texts in a value as sent: (path, text, whether it is marked as a secret)."""
    if isinstance(value, dict):
        if value.get(SECRET_MARK) == SECRET_SIGNATURE:
            yield from texts(value.get("value"), secret=True, path=path)
            return
        for key, item in value.items():
            yield from texts(item, secret=secret, path=f"{path}.{key}" if path else key)
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from texts(item, secret=secret, path=f"{path}[{index}]")
    elif isinstance(value, str):
        yield path, value, secret


class _Monitor(mocks.MockMonitor):
    """Records every request, and the outputs that components and the stack register."""

    def __init__(self, answers: mocks.Mocks, run: Run) -> None:
        super().__init__(answers)
        self._run = run

    def RegisterResource(self, request: Any) -> Any:
        response = super().RegisterResource(request)
        if response.urn in self._run.resources:
            raise AssertionError(f"two resources have the URN {response.urn}")
        self._run.resources[response.urn] = Resource(response.urn, request)
        return response

    def RegisterResourceOutputs(self, request: Any) -> Any:
        # Not `deserialize_properties`, which would drop the marks of secrets.
        self._run.registered_outputs[request.urn] = json_format.MessageToDict(request.outputs)
        return super().RegisterResourceOutputs(request)


class _Engine(mocks.MockEngine):
    """Keeps what the program says to the person who runs it."""

    def __init__(self, run: Run) -> None:
        super().__init__(None)
        self._run = run

    def Log(self, request: Any) -> Any:
        kept = self._run.debug_messages if request.severity == engine_pb2.DEBUG else self._run.messages
        kept.append(request.message)
        return super().Log(request)


class _Callbacks(_CallbackServicer):
    """Keeps the hooks of resources. It serves none: the SDK starts a gRPC server for each early request."""

    def __init__(self, monitor: Any) -> None:
        self._callbacks, self._transforms, self._state_migrations = {}, {}, {}
        self._monitor, self._target = monitor, ""


_Result = TypeVar("_Result")
_Args = TypeVarTuple("_Args")


class _Loop(asyncio.SelectorEventLoop):
    """Calls at once what the SDK calls in threads: mocks do not block, and threads cost more than they do."""

    def run_in_executor(
        self, executor: Executor | None, func: Callable[[*_Args], _Result], *args: *_Args
    ) -> asyncio.Future[_Result]:
        answer: asyncio.Future[_Result] = self.create_future()
        try:
            answer.set_result(func(*args))
        except Exception as error:
            answer.set_exception(error)
        return answer


def _on_loop_error(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Log what the loop reports, but not a failure once more for each Output that waited for it."""
    if not context["message"].endswith("exception was never retrieved"):
        loop.default_exception_handler(context)


Answer = Callable[[mocks.MockResourceArgs], Mapping[str, Any]]
Call = Callable[[mocks.MockCallArgs], dict[Any, Any]]


class Answers(mocks.Mocks):
    def __init__(self, answer: Answer | None, call: Call | None) -> None:
        self._answer, self._call = answer, call

    def new_resource(self, args: mocks.MockResourceArgs) -> tuple[str | None, dict[Any, Any]]:
        if args.typ == STASH:
            # The engine itself makes it, and knows its output in a preview too.
            return f"{args.name}-id", {**args.inputs, "output": args.inputs["input"]}
        if self._answer is None:
            return None, args.inputs
        return f"{args.name}-id", {**args.inputs, **self._answer(args)}

    def call(self, args: mocks.MockCallArgs) -> Any:
        if self._call is not None:
            return self._call(args)
        raise AssertionError(f"the program asks for {args.token}: every preview would wait for it")


def run_program(
    cluster: Mapping[str, Any],
    answer: Answer,
    *,
    preview: bool = False,
    answered: bool = True,
    secrets: Mapping[str, str] | None = None,
    program: Path = ROOT / "__main__.py",
    project: str = "busbar",
    config: Mapping[str, str] | None = None,
    call: Call | None = None,
) -> Run:
    """Run the program as the engine would; `answer` gives each resource the outputs that its provider would.

    `secrets` are secret keys of the stack. With `answered=False` nothing is known, as in the preview
    of a first bring-up. A program that raises ends as a Run with `error`. `call` answers functions of the
    engine; without it the program may call none.
    """
    run = Run()
    loop = _Loop()
    asyncio.set_event_loop(loop)
    loop.set_exception_handler(_on_loop_error)
    monitor = _Monitor(Answers(answer if answered else None, call), run)
    settings.configure(
        mocks.MockSettings(
            monitor=monitor,
            engine=_Engine(run),
            callbacks=_Callbacks(monitor),
            organization="organization",
            project=project,
            stack="test",
            dry_run=preview,
            monitor_features=set(monitor.GetDeploymentInfo(None).supportedFeatures),
        )
    )
    settings.SETTINGS.outputs.clear()  # leftovers of a failed run would hang this one
    settings.set_root_resource(None)  # type: ignore[arg-type]
    workers = frozenset(worker["name"] for worker in cluster.get("hosts", {}).get("workers", ()))
    at_the_end = AT_THE_END or batches.Nodes(names=workers, ready=workers)
    keys = {f"{project}:{name}": value for name, value in (secrets or {}).items()}
    values = {"busbar:cluster": json.dumps(cluster), **keys, **(config or {})}
    # As the language host does it: the configuration is in the environment, and the SDK reads it from there.
    pulumi.runtime.set_all_config(values, list(keys))
    # A mock waits in a loop of its own that goes on with other resources, so the calls of many nest deeply.
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(20 * limit)
    try:
        # The program may set it (components/engine/stack.py), for this run.
        with (
            mock.patch.object(pulumi.log, "debug", pulumi.log.debug),
            mock.patch.dict(os.environ, PULUMI_CONFIG=json.dumps(values)),
            mock.patch.object(stack, "_wait_for_shutdown", stack._wait_for_shutdown),
            # A quarter of the time: where the program made each resource.
            mock.patch.object(resource, "_get_stack_trace", source_pb2.StackTrace),
            mock.patch.object(batches, "ask", _asked(ask_nodes)),
            mock.patch.object(batches, "answer", _asked(lambda *_: [])),
            mock.patch.object(
                node_steps, "batches", SimpleNamespace(ask=_asked(lambda *_, **__: at_the_end))
            ),
            mock.patch.object(nodes, "ask_servers", _asked(_ask_servers)),
            mock.patch.object(health, "await_health", _asked(lambda *_: [])),
            mock.patch.object(releases, "ask", _asked(lambda _, expected: run.ask_installed(expected))),
        ):
            loop.run_until_complete(stack.run_in_stack(lambda: _run_path(program)))
    except Exception as error:
        run.error = error
    finally:
        pending = asyncio.all_tasks(loop)
        for task in pending:
            task.cancel()
        loop.run_until_complete(asyncio.gather(*pending, return_exceptions=True))
        loop.close()
        asyncio.set_event_loop(None)
        sys.setrecursionlimit(limit)
    return run


def _asked(answer: Callable[..., Any]) -> Callable[..., Any]:
    """A question to a cluster, which takes a kubeconfig: the SDK's Outputs are none."""

    def ask(kubeconfig: object, *args: Any, **options: Any) -> Any:
        assert isinstance(kubeconfig, str)
        return answer(kubeconfig, *args, **options)

    return ask


def _ask_servers(_: str, names: Iterable[str]) -> list[Finding]:
    return [Finding((name,), DEAD_SERVERS[name]) for name in names if name in DEAD_SERVERS]


def _run_path(program: Path) -> None:
    runpy.run_path(str(program), run_name="__main__")

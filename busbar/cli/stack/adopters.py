"""Stands in for the engine's plugins while a program is run for a stack whose state was lost.

The engine runs the whole program as in the first update, and writes the state with every resource. Where a
plugin would create something, these answer with what is there: no host and no object is changed.
"""

from __future__ import annotations

import json
import os
import secrets
import select
import shlex
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import grpc
from google.protobuf import empty_pb2, json_format, struct_pb2
from pulumi import automation as auto
from pulumi.runtime.proto import plugin_pb2, provider_pb2, provider_pb2_grpc

from busbar.cli.stack import events
from busbar.cli.stack.errors import StackError
from busbar.exits import FAILED
from busbar.hosts import scripts
from busbar.judge.archive import Archive
from busbar.kube.access import connect
from busbar.kube.objects import find
from busbar.manifests.mpijob import API_VERSION
from busbar.operations.adoption import Found, Lost

Say = Callable[[str], None]
Answer = Callable[[str, Mapping[str, Any]], str]
"""From the command text of a local Command and its inputs to what it prints. Raises CommandFailed."""

NOT_APPLIED = "# not applied when the stack was adopted: "
"""Begins the text of a step in the state that is not as configured, so that the next update runs it."""
# Local commands that only look at something, and whose result the program needs.
_LOOKS = {"preflight", "collect"}
_RELEASE = "kubernetes:helm.sh/v3:Release"
_PASSWORD = "random:index/randomPassword:RandomPassword"
_SECRET_KEY = "4dabf18193072939515e22adb298388d"
_SECRET = "1b47061264138c4ac30d75fd1eb44270"
_FIELD_MANAGER = "pulumi-kubernetes-"
_UNLIMITED = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
_START_SECONDS = 60
_OPERATIONS = 128
# A step has its own deadline; this one is for a process that hangs.
_COMMAND_SECONDS = 4 * 3600


class CommandFailed(Exception):
    """A local command failed; the text is its error."""


class Adopters:
    """`differences`: name of a step -> how its host differs. `missing`: URNs of objects that are gone."""

    def __init__(self, lost: Lost, found: Found, project: Path, run: Answer) -> None:
        self.lost, self.found, self.project, self.run = lost, found, project, run
        self.differences: dict[str, str] = {}
        self.missing: list[str] = []

    @contextmanager
    def serving(self, workspace: auto.Workspace) -> Iterator[str]:
        """Serve until the end of the block; the value is for PULUMI_DEBUG_PROVIDERS. Raises StackError."""
        with ThreadPoolExecutor(_OPERATIONS) as threads:
            names = ["command", "random", *(["kubernetes"] if self.lost.uses_kubernetes else [])]
            servers = {name: grpc.server(threads, options=_UNLIMITED) for name in names}
            for name in names[:2]:
                answering = _Commands(self, name)
                provider_pb2_grpc.add_ResourceProviderServicer_to_server(answering, servers[name])
            objects = _Objects(self, workspace) if self.lost.uses_kubernetes else None
            try:
                if objects:
                    servers["kubernetes"].add_generic_rpc_handlers((objects,))
                ports = {name: server.add_insecure_port("127.0.0.1:0") for name, server in servers.items()}
                for server in servers.values():
                    server.start()
                yield ",".join(f"{name}:{port}" for name, port in ports.items())
            finally:
                for server in servers.values():
                    server.stop(None)
                if objects:
                    objects.end()


def local_answer(project: Path, say: Say) -> Answer:
    """Runs local commands in the folder of the project, as the engine does. `say` gets their progress."""

    def run(text: str, inputs: Mapping[str, Any]) -> str:
        done = subprocess.run(
            ["/bin/sh", "-c", text], cwd=project, env={**os.environ, **(inputs.get("environment") or {})},
            input=inputs.get("stdin") or "", capture_output=True, text=True, check=False,
            timeout=_COMMAND_SECONDS,
        )  # fmt: skip
        if done.returncode:
            raise CommandFailed(done.stderr.strip() or f"exit status {done.returncode}")
        for line in done.stderr.splitlines():
            say(line)
        return str(done.stdout).rstrip("\n")

    return run


class _Commands(provider_pb2_grpc.ResourceProviderServicer):
    """The plugin `command` or `random`."""

    def __init__(self, adopters: Adopters, name: str) -> None:
        self._adopters, self._name = adopters, name

    def Handshake(self, request: Any, context: Any) -> Any:
        # The engine then configures the plugin in the former way.
        context.abort(grpc.StatusCode.UNIMPLEMENTED, "")

    def Attach(self, request: Any, context: Any) -> Any:
        return empty_pb2.Empty()

    def Cancel(self, request: Any, context: Any) -> Any:
        return empty_pb2.Empty()

    def GetPluginInfo(self, request: Any, context: Any) -> Any:
        return plugin_pb2.PluginInfo(version=version(f"pulumi-{self._name}"))

    def CheckConfig(self, request: Any, context: Any) -> Any:
        return provider_pb2.CheckResponse(inputs=request.news)

    def Configure(self, request: Any, context: Any) -> Any:
        return provider_pb2.ConfigureResponse(acceptSecrets=True, supportsPreview=True)

    def Check(self, request: Any, context: Any) -> Any:
        inputs = request.news
        if _type(request.urn) != _PASSWORD and (why := self._difference(_plain(inputs))):
            self._adopters.differences[events.name(request.urn)] = why
            _set(inputs, "create", f"{NOT_APPLIED}{why}\n{_plain(inputs)['create']}")
        return provider_pb2.CheckResponse(inputs=inputs)

    def Create(self, request: Any, context: Any) -> Any:
        answer = provider_pb2.CreateResponse(properties=request.properties)
        name, inputs = events.name(request.urn), _plain(request.properties)
        if _type(request.urn) == _PASSWORD:
            value = self._adopters.found.secrets.values.get(name)
            if value is None:
                context.abort(grpc.StatusCode.UNKNOWN, f"no host has the secret {name} of a lost state")
            answer.id = "none"
            _fill_password(answer.properties, str(value))
            return answer
        answer.id = f"{name}{secrets.token_hex(4)}"
        try:
            _set(answer.properties, "stdout", self._printed(inputs))
        except CommandFailed as error:
            context.abort(grpc.StatusCode.UNKNOWN, str(error))
        _set(answer.properties, "stderr", "")
        return answer

    def _difference(self, inputs: Mapping[str, Any]) -> str:
        text = inputs.get("create")
        if not text:
            return ""
        if "connection" in inputs:
            values, payload = scripts.values_of(text), scripts.payload_of(inputs["stdin"])
            return self._adopters.found.difference(values, payload, self._adopters.lost)
        return _missing_evidence(text, inputs, self._adopters.project)

    def _printed(self, inputs: Mapping[str, Any]) -> str:
        text = inputs.get("create") or ""
        if "connection" in inputs:
            values = scripts.values_of(text)
            name, script = values.get("NODE_NAME", ""), values.get("BUSBAR_SCRIPT", "")
            known = self._adopters.found.hosts.get(name)
            secret = script.startswith("kubeconfig-")
            return known.facts(name, with_kubeconfig=secret) if known else json.dumps({"node": name})
        looks = not text.startswith(NOT_APPLIED) and _LOOKS & {*_words(text)}
        return self._adopters.run(text, inputs) if looks else ""


class _Objects(grpc.GenericRpcHandler):  # type: ignore[misc]
    """The official plugin `kubernetes`, except that it reads what it would create."""

    def __init__(self, adopters: Adopters, workspace: auto.Workspace) -> None:
        self._adopters = adopters
        self._process = subprocess.Popen(
            [_plugin(workspace, "kubernetes")],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, start_new_session=True,
        )  # fmt: skip
        assert self._process.stdout
        port = ""
        if select.select([self._process.stdout], [], [], _START_SECONDS)[0]:
            port = self._process.stdout.readline().strip()
        if not port.isdigit():
            self.end()
            raise StackError("the plugin kubernetes did not start", exit_code=FAILED)
        self._channel = grpc.insecure_channel(f"127.0.0.1:{port}", _UNLIMITED)
        self._plugin = provider_pb2_grpc.ResourceProviderStub(self._channel)

    def end(self) -> None:
        # The engine too ends a plugin together with the processes that it has started.
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler:
        return grpc.unary_unary_rpc_method_handler(partial(self._answer, details.method))

    def _answer(self, method: str, request: bytes, context: grpc.ServicerContext) -> bytes:
        try:
            if method.endswith("/Create"):
                return bytes(self._read(provider_pb2.CreateRequest.FromString(request)).SerializeToString())
            return bytes(self._channel.unary_unary(method)(request))
        except grpc.RpcError as error:
            context.set_trailing_metadata(error.trailing_metadata())
            context.abort(error.code(), error.details())
            raise

    def _read(self, request: Any) -> Any:
        """The answer to a creation: the object as it is, or, where it is missing, its inputs."""
        inputs, is_release = _plain(request.properties), _type(request.urn) == _RELEASE
        names = inputs if is_release else inputs["metadata"]
        id = "/".join(filter(None, (names.get("namespace"), names["name"])))
        state = struct_pb2.Struct()
        state.CopyFrom(request.properties)
        if is_release:
            former = state.fields["__inputs"].struct_value
            former.fields[_SECRET_KEY].string_value = _SECRET
            former.fields["value"].struct_value.CopyFrom(request.properties)
            # The plugin merges the values of the release over these.
            state.fields.pop("values", None)
        found = self._plugin.Read(
            provider_pb2.ReadRequest(id=id, urn=request.urn, properties=state, inputs=request.properties)
        )
        if not found.id:
            self._adopters.missing.append(request.urn)
            return provider_pb2.CreateResponse(id=id, properties=state)
        fields = found.properties.fields
        if is_release and "values" in fields:
            # The plugin compares with the inputs that it keeps here: values may be gone from the file.
            inside = fields["__inputs"].struct_value.fields["value"].struct_value
            inside.fields["values"].CopyFrom(fields["values"])
        # The manager of the lost state goes on: another one would conflict with it at the next change.
        managers = (
            each["manager"]
            for each in _plain(found.properties).get("metadata", {}).get("managedFields") or ()
        )
        if manager := next((each for each in managers if each.startswith(_FIELD_MANAGER)), None):
            _set(found.properties, "__fieldManager", manager)
        return provider_pb2.CreateResponse(id=id, properties=found.properties)


def _missing_evidence(text: str, inputs: Mapping[str, Any], project: Path) -> str:
    """Why a command that collects a measurement would have to measure; empty for any other command."""
    if "collect" not in _words(text):
        return ""
    spec = json.loads(inputs["stdin"])
    if "namespace" in spec:
        path = f"/apis/{API_VERSION}/namespaces/{spec['namespace']}/mpijobs/{spec['job']}"
        job = find(connect(inputs["environment"]), path)
        return "" if job else f"the job {spec['job']} is not on the cluster"
    kept = Archive(project / spec["folder"]).complete_log_of
    return "" if kept == spec["job"] else f"{spec['folder']} does not have the log of {spec['job']}"


def _words(text: str) -> list[str]:
    """The words after `busbar` in the text of a local Command."""
    words = shlex.split(text)
    return words[words.index("busbar") + 1 :] if "busbar" in words else []


def _plugin(workspace: auto.Workspace, name: str) -> str:
    """The program of a plugin: on PATH, else the engine's own, which is installed if it is not there."""
    program, release = f"pulumi-resource-{name}", f"v{version(f'pulumi-{name}')}"
    if found := shutil.which(program):
        return found
    home = Path(os.environ.get("PULUMI_HOME") or Path.home() / ".pulumi")
    path = home / "plugins" / f"resource-{name}-{release}" / program
    if not path.is_file():
        workspace.install_plugin(name, release)
    return str(path)


def _fill_password(state: struct_pb2.Struct, value: str) -> None:
    """The state of a RandomPassword with this result, as pulumi-random 4.21 writes it."""
    for key in ("lower", "upper", "number", "numeric"):
        state.fields[key].bool_value = True
    for key in ("minLower", "minUpper", "minNumeric", "minSpecial"):
        state.fields[key].number_value = 0
    _set(state, "__meta", '{"schema_version":"3"}')
    state.fields["result"].struct_value.update({_SECRET_KEY: _SECRET, "value": value})


def _type(urn: str) -> str:
    """The type in a URN, without those of its parents."""
    return urn.split("::")[2].rpartition("$")[2]


def _set(struct: struct_pb2.Struct, key: str, text: str) -> None:
    struct.fields[key].string_value = text


def _plain(struct: struct_pb2.Struct) -> dict[str, Any]:
    """The values, secrets in plain text."""
    found: dict[str, Any] = _revealed(json_format.MessageToDict(struct))
    return found


def _revealed(value: Any) -> Any:
    if isinstance(value, dict):
        if value.get(_SECRET_KEY) == _SECRET:
            return _revealed(value["value"])
        return {key: _revealed(each) for key, each in value.items()}
    return [_revealed(each) for each in value] if isinstance(value, list) else value

"""The providers command, random and kubernetes of tests.support.engine_site: they touch no host.

`python engine_plugins.py command|random|kubernetes [ENGINE_ADDRESS]`. What is a change, and which change is a
replacement, is decided as by the lab's plugins. A new Command prints what `answers` says, and an updated one
prints what it printed before. There is no chart repository, so Helm releases change nothing. What is a change
of a Kubernetes object is decided by the official provider, which compares with the API server of the test. It
updates by trial runs, and neither creates nor deletes: no controller is there for which it could wait.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc
from google.protobuf import empty_pb2, json_format
from pulumi.runtime.proto import provider_pb2

if __name__ == "__main__":
    # The engine starts this file, and Python's own folder of it is none of the project.
    sys.path[0] = str(Path(__file__).resolve().parents[2])

from busbar.outputs.contract import summarize as of_nccl
from lab.offline.plugins.command.local import LocalCommand
from lab.offline.plugins.command.remote import RemoteCommand
from lab.offline.plugins.random.provider import RandomProvider
from lab.offline.plugins.sdk import structural
from lab.offline.plugins.sdk.provider import Provider
from lab.offline.plugins.sdk.resource import Call, Difference, Failure, Resource
from lab.offline.plugins.sdk.serve import UNLIMITED, run, run_handler, start
from lab.offline.plugins.sdk.values import Properties, Secret, reveal
from stacks.training.package.outputs import summarize as of_training
from stacks.training.tests.unit import made
from tests.program.answers import healthy
from tests.support.verdicts import passing

FOLDER = "BUSBAR_ENGINE_SITE"
"""The variable that names the folder of the site."""
OFFICIAL, KUBECONFIG = "BUSBAR_OFFICIAL_PROVIDER", "BUSBAR_API_SERVER"
"""The variables with the path of the official provider, and with the kubeconfig of the API server."""
KEY, READABLE_KEY = "MOCK-CLIENT-KEY", "TU9DSw=="
"""The key in the kubeconfigs of states, and one that the provider can decode."""
REQUESTS = {
    name: getattr(provider_pb2, f"{name}Request")
    for name in ("Configure", "Check", "Diff", "Create", "Read", "Update", "Delete")
}
REQUESTS["DiffConfig"] = provider_pb2.DiffRequest
COLLECT = {"nccl": lambda: of_nccl(passing()), "training": lambda: of_training(made.verdict())}
"""What the collecting Commands print, by their group."""


def told(folder: Path) -> Path:
    """The file with the arguments of `answers`."""
    return folder / "told.json"


def answers(cluster: Mapping[str, Any]) -> Callable[[Any], Mapping[str, Any]]:
    """From a new resource to its outputs, on a site where everything works; see EngineSite.tell."""
    usual = healthy(cluster)

    def answer(args: Any) -> Mapping[str, Any]:
        group, command = ["", "", *str(args.inputs.get("create", "")).split()][-2:]
        if command == "collect":
            return {"stdout": json.dumps(COLLECT[group]())}
        if group == "watch":
            return {"stdout": json.dumps({"passed": True, "reasons": [], "nodes": 2})}
        return usual(args)

    return answer


def _printed(call: Call, inputs: Properties) -> Properties:
    """What a new Command prints."""
    answer = answers(**json.loads(told(Path(os.environ[FOLDER])).read_text()))
    found = answer(SimpleNamespace(typ=call.type, name=call.name, inputs=inputs))
    return {"stdout": str(found["stdout"]), "stderr": ""}


class _Remote(RemoteCommand):
    def run(self, call: Call, text: str, inputs: Properties, previous: Any) -> Properties:
        return dict(previous) or _printed(call, inputs)


class _Local(LocalCommand):
    def run(self, call: Call, text: str, inputs: Properties, previous: Any) -> Properties:
        return dict(previous) or _printed(call, inputs)


class _Release(Resource):
    """A Helm release that is only in the state."""

    def check(self, call: Call, olds: Properties, news: Properties) -> tuple[Properties, list[Failure]]:
        return {"version": "0.0.0", "description": "", **news}, []

    def diff(self, call: Call, id: str, state: Properties, news: Properties) -> Difference:
        kinds = structural.changes(reveal(state).get("__inputs", {}), news)
        fixed = {path: f"{kind}_REPLACE" for path, kind in kinds.items() if path in ("name", "namespace")}
        return Difference({**kinds, **fixed})

    def create(self, call: Call, inputs: Properties) -> tuple[str, Properties]:
        plain = reveal(inputs)
        status = {"name": plain["name"], "namespace": plain["namespace"], "revision": 1, "status": "deployed"}
        state = {**inputs, "resourceNames": {}, "status": {**status, "version": plain["version"]}}
        return f"{plain['namespace']}/{plain['name']}", {**state, "__inputs": Secret(inputs)}

    def update(self, call: Call, id: str, state: Properties, news: Properties) -> Properties:
        return self.create(call, news)[1]

    def delete(self, call: Call, id: str, state: Properties) -> None: ...


class _Command(Provider):
    name, version = "command", "1.2.1"

    def resource(self, type_token: str) -> Resource:
        return _Remote() if ":remote:" in type_token else _Local()


class _Releases(Provider):
    name, version = "kubernetes", "4.34.2"

    def resource(self, type_token: str) -> Resource:
        return _Release()


class _Kubernetes(grpc.GenericRpcHandler):  # type: ignore[misc]
    """The official provider, but for Helm releases, on the API server of the test."""

    def __init__(self, engine_address: str | None) -> None:
        # It ends with the process group of this one.
        command = [os.environ[OFFICIAL], *([engine_address] if engine_address else [])]
        official = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, stdin=subprocess.DEVNULL)
        assert official.stdout
        self._official = _channel(int(official.stdout.readline()))
        self._server, port = start(_Releases(), engine_address)
        self._releases = _channel(port)

    def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler:
        return grpc.unary_unary_rpc_method_handler(partial(self._forward, details.method))

    def _forward(self, method: str, request: bytes, context: grpc.ServicerContext) -> bytes:
        name, target = method.rpartition("/")[2], self._official
        if message_type := REQUESTS.get(name):
            message = message_type.FromString(request)
            if name == "Configure":
                message.variables["kubernetes:config:kubeconfig"] = os.environ[KUBECONFIG]
            elif name == "DiffConfig":
                text = json_format.MessageToJson(message).replace(KEY, READABLE_KEY)
                message = json_format.Parse(text, message_type())
            elif message.urn.split("::")[2].endswith(":Release"):
                target = self._releases
            elif name == "Delete":
                return bytes(empty_pb2.Empty().SerializeToString())
            elif name == "Create":
                return _created(message)
            elif name == "Update":
                message.preview = True
            request = message.SerializeToString()
        try:
            return bytes(target.unary_unary(method)(request))
        except grpc.RpcError as error:
            context.set_trailing_metadata(error.trailing_metadata())
            context.abort(error.code(), error.details())
            raise


def _created(message: Any) -> bytes:
    """The answer to a creation: what was asked for, as the provider stores it."""
    inputs, answer = message.properties, provider_pb2.CreateResponse()
    answer.properties.CopyFrom(inputs)
    answer.properties["__inputs"] = inputs
    answer.properties["__initialApiVersion"] = inputs["apiVersion"]
    answer.properties["__fieldManager"] = "pulumi-kubernetes-0"
    names = [inputs["metadata"][key] for key in ("namespace", "name") if key in inputs["metadata"]]
    answer.id = "/".join(names)
    return bytes(answer.SerializeToString())


def _channel(port: int) -> grpc.Channel:
    return grpc.insecure_channel(f"127.0.0.1:{port}", UNLIMITED)


PROVIDERS = {"command": _Command, "random": RandomProvider}

if __name__ == "__main__":
    name, *more = sys.argv[1:]
    address = next((each for each in more if not each.startswith("-")), None)
    if name == "kubernetes":
        run_handler(_Kubernetes(address))
    else:
        run(PROVIDERS[name](), address)

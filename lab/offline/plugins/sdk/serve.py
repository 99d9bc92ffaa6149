"""The gRPC server around a set of resource kinds: one provider plugin.

Protocol: `ResourceProvider` of the Pulumi SDK (pulumi/runtime/proto). The engine starts the executable with
its own address as the only argument and reads the server's port from the first line of stdout.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
from google.protobuf import empty_pb2
from pulumi.runtime.proto import plugin_pb2, provider_pb2, provider_pb2_grpc

from lab.offline.plugins.sdk.engine import Engine
from lab.offline.plugins.sdk.provider import Provider
from lab.offline.plugins.sdk.resource import Call, Difference, Failure, ProviderError
from lab.offline.plugins.sdk.values import decode, encode

# Every operation blocks a thread of its own; the engine's --parallel is the real limit.
_MAX_OPERATIONS = 128
_PARENT_CHECK_SECONDS = 2.0
UNLIMITED = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
"""Options of a server or channel without a limit on the size of messages."""
_STEP = re.compile(r"[.\[]")


def _guarded(method: Callable[..., Any]) -> Callable[..., Any]:
    """Turn our errors into the gRPC statuses that the engine shows."""

    def call(self: Servicer, request: Any, context: grpc.ServicerContext) -> Any:
        try:
            return method(self, request, context)
        except ProviderError as error:
            context.abort(grpc.StatusCode.UNKNOWN, str(error))

    return call


class Servicer(provider_pb2_grpc.ResourceProviderServicer):
    """The engine's calls, dispatched to a `Provider` and its resources."""

    def __init__(self, provider: Provider, engine: Engine) -> None:
        self._provider = provider
        self._engine = engine
        self._sends_old_inputs = False

    def _call(self, request: Any, *, preview: bool = False) -> Call:
        ignored = getattr(request, "ignoreChanges", ())
        has_old_inputs = self._sends_old_inputs and hasattr(request, "old_inputs")
        return Call(
            urn=request.urn,
            log=self._engine.log,
            preview=preview,
            ignore_changes=tuple(ignored),
            old_inputs=decode(request.old_inputs) if has_old_inputs else None,
            cancelled=self._provider.cancelled,
        )

    def GetPluginInfo(self, request: Any, context: Any) -> Any:
        return plugin_pb2.PluginInfo(version=self._provider.version)

    def GetSchema(self, request: Any, context: Any) -> Any:
        return provider_pb2.GetSchemaResponse(
            schema=f'{{"name": "{self._provider.name}", "version": "{self._provider.version}"}}'
        )

    @_guarded
    def Parameterize(self, request: Any, context: Any) -> Any:
        given = request.value
        self._provider.parameterize(given.name, given.version, given.value)
        return provider_pb2.ParameterizeResponse(name=given.name, version=given.version)

    def CheckConfig(self, request: Any, context: Any) -> Any:
        return provider_pb2.CheckResponse(inputs=request.news)

    def DiffConfig(self, request: Any, context: Any) -> Any:
        return provider_pb2.DiffResponse(changes=provider_pb2.DiffResponse.DIFF_UNKNOWN)

    def Configure(self, request: Any, context: Any) -> Any:
        self._sends_old_inputs = request.sends_old_inputs
        return provider_pb2.ConfigureResponse(acceptSecrets=True, supportsPreview=True)

    @_guarded
    def Check(self, request: Any, context: Any) -> Any:
        call = Call(urn=request.urn, log=self._engine.log, cancelled=self._provider.cancelled)
        resource = self._provider.resource(call.type)
        inputs, failures = resource.check(call, decode(request.olds), decode(request.news))
        return provider_pb2.CheckResponse(inputs=encode(inputs), failures=_failures(failures))

    @_guarded
    def Diff(self, request: Any, context: Any) -> Any:
        call = self._call(request)
        resource = self._provider.resource(call.type)
        return _difference(resource.diff(call, request.id, decode(request.olds), decode(request.news)))

    @_guarded
    def Create(self, request: Any, context: Any) -> Any:
        call = self._call(request, preview=request.preview)
        id, state = self._provider.resource(call.type).create(call, decode(request.properties))
        return provider_pb2.CreateResponse(id=id, properties=encode(state))

    @_guarded
    def Read(self, request: Any, context: Any) -> Any:
        call = self._call(request)
        found = self._provider.resource(call.type).read(
            call, request.id, decode(request.properties), decode(request.inputs)
        )
        if found is None:
            return provider_pb2.ReadResponse()
        id, state, inputs = found
        return provider_pb2.ReadResponse(id=id, properties=encode(state), inputs=encode(inputs))

    @_guarded
    def Update(self, request: Any, context: Any) -> Any:
        call = self._call(request, preview=request.preview)
        resource = self._provider.resource(call.type)
        state = resource.update(call, request.id, decode(request.olds), decode(request.news))
        return provider_pb2.UpdateResponse(properties=encode(state))

    @_guarded
    def Delete(self, request: Any, context: Any) -> Any:
        call = self._call(request)
        self._provider.resource(call.type).delete(call, request.id, decode(request.properties))
        return empty_pb2.Empty()

    @_guarded
    def Invoke(self, request: Any, context: Any) -> Any:
        answer = self._provider.invoke(request.tok, decode(request.args))
        return provider_pb2.InvokeResponse(**{"return": encode(answer)})

    def Cancel(self, request: Any, context: Any) -> Any:
        self._provider.cancel()
        return empty_pb2.Empty()


def _failures(failures: list[Failure]) -> list[Any]:
    return [provider_pb2.CheckFailure(property=found.property, reason=found.reason) for found in failures]


def _difference(difference: Difference) -> Any:
    response = provider_pb2.DiffResponse
    return response(
        changes=response.DIFF_SOME if difference.changes else response.DIFF_NONE,
        replaces=difference.replaces,
        diffs=sorted({_STEP.split(path, maxsplit=1)[0] for path in difference.changes}),
        hasDetailedDiff=True,
        detailedDiff={
            path: provider_pb2.PropertyDiff(kind=provider_pb2.PropertyDiff.Kind.Value(kind))
            for path, kind in difference.changes.items()
        },
    )


def start(provider: Provider, engine_address: str | None) -> tuple[grpc.Server, int]:
    """Serve `provider` on a loopback port; returns the server and that port."""
    server, port = _server(provider.name)
    provider_pb2_grpc.add_ResourceProviderServicer_to_server(
        Servicer(provider, Engine(engine_address)), server
    )
    server.start()
    return server, port


def run(provider: Provider, engine_address: str | None) -> None:
    """Serve until the engine ends this process, or is gone itself."""
    _, port = start(provider, engine_address)
    _announce(port, provider.cancel)


def run_handler(handler: grpc.GenericRpcHandler) -> None:
    """Serve calls as they arrive, until the engine ends this process, or is gone itself."""
    server, port = _server("handler")
    server.add_generic_rpc_handlers((handler,))
    server.start()
    _announce(port, lambda: None)


def _server(name: str) -> tuple[grpc.Server, int]:
    workers = ThreadPoolExecutor(max_workers=_MAX_OPERATIONS, thread_name_prefix=name)
    server = grpc.server(workers, options=UNLIMITED)
    return server, server.add_insecure_port("127.0.0.1:0")


def _announce(port: int, cancel: Callable[[], None]) -> None:
    print(port, flush=True)
    parent = os.getppid()
    # The engine ends its plugins; one that was killed cannot.
    while not threading.Event().wait(_PARENT_CHECK_SECONDS):
        if os.getppid() != parent:
            cancel()  # ends local commands, so that they do not outlive the run
            threading.Event().wait(_PARENT_CHECK_SECONDS)
            os._exit(1)

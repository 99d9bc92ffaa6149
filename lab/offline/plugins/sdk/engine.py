"""Messages from a plugin to the engine that started it."""

from __future__ import annotations

import contextlib
from typing import Protocol

import grpc
from pulumi.runtime.proto import engine_pb2, engine_pb2_grpc


class Log(Protocol):
    """Where a resource's messages go."""

    def __call__(self, severity: str, urn: str, text: str, *, status: bool = False) -> None: ...


class Engine:
    """The engine's log service at `address` ("host:port"); with no address every message is dropped."""

    def __init__(self, address: str | None) -> None:
        self._stub = None
        if address:
            # As the SDK does: the engine sends and expects messages far above gRPC's default of 4 MiB.
            channel = grpc.insecure_channel(address, options=[("grpc.max_send_message_length", -1)])
            self._stub = engine_pb2_grpc.EngineStub(channel)

    def log(self, severity: str, urn: str, text: str, *, status: bool = False) -> None:
        """Show `text` with the resource `urn`.

        `severity` is debug, info, warning or error. A `status` message is transient: it shows progress and
        leaves no diagnostic behind.
        """
        if self._stub is None:
            return
        request = engine_pb2.LogRequest(
            severity=engine_pb2.LogSeverity.Value(severity.upper()), message=text, urn=urn, ephemeral=status
        )
        # The engine may be shutting down; a lost progress line must not fail the operation.
        with contextlib.suppress(grpc.RpcError):
            self._stub.Log(request, timeout=10)

"""Simulates the engine: drives a plugin over gRPC, as `pulumi up` does, without a program or a stack."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Any

import grpc
from google.protobuf import empty_pb2
from pulumi.runtime.proto import provider_pb2, provider_pb2_grpc

from lab.offline.plugins.sdk.provider import Provider
from lab.offline.plugins.sdk.serve import start
from lab.offline.plugins.sdk.values import decode, encode


class OperationFailed(AssertionError):
    """The plugin answered with an error."""

    def __init__(self, error: grpc.RpcError) -> None:
        super().__init__(error.details())


@dataclass
class Diff:
    """What the plugin says about a change."""

    changed: bool
    replaces: list[str]
    details: dict[str, str]


@dataclass
class Engine:
    """One started plugin."""

    provider: Provider

    def __post_init__(self) -> None:
        self.server, port = start(self.provider, None)
        self.channel = grpc.insecure_channel(f"127.0.0.1:{port}")
        self.stub = provider_pb2_grpc.ResourceProviderStub(self.channel)
        self.call(
            "Configure",
            provider_pb2.ConfigureRequest(acceptSecrets=True, sends_old_inputs=True),
        )

    def close(self) -> None:
        self.channel.close()
        self.server.stop(None)

    def call(self, method: str, request: Any) -> Any:
        try:
            return getattr(self.stub, method)(request, timeout=60)
        except grpc.RpcError as error:
            raise OperationFailed(error) from None

    @staticmethod
    def urn(token: str, name: str = "it") -> str:
        return f"urn:pulumi:dev::proj::busbar:index:Parent${token}::{name}"

    def check(self, token: str, news: Any, olds: Any = None) -> dict[str, Any]:
        response = self.call(
            "Check",
            provider_pb2.CheckRequest(urn=self.urn(token), news=encode(news), olds=encode(olds or {})),
        )
        assert not response.failures, [f"{item.property}: {item.reason}" for item in response.failures]
        return decode(response.inputs)

    def failures(self, token: str, news: Any) -> list[str]:
        request = provider_pb2.CheckRequest(urn=self.urn(token), news=encode(news))
        return [f"{item.property}: {item.reason}" for item in self.call("Check", request).failures]

    def diff(self, token: str, state: Any, old_inputs: Any, news: Any) -> Diff:
        request = provider_pb2.DiffRequest(
            id="id", urn=self.urn(token), olds=encode(state), news=encode(news), old_inputs=encode(old_inputs)
        )
        answer = self.call("Diff", request)
        kinds = provider_pb2.PropertyDiff.Kind
        return Diff(
            changed=answer.changes == provider_pb2.DiffResponse.DIFF_SOME,
            replaces=list(answer.replaces),
            details={path: kinds.Name(item.kind) for path, item in answer.detailedDiff.items()},
        )

    def create(self, token: str, inputs: Any, *, preview: bool = False) -> tuple[str, dict[str, Any]]:
        request = provider_pb2.CreateRequest(urn=self.urn(token), properties=encode(inputs), preview=preview)
        answer = self.call("Create", request)
        return answer.id, decode(answer.properties)

    def update(self, token: str, id: str, state: Any, news: Any, *, preview: bool = False) -> dict[str, Any]:
        request = provider_pb2.UpdateRequest(
            id=id, urn=self.urn(token), olds=encode(state), news=encode(news), preview=preview
        )
        return decode(self.call("Update", request).properties)

    def read(self, token: str, id: str, state: Any, inputs: Any) -> dict[str, Any] | None:
        request = provider_pb2.ReadRequest(
            id=id, urn=self.urn(token), properties=encode(state), inputs=encode(inputs)
        )
        answer = self.call("Read", request)
        return decode(answer.properties) if answer.id else None

    def delete(self, token: str, id: str, state: Any) -> None:
        self.call("Delete", provider_pb2.DeleteRequest(id=id, urn=self.urn(token), properties=encode(state)))

    def up(self, token: str, inputs: Any, **options: Any) -> tuple[str, dict[str, Any], dict[str, Any]]:
        """Check and create: the ID, the checked inputs and the state."""
        checked = self.check(token, inputs)
        id, state = self.create(token, checked, **options)
        return id, checked, state

    def cancel(self, after_seconds: float) -> threading.Timer:
        timer = threading.Timer(after_seconds, lambda: self.stub.Cancel(empty_pb2.Empty()))
        timer.start()
        return timer

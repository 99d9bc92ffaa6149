"""The cluster behind the provider: a client where there is an answer, else the reason why not."""

from __future__ import annotations

import os
from typing import Any

from busbar.kube.kubeconfig import find_context
from busbar.kube.transport import Unreachable
from lab.offline.plugins.kubernetes import kubeconfig, messages
from lab.offline.plugins.kubernetes.apply import Applier
from lab.offline.plugins.kubernetes.client import ApiError, KubeClient, Object
from lab.offline.plugins.kubernetes.kinds import Kind, Kinds, metadata
from lab.offline.plugins.kubernetes.settings import Settings
from lab.offline.plugins.sdk.resource import ProviderError


class Cluster:
    """One configured cluster. `unreachable` holds the reason if it cannot be reached."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.unreachable: str | None = None
        self.parsed: dict[str, Any] | None = None
        self.default_namespace = settings.namespace
        self._client: KubeClient | None = None
        try:
            self._connect()
        except (ValueError, Unreachable, ApiError) as error:
            self.unreachable = str(error)
            self._client = None
        self.kinds = Kinds(self._client)

    def _connect(self) -> None:
        settings = self.settings
        source = settings.kubeconfig or os.environ.get("KUBECONFIG") or os.path.expanduser("~/.kube/config")
        self.parsed = kubeconfig.parse(source)
        context = find_context(self.parsed, settings.context, settings.cluster)
        self.default_namespace = settings.namespace or context.namespace
        self._client = KubeClient(context)
        # As the official plugin does: whether the cluster can be reached is settled once, at the start.
        try:
            self._client.request("GET", "/version")
        except (Unreachable, ApiError) as error:
            raise Unreachable(f"unable to load schema information from the API server: {error}") from error

    @property
    def client(self) -> KubeClient:
        """The client; raises ProviderError where the cluster is unreachable."""
        if self._client is None:
            raise ProviderError(messages.unreachable(self.unreachable))
        return self._client

    @property
    def applier(self) -> Applier:
        """Changes objects; raises ProviderError where the cluster is unreachable."""
        return Applier(self.client, self.kinds, force=self.settings.patch_force, upsert=self.settings.upsert)

    def get(self, obj: Object) -> Object:
        """The live form of `obj`; raises ApiError, NoMatch, Unreachable or ProviderError."""
        found = metadata(obj)
        endpoint = self.kinds.endpoint(Kind.of(obj))
        return self.client.request("GET", endpoint.object(found.get("namespace"), found["name"]))

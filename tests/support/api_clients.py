"""Clients of a running cluster's API."""

from __future__ import annotations

from kubernetes import client, config


def api_client(kubeconfig: str, *, server: str | None = None, retries: bool = True) -> client.ApiClient:
    """A client with the rights of a kubeconfig file.

    `server`: URL to ask instead of the file's. Without `retries` every failed request is an error.
    """
    settings = client.Configuration()
    config.load_kube_config(kubeconfig, client_configuration=settings, persist_config=False)  # type: ignore[no-untyped-call]
    if server:
        settings.host = server
    if not retries:
        settings.retries = False
    return client.ApiClient(settings)

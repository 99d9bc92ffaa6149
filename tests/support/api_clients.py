"""Clients of a running cluster's API."""

from __future__ import annotations

from pathlib import Path

import yaml

from busbar.kube.client import RestApi


class QuickApi(RestApi):
    """A client that gives up early, so that an outage is measured and not waited for."""

    timeout_seconds = 5
    silence_seconds = 10


def rest_api(kubeconfig: str, server: str | None = None) -> QuickApi:
    """A client with the rights of a kubeconfig file. `server`: URL to ask instead of the file's."""
    parsed = yaml.safe_load(Path(kubeconfig).read_text())
    if server:
        for each in parsed["clusters"]:
            each["cluster"]["server"] = server
    return QuickApi(yaml.safe_dump(parsed))

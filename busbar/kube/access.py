"""Where a command finds the cluster: a secret environment variable from Pulumi, or KUBECONFIG by hand."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from busbar.kube.client import RestApi

# The text itself, not a path: Pulumi hands it over as a secret, and it never touches the disk or an argv.
KUBECONFIG_TEXT = "BUSBAR_KUBECONFIG"


class NoAccess(Exception):
    """There is no usable kubeconfig; the text says where it was looked for."""


def connect(environment: Mapping[str, str] | None = None) -> RestApi:
    """A client for the cluster that the environment names.

    `BUSBAR_KUBECONFIG` holds the text of a kubeconfig; else `KUBECONFIG` names a file, as for kubectl.
    Raises NoAccess.
    """
    environment = os.environ if environment is None else environment
    text, source = environment.get(KUBECONFIG_TEXT), KUBECONFIG_TEXT
    if not text:
        path = environment.get("KUBECONFIG")
        if not path:
            raise NoAccess(
                "no kubeconfig: set KUBECONFIG to its path (`pulumi stack output --show-secrets kubeconfig` "
                f"writes it), or {KUBECONFIG_TEXT} to its text"
            )
        source = f"KUBECONFIG={path}"
        try:
            text = Path(path).expanduser().read_text()
        except OSError as error:
            raise NoAccess(f"{source}: {error.strerror or error}") from error
    try:
        return RestApi(text)
    except ValueError as error:
        raise NoAccess(f"{source}: {error}") from error

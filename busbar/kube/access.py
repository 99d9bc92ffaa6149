"""Where a command finds the cluster: BUSBAR_KUBECONFIG (a secret variable set by Pulumi), or KUBECONFIG."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from busbar.exits import Misuse
from busbar.kube.client import RestApi

# The text itself, not a path: Pulumi passes it as a secret, never on the disk or in an argv.
KUBECONFIG_TEXT = "BUSBAR_KUBECONFIG"


class KubeconfigError(Misuse):
    """There is no usable kubeconfig; the text says where busbar looked."""


def connect(environment: Mapping[str, str] | None = None, context: str | None = None) -> RestApi:
    """A client for the cluster that the environment names (default: os.environ).

    `BUSBAR_KUBECONFIG` holds the text of a kubeconfig; else `KUBECONFIG` names a file, as for kubectl.
    `context`: by default its current one. Raises KubeconfigError.
    """
    environment = os.environ if environment is None else environment
    text, source = environment.get(KUBECONFIG_TEXT), KUBECONFIG_TEXT
    if not text:
        path = environment.get("KUBECONFIG")
        if not path:
            raise KubeconfigError(
                f"no kubeconfig: neither {KUBECONFIG_TEXT} nor KUBECONFIG is set. Fix: set KUBECONFIG to the "
                "path of a file with the output of `pulumi stack output --show-secrets kubeconfig`"
            )
        source = f"kubeconfig {path}"
        try:
            text = Path(path).expanduser().read_text()
        except OSError as error:
            raise KubeconfigError(
                f"{source}: {error.strerror or error}. Fix: KUBECONFIG, or --kubeconfig, must name one file"
            ) from error
    try:
        return RestApi(text, context)
    except ValueError as error:
        raise KubeconfigError(f"{source}: {error}") from error

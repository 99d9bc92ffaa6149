"""What a host's script tells when it is done: one JSON line, the last of its stdout."""

from __future__ import annotations

import json
from dataclasses import dataclass


@dataclass(frozen=True)
class ServerFacts:
    """A running K3s server. `ca_sha256` is what a secure join token pins, in hex; `ca_pem` the CA itself."""

    version: str
    ca_sha256: str
    ca_pem: str


def server_facts(stdout: str) -> ServerFacts:
    """Read the facts of host/k3s-server.sh. Raises ValueError, with what came instead if there are none."""
    try:
        found = json.loads(stdout)
        return ServerFacts(str(found["version"]), str(found["ca_sha256"]), str(found["ca_pem"]))
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(
            f"host/k3s-server.sh ended well but told no facts ({error!r}): {stdout[:200]!r}"
        ) from None

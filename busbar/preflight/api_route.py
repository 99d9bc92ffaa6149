"""Checks whether this machine will reach the Kubernetes API.

SSH to the load balancers says nothing about port 6443, and a bastion only forwards SSH: operators, waits and
the collection of logs connect to the load balancer directly, or through `ssh.bastion.api_proxy_url`.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Collection
from urllib.parse import urlsplit

from busbar.hosts.finding import Finding, Level
from busbar.hosts.inventory import API_PORT
from busbar.preflight.spec import Spec

ROUTE_SECONDS = 10
THIS_MACHINE = "this machine"
_FIX = (
    f"open TCP port {API_PORT} from this machine to the load balancers, or to api_endpoint (firewalls, "
    "security groups)"
)
_BASTION_FIX = (
    "the bastion carries SSH only: set ssh.bastion.api_proxy_url to an HTTP proxy in that network (CONNECT "
    f"to port {API_PORT}), route this machine there, or run busbar on the bastion"
)
_DEFAULT_PORTS = {"http": 80, "https": 443}


async def check_api_route(spec: Spec, answered: Collection[str], *, with_k3s: bool = False) -> list[Finding]:
    """Errors if the load balancers that `answered` by SSH, or the proxy in front of them, cannot be reached.

    Before the bring-up nothing listens there, and a refused connection shows that there is a route. An
    endpoint of the site may get its address from the servers (kube-vip): before one runs K3s it is a warning.
    """
    bastion = spec.login.bastion
    if bastion is not None and bastion.api_proxy_url is not None:
        proxy = urlsplit(bastion.api_proxy_url)
        problem = await _dial(proxy.hostname or "", proxy.port or _DEFAULT_PORTS[proxy.scheme], refused=True)
        if problem is None:
            return []
        what = f"the proxy {bastion.api_proxy_url} cannot be reached: {problem}"
        return [Finding(THIS_MACHINE, "error", what, "start it, or correct ssh.bastion.api_proxy_url")]
    ways = {host.name: host.address for host in spec.hosts if host.role == "lb" and host.name in answered}
    if spec.api_endpoint and answered:
        ways = {"api_endpoint": spec.api_endpoint}
    level: Level = "warning" if spec.api_endpoint and not with_k3s else "error"
    found = []
    for name, address in ways.items():
        if problem := await _dial(address, API_PORT, refused=False):
            what = f"the Kubernetes API at {address}:{API_PORT} ({name}) cannot be reached: {problem}"
            found.append(Finding(THIS_MACHINE, level, what, _FIX if bastion is None else _BASTION_FIX))
    return found


async def _dial(host: str, port: int, *, refused: bool) -> str | None:
    """The reason why a TCP connection fails; None if it works. `refused`: a refused one is a failure too."""
    try:
        async with asyncio.timeout(ROUTE_SECONDS):
            _, writer = await asyncio.open_connection(host, port)
        writer.close()
    except TimeoutError:
        return f"timed out after {ROUTE_SECONDS} s"
    except ConnectionRefusedError:
        return "connection refused" if refused else None
    except OSError as error:
        return os.strerror(error.errno) if error.errno and error.errno > 0 else str(error)
    return None

"""One K3s server: its installation and its removal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pulumi
from pulumi_command import local, remote

from busbar.components.engine.host_command import HostArgs, create_host_command
from busbar.components.engine.removal import create_host_removal
from busbar.hosts.host import Host

SCRIPT = "k3s-server"
REMOVAL_DEADLINE_SECONDS = 600


@dataclass(frozen=True, kw_only=True)
class ServerArgs:
    """One server. `values`: what all servers install. `payload`: its config.yaml and registries.yaml; for
    server 1 of several also `peer_ca`, the hash of the CA of the cluster that the others run.
    """

    on: HostArgs
    servers: Sequence[Host]
    values: Mapping[str, str]
    timeout_seconds: int
    payload: Mapping[str, pulumi.Input[str]]


@dataclass(frozen=True)
class Server:
    """The Commands of a server: `removal` acts when it is deleted, `installed` depends on it."""

    removal: local.Command
    installed: remote.Command


def create_server(args: ServerArgs, opts: pulumi.ResourceOptions) -> Server:
    """Register the removal and the installation; the installation has the name of the host's owner."""
    servers, host = args.servers, args.on.host
    peers = " ".join(peer.address for peer in servers if peer is not host)
    removal = create_host_removal(args.on, SCRIPT, REMOVAL_DEADLINE_SECONDS, {"PEERS": peers}, opts)
    values = {
        "NODE_NAME": host.name,
        "NODE_ADDRESS": host.address,
        **args.values,
        # Server 1 begins the cluster, unless another server has one already (server 1 was replaced);
        # the others join server 1 directly, never through the load balancer (k3s-io/k3s#9661).
        "FIRST": "true" if host is servers[0] else "false",
        "PEERS": peers,
    }
    after = pulumi.ResourceOptions.merge(opts, pulumi.ResourceOptions(depends_on=[removal]))
    return Server(
        removal,
        create_host_command(
            args.on.owner, args.on, SCRIPT, args.timeout_seconds, values, after, payload=args.payload
        ),
    )

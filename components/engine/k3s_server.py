"""One K3s server: its installation and its removal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pulumi
from pulumi_command import local, remote

from busbar.hosts.host import Host
from components.engine.host_command import HostCommandArgs, create_host_command
from components.engine.removal import HostRemovalArgs, create_host_removal
from components.engine.ssh import SshLogin

REMOVAL_DEADLINE_SECONDS = 600


@dataclass(frozen=True, kw_only=True)
class ServerArgs:
    """`values`: what all servers install. `config`: its config.yaml. `registries`: registries.yaml.

    `peer_ca`: of server 1 beside others, the hash of the CA of a cluster that they run.
    """

    servers: Sequence[Host]
    load_balancers: Sequence[Host]
    login: SshLogin
    host: Host
    install_id: pulumi.Input[str]
    values: Mapping[str, str]
    timeout_seconds: int
    config: pulumi.Input[str]
    registries: pulumi.Input[str]
    peer_ca: pulumi.Input[str] | None = None


@dataclass(frozen=True)
class Server:
    """The Commands of a server: `removal` acts when it is deleted, `installed` depends on it."""

    removal: local.Command
    installed: remote.Command


def create_server(name: str, args: ServerArgs, opts: pulumi.ResourceOptions) -> Server:
    """Register `<name>-removal` and `<name>`."""
    servers, host = args.servers, args.host
    peers = " ".join(peer.address for peer in servers if peer is not host)
    removal = create_host_removal(
        f"{name}-removal",
        HostRemovalArgs(
            login=args.login,
            host=host,
            fronts=[*args.load_balancers, *servers],
            script="k3s-server",
            owner=name,
            install_id=args.install_id,
            timeout_seconds=REMOVAL_DEADLINE_SECONDS,
            values={"PEERS": peers},
        ),
        opts,
    )
    step = HostCommandArgs(
        login=args.login,
        host=host,
        script="k3s-server",
        timeout_seconds=args.timeout_seconds,
        values={
            "NODE_NAME": host.name,
            "NODE_ADDRESS": host.address,
            **args.values,
            # Server 1 begins the cluster, unless another server has one already (server 1 was replaced);
            # the others join server 1 directly, never through the load balancer (k3s-io/k3s#9661).
            "FIRST": "true" if host is servers[0] else "false",
            "PEERS": peers,
        },
        payload={
            "config": args.config,
            "registries": args.registries,
            **({} if args.peer_ca is None else {"peer_ca": args.peer_ca}),
        },
        install_id=args.install_id,
    )
    after = pulumi.ResourceOptions.merge(opts, pulumi.ResourceOptions(depends_on=[removal]))
    return Server(removal, create_host_command(name, step, after))

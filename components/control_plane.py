"""The K3s servers with embedded etcd, brought up one at a time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pulumi
from pulumi_command import local, remote

from busbar import names
from busbar.components.engine.hosts import (
    HostArgs,
    SshLogin,
    create_host_command,
    create_host_removal,
    create_teardown,
)
from busbar.components.engine.join_tokens import JoinTokens
from busbar.components.engine.stack import StackConfig
from busbar.components.preflight import Preflight
from busbar.config import K3s, VirtualIp
from busbar.hosts import haproxy, k3s, proxy
from busbar.hosts.inventory import Host, api_url
from busbar.hosts.scripts import known_ca, kubeconfig_text, server_facts, with_server

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


# Time limit in seconds for the downloads, and then up to 7 minutes until the Node is Ready.
SERVER_DEADLINE_SECONDS = 1200
# More time with keepalived: an apt that already runs, the package, and the address.
KEEPALIVED_SECONDS = 900
# If its certificates end soon, K3s is restarted first, after a step that still runs there.
KUBECONFIG_DEADLINE_SECONDS = 960
# Each replaced machine takes up to 5 minutes.
NODES_DEADLINE_SECONDS = 1200


@dataclass(frozen=True, kw_only=True)
class K3sControlPlaneArgs:
    """The hosts and their software. `cluster`: its name in the kubeconfig.

    `api_address`: address of the load balancer, the virtual IP, or an endpoint of the site.
    `workers`: names of the workers that join.
    `machines`: host -> identity of its machine (`Preflight.machines`).
    `project`: folder that relative paths in `k3s` start from.
    `registry_credentials`: secret object registry -> auth (busbar:registryCredentials). `s3_access_key` and
    `s3_secret_key`: secrets, needed where `k3s.snapshots.s3` is set.
    `virtual_ip`: the address, if the servers share it.
    `environment`: the proxy of the hosts (busbar.hosts.proxy).
    `server_token`, `agent_token`: secrets to join with, letters and digits; `install_id`: as in `JoinTokens`.
    """

    cluster: str
    servers: Sequence[Host]
    load_balancers: Sequence[Host]
    api_address: str
    workers: Sequence[str]
    login: SshLogin
    server_token: pulumi.Input[str]
    agent_token: pulumi.Input[str]
    install_id: pulumi.Input[str]
    machines: pulumi.Input[Mapping[str, str]]
    k3s: K3s = field(default_factory=K3s)
    project: Path = Path()
    virtual_ip: VirtualIp | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    registry_credentials: pulumi.Input[dict[str, Any]] | None = None
    s3_access_key: pulumi.Input[str] | None = None
    s3_secret_key: pulumi.Input[str] | None = None

    @classmethod
    def of(cls, config: StackConfig, preflight: Preflight, tokens: JoinTokens) -> K3sControlPlaneArgs:
        """The arguments for the servers of a configuration, which `preflight` has checked."""
        inventory = config.inventory
        return cls(
            cluster=config.cluster.name,
            servers=inventory.servers,
            load_balancers=inventory.load_balancers,
            api_address=inventory.api_address,
            workers=[worker.name for worker in inventory.workers],
            login=config.login,
            server_token=tokens.server.current,
            agent_token=tokens.agent.current,
            install_id=tokens.install_id,
            machines=preflight.machines,
            k3s=config.cluster.k3s,
            project=config.project,
            virtual_ip=None if inventory.load_balancers else config.cluster.hosts.virtual_ip,
            environment=proxy.environment(inventory, of_servers=True),
            registry_credentials=config.registry_credentials,
            s3_access_key=config.secrets.get("s3AccessKey"),
            s3_secret_key=config.secrets.get("s3SecretKey"),
        )


class K3sControlPlane(pulumi.ComponentResource):
    """Makes two Commands per server, and one that reads the kubeconfig.

    The servers come up in their order: each joins server 1 and is a voter in etcd before the next one begins.
    A server's `-removal` acts when it is deleted; `-teardown` is deleted only by `destroy`, and first.
    `-nodes`, on server 1, prepares an existing cluster for replaced machines, and tells it which servers are
    configured; `-rejoin`, on server 2, prepares it for a replaced server 1, and tells that one the CA
    (host/k3s-nodes.sh).
    """

    kubeconfig: pulumi.Output[str]
    """Secret; its server is at `api_address`."""
    ca_pem: pulumi.Output[str]
    """The CA that signs the certificate of the Kubernetes API."""
    agent_token: pulumi.Output[str]
    """Secret: the token with which workers join; it pins the CA."""
    install_id: pulumi.Output[str]
    """Identifies the cluster on its hosts, as in `JoinTokens`."""
    registries_yaml: pulumi.Output[str]
    """registries.yaml for servers and workers; secret where it carries logins."""
    k3s_version: pulumi.Output[str]
    """The release as found on server 1."""
    prepared: remote.Command
    """`-nodes`, after server 1: the cluster is prepared for its hosts."""
    steps: list[remote.Command]
    """All Commands that change a host or the cluster: `-rejoin`, `-nodes`, and one per server in order."""
    servers: dict[str, remote.Command]
    """The Commands of the servers by host, in the order in which they run."""
    majority: list[remote.Command]
    """The Commands of the first servers that together are a majority. A server that joins is a learner of
    etcd until it has all data, and the majority continues without it."""
    foundation: local.Command
    """The removal of server 1. Resources on the cluster are `deleted_with` it."""

    def __init__(
        self, name: str, args: K3sControlPlaneArgs, opts: pulumi.ResourceOptions | None = None
    ) -> None:
        super().__init__("busbar:index:K3sControlPlane", name, None, opts)
        self._prefix = name
        self._args = args
        self.registries_yaml = self._render_registries()
        self._server_token = pulumi.Output.secret(args.server_token)
        self._agent_token = pulumi.Output.secret(args.agent_token)
        self.install_id = pulumi.Output.from_input(args.install_id)
        first, *others = args.servers
        rejoin = [self._prepare_nodes(f"{name}-rejoin", others[0], of=[first.name])] if others else []
        peer_ca = rejoin[0].stdout.apply(known_ca) if rejoin else None
        begun = self._install(first, rejoin, peer_ca)
        self.foundation, self._first = begun.removal, begun.installed
        self._facts = self._first.stdout.apply(server_facts)
        self.prepared = self._prepare_nodes(
            f"{name}-nodes",
            first,
            of=[*(host.name for host in others), *args.workers],
            after=[self._first],
        )
        self.servers = {first.name: self._first}
        for host in others:
            before = [self.prepared, *self.servers.values()]
            self.servers[host.name] = self._install(host, before).installed
        nodes = [*self.servers.values()]
        self.steps = [*rejoin, self.prepared, *nodes]
        self.majority = nodes[: len(nodes) // 2 + 1]
        create_teardown(
            f"{name}-teardown",
            args.servers,
            args.login,
            pulumi.ResourceOptions(parent=self, depends_on=nodes),
        )

        self.ca_pem = self._facts.apply(lambda found: found.ca_pem)
        self.k3s_version = self._facts.apply(lambda found: found.version)
        self.agent_token = pulumi.Output.secret(
            pulumi.Output.all(self._facts, self._agent_token).apply(
                lambda known: k3s.secure_token("node", known[1], ca_sha256=known[0].ca_sha256)
            )
        )
        self.kubeconfig = self._read_kubeconfig(f"{name}-kubeconfig")
        self.register_outputs(
            {"kubeconfig": self.kubeconfig, "ca_pem": self.ca_pem, "k3s_version": self.k3s_version}
        )

    def _prepare_nodes(
        self,
        name: str,
        on: Host,
        *,
        of: Sequence[str],
        after: Sequence[remote.Command] = (),
    ) -> remote.Command:
        machines = pulumi.Output.from_input(self._args.machines).apply(
            lambda found: "\n".join(f"{host} {found.get(host, '')}" for host in of)
        )
        return create_host_command(
            name,
            HostArgs(login=self._args.login, host=on),
            "k3s-nodes",
            NODES_DEADLINE_SECONDS,
            {"NODE_NAME": on.name, **({"AFTER": "true"} if after else {})},
            pulumi.ResourceOptions(parent=self, depends_on=after),
            payload={"machines": machines, "servers": "\n".join(host.name for host in self._args.servers)},
        )

    def _install(
        self,
        host: Host,
        after: Sequence[pulumi.Resource],
        peer_ca: pulumi.Input[str] | None = None,
    ) -> Server:
        args, settings, shared = self._args, self._args.k3s, self._args.virtual_ip
        optional = {
            "jwt": k3s.authenticators(settings),
            "keepalived_conf": haproxy.keepalived_config(args.servers, shared, host),
        }
        seconds = SERVER_DEADLINE_SECONDS + (KEEPALIVED_SECONDS if shared else 0)
        return create_server(
            ServerArgs(
                on=HostArgs(
                    login=args.login,
                    host=host,
                    owner=names.on_host(self._prefix, host.name),
                    install_id=self.install_id,
                    fronts=[*args.load_balancers, *args.servers],
                    environment=args.environment,
                ),
                servers=args.servers,
                values={
                    **k3s.download_values(settings, "server", args.project),
                    **k3s.rotation_values(settings),
                    **({"VIRTUAL_IP": shared.address} if shared else {}),
                },
                timeout_seconds=k3s.install_seconds(settings, "server", seconds),
                payload={
                    "config": self._render_config(host),
                    "registries": self.registries_yaml,
                    **proxy.payload(args.environment),
                    **({} if peer_ca is None else {"peer_ca": peer_ca}),
                    **{key: text for key, text in optional.items() if text},
                },
            ),
            pulumi.ResourceOptions(parent=self, depends_on=after),
        )

    def _read_kubeconfig(self, name: str) -> pulumi.Output[str]:
        """The admin kubeconfig, secret, addressed to `api_address`."""
        args, bastion = self._args, self._args.login.bastion
        command = create_host_command(
            name,
            HostArgs(login=args.login, host=args.servers[0]),
            "kubeconfig",
            KUBECONFIG_DEADLINE_SECONDS,
            # A number that changes every 90 days and with rotated certificates: then it is read again.
            {
                "NODE_NAME": args.servers[0].name,
                "RENEWAL": str(k3s.kubeconfig_renewal(datetime.now(UTC).date())),
                **k3s.rotation_values(args.k3s, "certificates"),
            },
            pulumi.ResourceOptions(
                parent=self, depends_on=[self._first], additional_secret_outputs=["stdout"]
            ),
            logging=remote.Logging.NONE,
        )
        return pulumi.Output.secret(
            command.stdout.apply(
                lambda text: with_server(
                    kubeconfig_text(text),
                    server=api_url(args.api_address),
                    name=args.cluster,
                    proxy_url=bastion.api_proxy_url if bastion else None,
                )
            )
        )

    def _render_registries(self) -> pulumi.Output[str]:
        settings, credentials = self._args.k3s, self._args.registry_credentials
        if credentials is None:
            return pulumi.Output.from_input(k3s.registries(settings))
        return pulumi.Output.secret(credentials).apply(lambda known: k3s.registries(settings, known))

    def _render_config(self, host: Host) -> pulumi.Output[str]:
        args = self._args
        s3 = [args.s3_access_key, args.s3_secret_key]
        passwords = pulumi.Output.all(self._token_of(host), self._agent_token, *s3)
        return passwords.apply(
            lambda known: k3s.server_config(
                args.k3s,
                node_name=host.name,
                tls_sans=k3s.tls_sans(args.k3s, host, args.api_address, args.load_balancers),
                token=known[0],
                agent_token=known[1],
                s3_keys=(known[2], known[3]) if known[2] else None,
            )
        )

    def _token_of(self, host: Host) -> pulumi.Output[str]:
        """The token of a server. Server 1 makes the CA; others pin it, so that only it gets their token."""
        password = self._server_token
        if host is self._args.servers[0]:
            return password
        return pulumi.Output.all(self._facts, password).apply(
            lambda known: k3s.secure_token("server", known[1], ca_sha256=known[0].ca_sha256)
        )

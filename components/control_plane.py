"""The K3s servers with embedded etcd, brought up one at a time."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

import pulumi
from pulumi_command import local, remote

from busbar import names
from busbar.components.engine.hosts import (
    HostArgs,
    create_host_command,
    create_host_removal,
    target,
    with_id,
)
from busbar.components.engine.join_tokens import JoinTokens
from busbar.components.engine.local_command import busbar_command, create_hosts_command
from busbar.components.engine.stack import StackConfig
from busbar.hosts import haproxy, k3s, proxy
from busbar.hosts.inventory import Host
from busbar.hosts.scripts import script_result, with_server
from busbar.preflight import unchangeable

SCRIPT = "k3s-server"
REMOVAL_DEADLINE_SECONDS = 600
# Time limit in seconds for the downloads, and then up to 7 minutes until the Node is Ready.
SERVER_DEADLINE_SECONDS = 1200
# More time with keepalived: an apt that already runs, the package, and the address.
KEEPALIVED_SECONDS = 900
# If its certificates end soon, K3s is restarted first, after a step that still runs there.
KUBECONFIG_DEADLINE_SECONDS = 960
# Each replaced machine takes up to 5 minutes.
NODES_DEADLINE_SECONDS = 1200


class K3sControlPlane(pulumi.ComponentResource):
    """Makes two Commands per server, and one that reads the kubeconfig.

    The servers come up in their order: each joins server 1 and is a voter in etcd before the next one begins.
    A server's `-removal` acts when it is deleted; `-teardown` is deleted only by `destroy`, and first.
    `-nodes`, on server 1, prepares an existing cluster for replaced machines, and tells it which servers are
    configured; `-rejoin`, on server 2, prepares it for a replaced server 1, and tells that one the CA
    (host/k3s-nodes.sh). `machines`: host -> identity of its machine (Preflight.machines).
    """

    kubeconfig: pulumi.Output[str]
    """Secret; its server is the endpoint of the API."""
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
        self,
        name: str,
        opts: pulumi.ResourceOptions | None = None,
        *,
        config: StackConfig,
        tokens: JoinTokens,
        machines: pulumi.Input[Mapping[str, str]],
    ) -> None:
        super().__init__("busbar:index:K3sControlPlane", name, None, opts)
        self._prefix, self._config, self._machines = name, config, machines
        inventory = config.inventory
        self._servers = inventory.servers
        settings, credentials = config.cluster.k3s, config.registry_credentials
        self.registries_yaml = pulumi.Output.from_input(credentials).apply(
            lambda known: k3s.registries(settings, known or {})
        )
        self._server_token = tokens.server
        self._agent_token = tokens.agent
        self.install_id = tokens.install_id
        first, *others = self._servers
        rejoin = [self._prepare_nodes(f"{name}-rejoin", others[0], of=[first])] if others else []
        peer_ca = rejoin[0].stdout.apply(lambda text: script_result(text)["ca_sha256"]) if rejoin else None
        self.foundation, self._first = self._install(first, rejoin, peer_ca)
        self._facts = self._first.stdout.apply(script_result)
        joining = [*others, *inventory.workers]
        self.prepared = self._prepare_nodes(f"{name}-nodes", first, of=joining, after=[self._first])
        self.servers = {first.name: self._first}
        for host in others:
            _, self.servers[host.name] = self._install(host, [self.prepared, *self.servers.values()])
        nodes = [*self.servers.values()]
        self.steps = [*rejoin, self.prepared, *nodes]
        self.majority = nodes[: len(nodes) // 2 + 1]
        # `destroy` begins with it: no server has to leave etcd. An update that makes it again revokes it.
        create_hosts_command(
            f"{name}-teardown",
            "remove cluster",
            with_id({"servers": [target(server) for server in self._servers]}, config.login, self.install_id),
            pulumi.ResourceOptions(parent=self, depends_on=nodes),
            at_removal=True,
            create=busbar_command("remove", "keep"),
        )

        self.ca_pem = self._facts["ca_pem"]
        self.k3s_version = self._facts["version"]
        self.agent_token = pulumi.Output.secret(
            pulumi.Output.all(self._facts, self._agent_token).apply(
                lambda known: k3s.secure_token("node", known[1], ca_sha256=known[0]["ca_sha256"])
            )
        )
        self.kubeconfig = self._read_kubeconfig(f"{name}-kubeconfig")
        self.register_outputs(
            {"kubeconfig": self.kubeconfig, "ca_pem": self.ca_pem, "k3s_version": self.k3s_version}
        )

    def _prepare_nodes(
        self, name: str, on: Host, *, of: Sequence[Host], after: Sequence[remote.Command] = ()
    ) -> remote.Command:
        machines = pulumi.Output.from_input(self._machines).apply(
            lambda found: "\n".join(f"{host.name} {found.get(host.name, '')}" for host in of)
        )
        return create_host_command(
            name,
            HostArgs(login=self._config.login, host=on, install_id=self.install_id),
            "k3s-nodes",
            NODES_DEADLINE_SECONDS,
            {"NODE_NAME": on.name, **({"AFTER": "true"} if after else {})},
            pulumi.ResourceOptions(parent=self, depends_on=after),
            payload={"machines": machines, "servers": "\n".join(host.name for host in self._servers)},
        )

    def _install(
        self, host: Host, after: Sequence[pulumi.Resource], peer_ca: pulumi.Input[str] | None = None
    ) -> tuple[local.Command, remote.Command]:
        """Register a server's removal and installation. `peer_ca`: hash of the CA that server 1 must have."""
        config, settings = self._config, self._config.cluster.k3s
        shared = None if config.inventory.load_balancers else config.cluster.hosts.virtual_ip
        on = config.host_args(host, names.on_host(self._prefix, host.name), self.install_id)
        peers = " ".join(peer.address for peer in self._servers if peer is not host)
        own = pulumi.ResourceOptions(parent=self, depends_on=after)
        removal = create_host_removal(on, SCRIPT, REMOVAL_DEADLINE_SECONDS, {"PEERS": peers}, own)
        values = {
            "NODE_NAME": host.name,
            "NODE_ADDRESS": host.address,
            "API_ADDRESS": config.inventory.api_address,
            **k3s.download_values(settings, "server", config.project),
            **k3s.rotation_values(settings),
            **({"VIRTUAL_IP": shared.address} if shared else {}),
            # Server 1 begins the cluster, unless another server has one already (server 1 was replaced);
            # the others join server 1 directly, never through the load balancer (k3s-io/k3s#9661).
            "FIRST": "true" if host is self._servers[0] else "false",
            "PEERS": peers,
        }
        optional = {
            "jwt": k3s.authenticators(settings),
            "keepalived_conf": haproxy.keepalived_config(self._servers, shared, host),
            "peer_ca": peer_ca,
        }
        seconds = SERVER_DEADLINE_SECONDS + (KEEPALIVED_SECONDS if shared else 0)
        installed = create_host_command(
            on.owner,
            on,
            SCRIPT,
            k3s.install_seconds(settings, "server", seconds),
            values,
            pulumi.ResourceOptions(parent=self, depends_on=[*after, removal]),
            payload={
                "config": self._render_config(host),
                "registries": self.registries_yaml,
                "first_values": json.dumps(unchangeable.values(settings)),
                **proxy.payload(on.environment),
                **{key: text for key, text in optional.items() if text},
            },
        )
        return removal, installed

    def _read_kubeconfig(self, name: str) -> pulumi.Output[str]:
        """The admin kubeconfig, secret, addressed to the endpoint of the API."""
        first, bastion = self._servers[0], self._config.login.bastion
        command = create_host_command(
            name,
            HostArgs(login=self._config.login, host=first),
            "kubeconfig",
            KUBECONFIG_DEADLINE_SECONDS,
            # A number that changes every 90 days and with rotated certificates: then it is read again.
            {
                "NODE_NAME": first.name,
                "RENEWAL": str(k3s.kubeconfig_renewal(datetime.now(UTC).date())),
                **k3s.rotation_values(self._config.cluster.k3s, "certificates"),
            },
            pulumi.ResourceOptions(
                parent=self, depends_on=[self._first], additional_secret_outputs=["stdout"]
            ),
            logging=remote.Logging.NONE,
        )
        return pulumi.Output.secret(
            command.stdout.apply(
                lambda text: with_server(
                    script_result(text)["kubeconfig"],
                    server=self._config.inventory.api_endpoint,
                    name=self._config.cluster.name,
                    proxy_url=bastion.api_proxy_url if bastion else None,
                )
            )
        )

    def _render_config(self, host: Host) -> pulumi.Output[str]:
        settings, inventory = self._config.cluster.k3s, self._config.inventory
        s3 = [self._config.secrets.get(key) for key in ("s3AccessKey", "s3SecretKey")]
        sans = k3s.tls_sans(settings, host, inventory.api_address, inventory.load_balancers)
        return pulumi.Output.all(self._token_of(host), self._agent_token, *s3).apply(
            lambda known: k3s.server_config(
                settings,
                node_name=host.name,
                tls_sans=sans,
                token=known[0],
                agent_token=known[1],
                s3_keys=(known[2], known[3]) if known[2] else None,
            )
        )

    def _token_of(self, host: Host) -> pulumi.Output[str]:
        """The token of a server. Server 1 makes the CA; others pin it, so that only it gets their token."""
        if host is self._servers[0]:
            return self._server_token
        return pulumi.Output.all(self._facts, self._server_token).apply(
            lambda known: k3s.secure_token("server", known[1], ca_sha256=known[0]["ca_sha256"])
        )

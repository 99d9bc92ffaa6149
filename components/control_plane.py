"""The K3s servers with embedded etcd, brought up one at a time."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pulumi
import pulumi_random as random
from pulumi_command import remote

from busbar.hosts import k3s
from busbar.hosts.downloads import install_seconds, k3s_values
from busbar.hosts.host import Host
from busbar.hosts.inventory import Inventory
from busbar.hosts.server_output import kubeconfig_text, server_facts, with_server
from components.engine.host_command import HostCommandArgs, create_host_command
from components.engine.removal import HostRemovalArgs, create_host_removal, create_teardown
from components.engine.ssh import SshLogin

# Downloads, and then up to 7 minutes until the Node is Ready.
SERVER_DEADLINE_SECONDS = 1200
REMOVAL_DEADLINE_SECONDS = 600
# Near the end of its certificates K3s is restarted first, after a step that still runs there.
KUBECONFIG_DEADLINE_SECONDS = 960
# For each replaced machine up to 5 minutes.
NODES_DEADLINE_SECONDS = 1200
# For ten workers that leave up to 6 minutes, of which 5 are their drains.
STALE_NODES_DEADLINE_SECONDS = 4 * 3600
TOKEN_LENGTH = 48
# Everything that would make a new token if it changed in a later version, or in a provider's defaults.
TOKEN_ARGUMENTS = (
    *("length", "keepers", "overrideSpecial", "lower", "upper", "number", "numeric", "special"),
    *("minLower", "minUpper", "minNumeric", "minSpecial"),
)


@dataclass(frozen=True, kw_only=True)
class K3sControlPlaneArgs:
    """The hosts and what runs on them.

    `registry_credentials`: secret object registry -> auth (busbar:registryCredentials). `s3_access_key` and
    `s3_secret_key`: secrets, needed where `k3s.snapshots.s3` is set. `project`: folder that relative paths of
    the configuration start from. `machines`: host -> digest of its machine-id (`Preflight.machines`).
    """

    inventory: Inventory
    login: SshLogin
    project: Path
    machines: pulumi.Input[Mapping[str, str]]
    with_k3s: pulumi.Input[Collection[str]]
    registry_credentials: pulumi.Input[dict[str, Any]] | None = None
    s3_access_key: pulumi.Input[str] | None = None
    s3_secret_key: pulumi.Input[str] | None = None


class K3sControlPlane(pulumi.ComponentResource):
    """Makes two RandomPasswords (the join tokens) and one per rotation of them, two Commands per server, one
    that reads the kubeconfig.

    The servers come up in their order: each joins server 1 and is a voter in etcd before the next one begins.
    A server's `-removal` acts when it is deleted; `-teardown` is deleted by `destroy` only, and first.
    `-nodes`, on server 1, prepares a cluster that exists for machines that were replaced, sets changed
    taints, and tells the cluster which servers are configured; `-rejoin`, on server 2, does the first for
    server 1 (host/k3s-nodes.sh). `-stale-nodes`
    (`remove_stale_nodes`) runs after the workers.
    """

    kubeconfig: pulumi.Output[str]
    """Secret; its server is the load balancer (or the virtual IP)."""
    ca_pem: pulumi.Output[str]
    """The CA that the Kubernetes API's certificate is signed with."""
    agent_token: pulumi.Output[str]
    """Secret: the token with which workers join; it pins the CA."""
    install_id: pulumi.Output[str]
    """Identifies this cluster on its hosts; not secret, derived from the first server token, and so the same
    after rotations."""
    registries_yaml: pulumi.Output[str]
    """registries.yaml for servers and workers; secret where it carries logins."""
    k3s_version: pulumi.Output[str]
    """The release as found on server 1."""
    nodes: list[remote.Command]
    """One Command per server, in order."""
    preparations: list[remote.Command]
    """The Commands that prepare the cluster for its hosts: `-rejoin` and `-nodes`."""
    ahead_of_workers: pulumi.Output[list[pulumi.Resource]]
    """What workers wait for: server 1, and in a cluster that exists `-nodes` and the servers that have K3s
    already, so that an upgrade changes workers last. In a new cluster workers join while the other servers
    do."""
    ahead_of_charts: pulumi.Output[list[pulumi.Resource]]
    """What Helm waits for: the same, and a majority of the servers. Helm does not repeat a request that ends
    with a server which restarts. A server that joins is a learner of etcd until it has all data, and the
    majority goes on without it."""
    foundation: pulumi.Resource
    """The removal of server 1. What lives on the cluster is `deleted_with` it."""

    def __init__(
        self, name: str, args: K3sControlPlaneArgs, opts: pulumi.ResourceOptions | None = None
    ) -> None:
        super().__init__("busbar:index:K3sControlPlane", name, None, opts)
        self._prefix = name
        self._args = args
        self.registries_yaml = self._render_registries()
        rotate = args.inventory.cluster.k3s.rotate
        first_password, self._server_password = self._create_passwords(
            f"{name}-server-token", rotate.server_token
        )
        _, self._agent_password = self._create_passwords(f"{name}-agent-token", rotate.agent_token)
        self.install_id = pulumi.Output.unsecret(first_password.result.apply(k3s.install_id))
        (first, *others), workers = args.inventory.servers, args.inventory.workers
        ahead: list[remote.Command] = []
        if others:
            ahead = [self._prepare_nodes(f"{name}-rejoin", others[0], of=[first])]
        self.foundation, begun = self._install(
            f"{name}-{first.name}", first, pulumi.ResourceOptions(depends_on=ahead)
        )
        self.nodes = [begun]
        self._facts = begun.stdout.apply(server_facts)
        prepared = self._prepare_nodes(
            f"{name}-nodes",
            first,
            of=[*others, *workers],
            workers=workers,
            opts=pulumi.ResourceOptions(depends_on=[begun]),
        )
        self.preparations = [*ahead, prepared]
        found_k3s = pulumi.Output.from_input(args.with_k3s)
        # A new cluster has no Node of a machine that was replaced.
        if_it_exists = pulumi.ResourceOptions(
            depends_on=found_k3s.apply(lambda found: [prepared] if found else [])
        )
        for host in others:
            before = pulumi.ResourceOptions.merge(
                if_it_exists, pulumi.ResourceOptions(depends_on=[*self.nodes])
            )
            _, node = self._install(f"{name}-{host.name}", host, before)
            self.nodes.append(node)
        joined = list(zip(others, self.nodes[1:], strict=True))
        majority = self.nodes[: len(self.nodes) // 2 + 1]
        self.ahead_of_workers = found_k3s.apply(
            lambda found: [
                begun,
                *([prepared] if found else []),
                *(node for host, node in joined if host.name in found),
            ]
        )
        self.ahead_of_charts = self.ahead_of_workers.apply(lambda ahead: [*ahead, *majority])
        create_teardown(
            f"{name}-teardown",
            args.inventory,
            args.login,
            pulumi.ResourceOptions(parent=self, depends_on=self.nodes),
        )

        self.ca_pem = self._facts.apply(lambda found: found.ca_pem)
        self.k3s_version = self._facts.apply(lambda found: found.version)
        self.agent_token = pulumi.Output.secret(
            pulumi.Output.all(self._facts, self._agent_password.result).apply(
                lambda known: k3s.secure_token("node", known[1], ca_sha256=known[0].ca_sha256)
            )
        )
        self.kubeconfig = self._read_kubeconfig(f"{name}-kubeconfig")
        self.register_outputs(
            {"kubeconfig": self.kubeconfig, "ca_pem": self.ca_pem, "k3s_version": self.k3s_version}
        )

    def remove_stale_nodes(self, after: Sequence[pulumi.Resource]) -> remote.Command:
        """Register the Command that drains and deletes the Nodes of workers that are not configured any more.

        It runs whenever the set of workers has changed, after `after`: the pools, and what was measured. The
        engine uninstalls those hosts at the end of the update, and only if no step has failed.
        """
        first, workers = self._args.inventory.servers[0], self._args.inventory.workers
        step = HostCommandArgs(
            login=self._args.login,
            host=first,
            script="k3s-stale-nodes",
            timeout_seconds=STALE_NODES_DEADLINE_SECONDS,
            values={"NODE_NAME": first.name},
            payload={"workers": "\n".join(sorted(host.name for host in workers))},
        )
        return create_host_command(
            f"{self._prefix}-stale-nodes",
            step,
            pulumi.ResourceOptions(parent=self, depends_on=[self.nodes[0], *after]),
        )

    def _create_passwords(
        self, name: str, rotations: int
    ) -> tuple[random.RandomPassword, random.RandomPassword]:
        """The first token, and the one of now. All stay in the state: a snapshot needs that of its time."""
        passwords = [self._create_password(name)]
        passwords += [self._create_password(f"{name}-{number + 1}") for number in range(rotations)]
        return passwords[0], passwords[-1]

    def _create_password(self, name: str) -> random.RandomPassword:
        # Letters and digits only: the token also stands in YAML and in K3s's own `user:password` form.
        return random.RandomPassword(
            name,
            length=TOKEN_LENGTH,
            special=False,
            # A token changed by an argument would lock out every host. A rotation is another resource.
            opts=pulumi.ResourceOptions(parent=self, ignore_changes=[*TOKEN_ARGUMENTS]),
        )

    def _prepare_nodes(
        self,
        name: str,
        on: Host,
        *,
        of: Sequence[Host],
        workers: Sequence[Host] = (),
        opts: pulumi.ResourceOptions | None = None,
    ) -> remote.Command:
        machines = pulumi.Output.from_input(self._args.machines).apply(
            lambda found: "\n".join(f"{host.name} {found.get(host.name, '')}" for host in of)
        )
        inventory = self._args.inventory
        taints = [
            " ".join([host.name, *k3s.taints(settings)])
            for pool, settings in (inventory.cluster.pools.items() if workers else ())
            for host in inventory.workers_of(pool)
        ]
        return create_host_command(
            name,
            HostCommandArgs(
                login=self._args.login,
                host=on,
                script="k3s-nodes",
                timeout_seconds=NODES_DEADLINE_SECONDS,
                values={"NODE_NAME": on.name, **({"AFTER": "true"} if workers else {})},
                payload={
                    "machines": machines,
                    "servers": "\n".join(host.name for host in inventory.servers),
                    "taints": "\n".join(taints),
                },
            ),
            pulumi.ResourceOptions.merge(opts, pulumi.ResourceOptions(parent=self)),
        )

    def _install(
        self, name: str, host: Host, opts: pulumi.ResourceOptions
    ) -> tuple[pulumi.Resource, remote.Command]:
        """The removal of a server, and its installation."""
        args, servers = self._args, self._args.inventory.servers
        first = host is servers[0]
        opts = pulumi.ResourceOptions.merge(opts, pulumi.ResourceOptions(parent=self))
        peers = " ".join(peer.address for peer in servers if peer is not host)
        removal = create_host_removal(
            f"{name}-removal",
            HostRemovalArgs(
                inventory=args.inventory,
                login=args.login,
                host=host,
                script="k3s-server",
                owner=name,
                install_id=self.install_id,
                timeout_seconds=REMOVAL_DEADLINE_SECONDS,
                values={"PEERS": peers},
            ),
            opts,
        )
        step = HostCommandArgs(
            login=args.login,
            host=host,
            script="k3s-server",
            timeout_seconds=install_seconds(args.inventory.cluster.k3s, "server", SERVER_DEADLINE_SECONDS),
            values={
                "NODE_NAME": host.name,
                "NODE_ADDRESS": host.address,
                **k3s_values(args.inventory.cluster.k3s, "server", args.project),
                **k3s.rotation_values(args.inventory.cluster.k3s),
                # Server 1 begins the cluster, unless another server has one already (server 1 was replaced);
                # the others join server 1 directly, never through the load balancer (k3s-io/k3s#9661).
                "FIRST": "true" if first else "false",
                "PEERS": peers,
            },
            payload={"config": self._render_config(host), "registries": self.registries_yaml},
            install_id=self.install_id,
        )
        return removal, create_host_command(
            name,
            step,
            pulumi.ResourceOptions.merge(opts, pulumi.ResourceOptions(depends_on=[removal])),
        )

    def _read_kubeconfig(self, name: str) -> pulumi.Output[str]:
        """The admin kubeconfig, secret, addressed to the load balancer."""
        inventory = self._args.inventory
        bastion = inventory.cluster.ssh.bastion
        command = create_host_command(
            name,
            HostCommandArgs(
                login=self._args.login,
                host=inventory.servers[0],
                script="kubeconfig",
                timeout_seconds=KUBECONFIG_DEADLINE_SECONDS,
                # Another number every 90 days, or rotated certificates: an update then reads it again.
                values={
                    "RENEWAL": str(k3s.kubeconfig_renewal(datetime.now(UTC).date())),
                    **k3s.rotation_values(inventory.cluster.k3s, "certificates"),
                },
                logging=remote.Logging.NONE,
            ),
            pulumi.ResourceOptions(
                parent=self, depends_on=[self.nodes[0]], additional_secret_outputs=["stdout"]
            ),
        )
        return pulumi.Output.secret(
            command.stdout.apply(
                lambda text: with_server(
                    kubeconfig_text(text),
                    server=inventory.api_endpoint,
                    name=inventory.cluster.name,
                    proxy_url=bastion.api_proxy_url if bastion else None,
                )
            )
        )

    def _render_registries(self) -> pulumi.Output[str]:
        settings = self._args.inventory.cluster.k3s
        credentials = self._args.registry_credentials
        if credentials is None:
            return pulumi.Output.from_input(k3s.registries(settings))
        return pulumi.Output.secret(credentials).apply(lambda known: k3s.registries(settings, known))

    def _render_config(self, host: Host) -> pulumi.Output[str]:
        args = self._args
        s3 = [args.s3_access_key, args.s3_secret_key]
        passwords = pulumi.Output.all(self._server_token(host), self._agent_password.result, *s3)
        return passwords.apply(
            lambda known: k3s.server_config(
                args.inventory.cluster.k3s,
                node_name=host.name,
                tls_sans=args.inventory.tls_sans(host),
                token=known[0],
                agent_token=known[1],
                s3_keys=(known[2], known[3]) if known[2] else None,
            )
        )

    def _server_token(self, host: Host) -> pulumi.Output[str]:
        """Server 1 makes the CA; the others pin it, so that they tell their token to no other server."""
        password: pulumi.Output[str] = self._server_password.result
        if host is self._args.inventory.servers[0]:
            return password
        return pulumi.Output.all(self._facts, password).apply(
            lambda known: k3s.secure_token("server", known[1], ca_sha256=known[0].ca_sha256)
        )

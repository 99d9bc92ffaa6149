"""Workers with the same hardware: K3s agents with GPUs and HCAs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pulumi
from pulumi_command import remote

from busbar import names
from busbar.components.control_plane import K3sControlPlane
from busbar.components.engine.hosts import HostArgs, SshLogin, create_host_command, create_host_removal
from busbar.components.engine.node_steps import scheduler_hooks
from busbar.components.engine.rolling_update import RollingUpdate
from busbar.components.engine.stack import StackConfig
from busbar.components.preflight import Preflight
from busbar.config import K3s, Pool
from busbar.hosts import k3s, proxy, scripts
from busbar.hosts.inventory import Host


def create_delivery_hook(name: str, login: SshLogin, hosts: Mapping[str, Host]) -> pulumi.ErrorHook:
    """The hook for Commands with a `delivered` script; `hosts`: name of the Command -> its host.

    The engine calls it after a Command has failed. It asks for one retry, and only if the Command failed
    because the script was missing and it could be sent.
    """

    async def on_error(args: pulumi.ErrorHookArgs) -> bool:
        line = scripts.not_delivered(scripts.DELIVERED[hosts[args.name].role])
        if len(args.errors) != 1 or line not in args.errors[0].splitlines():
            return False
        # Imported here, because an update in which every host has its script does not need it.
        from busbar.hosts.inventory import Login
        from busbar.hosts.remote import Hosts, ScriptError, UnreachableError
        from busbar.preflight.spec import SCRIPT_SECONDS

        host = hosts[args.name]
        values, payload = {"NODE_ADDRESS": host.address, "ROLE": host.role}, scripts.delivery(host.role)
        try:
            async with Hosts.open(Login.model_validate(await login.spec.future())) as opened:
                # This is the delivery of preflight. Its findings on the host are ignored.
                await opened.run(host, "preflight", values, payload, seconds=SCRIPT_SECONDS)
        except (ScriptError, UnreachableError, ValueError) as error:
            pulumi.log.warn(str(error))
            return False
        return True

    return pulumi.ErrorHook(name, on_error)


AGENT_DEADLINE_SECONDS = 1200
REMOVAL_DEADLINE_SECONDS = 600


@dataclass(frozen=True, kw_only=True)
class InfiniBandWorkerPoolArgs:
    """The workers of a pool, and how they join.

    `pool`: its name. `prefix`: begins the names of the workers' resources. It is the same in all pools, so
    that a worker that moves to another one keeps its resources. `fronts`: load balancers and servers.
    `install_id`: `K3sControlPlane.install_id`. `kubeconfig`: secret, to ask the cluster for its Nodes.
    `servers`: `K3sControlPlane.servers`, of which those with a Node change before any worker. `unreachable`:
    the workers that preflight did not reach. `join_url`: https://ADDRESS:6443 of the Kubernetes API.
    `agent_token`: secret; it pins the CA. `registries_yaml`: the content of registries.yaml, empty for none.
    `project`: folder that relative paths in `k3s` start from. `environment`: the proxy of the hosts
    (busbar.hosts.proxy).
    """

    pool: str
    prefix: str
    workers: Sequence[Host]
    fronts: Sequence[Host]
    login: SshLogin
    install_id: pulumi.Input[str]
    kubeconfig: pulumi.Input[str]
    servers: Mapping[str, remote.Command]
    unreachable: pulumi.Input[Sequence[str]]
    join_url: pulumi.Input[str]
    agent_token: pulumi.Input[str]
    registries_yaml: pulumi.Input[str]
    settings: Pool
    k3s: K3s = field(default_factory=K3s)
    project: Path = Path()
    environment: Mapping[str, str] = field(default_factory=dict)


class InfiniBandWorkerPool(pulumi.ComponentResource):
    """Makes two Commands per worker: the K3s agent, and one that acts only when the worker is removed.

    The agent depends on its removal. Running agents
    change a few at a time (components/engine/rolling_update.py), all others at once. The Node of a removed
    worker is drained and deleted before (components/engine/node_steps.py).
    """

    steps: list[remote.Command]
    """One Command per worker, in the order of the configuration."""
    node_names: pulumi.Output[list[str]]
    """Names of the Nodes, known once all of them are Ready."""

    def __init__(
        self, name: str, args: InfiniBandWorkerPoolArgs, opts: pulumi.ResourceOptions | None = None
    ) -> None:
        super().__init__("busbar:index:InfiniBandWorkerPool", name, None, opts)
        self._args = args
        settings = args.settings
        self._install_values = {
            **k3s.download_values(args.k3s, "worker", args.project),
            **k3s.rotation_values(args.k3s, "certificates"),
        }
        self._delivery = create_delivery_hook(
            f"{name}-delivery", args.login, {self._agent(host): host for host in args.workers}
        )
        drain, mine = settings.drain, {self._agent(host): host.name for host in args.workers}
        self._hooks = pulumi.ResourceHookBinding(on_error=[self._delivery])
        if drain != "never":
            of_schedulers = scheduler_hooks(
                name,
                mine,
                args.kubeconfig,
                seconds=settings.drain_timeout_seconds,
                version=args.k3s.version if drain == "upgrade" else None,
            )
            self._hooks = pulumi.ResourceHookBinding.merge(self._hooks, of_schedulers)
        by_name: dict[str, remote.Command] = {}
        self._rolling = RollingUpdate(
            args.pool,
            by_name,
            limit=settings.restarts_at_once(len(args.workers)),
            jobs=settings.running_jobs != "keep",
            # The component's URN is known when everything that it depends on is done.
            begin=self.urn,
            kubeconfig=args.kubeconfig,
            servers=args.servers,
            unreachable=args.unreachable,
        )
        for host in args.workers:
            by_name[host.name] = self._install(host)
        self.steps = [*by_name.values()]
        ready = pulumi.Output.all(*(step.stdout for step in self.steps))
        self.node_names = ready.apply(lambda _: [host.name for host in args.workers])
        self.register_outputs({"node_names": self.node_names})

    def _agent(self, host: Host) -> str:
        """The resource that installs this worker."""
        return names.on_host(self._args.prefix, host.name)

    def _install(self, host: Host) -> remote.Command:
        args, pool = self._args, self._args.settings
        name, workers = self._agent(host), len(args.workers)
        on = HostArgs(
            login=args.login,
            host=host,
            owner=name,
            install_id=args.install_id,
            fronts=args.fronts,
            environment=args.environment,
        )
        removal = create_host_removal(
            on, "k3s-agent", REMOVAL_DEADLINE_SECONDS, {}, pulumi.ResourceOptions(parent=self)
        )
        seconds = AGENT_DEADLINE_SECONDS + k3s.restart_seconds(pool, workers)
        return create_host_command(
            name,
            on,
            "k3s-agent",
            k3s.install_seconds(args.k3s, "worker", seconds),
            {
                **self._install_values,
                "NODE_NAME": host.name,
                "NODE_ADDRESS": host.address,
                **k3s.restart_values(pool, workers),
            },
            pulumi.ResourceOptions(
                parent=self,
                depends_on=self._rolling.ahead_of(host.name).apply(lambda ahead: [removal, *ahead]),
                hooks=self._hooks,
            ),
            payload={
                "config": self._render_config(host),
                "registries": args.registries_yaml,
                **proxy.payload(args.environment),
            },
            delivered=True,
        )

    def _render_config(self, host: Host) -> pulumi.Output[str]:
        return pulumi.Output.all(self._args.join_url, self._args.agent_token).apply(
            lambda known: k3s.agent_config(
                self._args.k3s,
                self._args.settings,
                node_name=host.name,
                server=known[0],
                token=known[1],
                labels=host.labels,
            )
        )


@dataclass(frozen=True, kw_only=True)
class WorkerPoolsArgs:
    """The pools. No pool waits for another."""

    pools: Sequence[InfiniBandWorkerPoolArgs]

    @classmethod
    def of(
        cls, config: StackConfig, preflight: Preflight, control_plane: K3sControlPlane, *, workers: str
    ) -> WorkerPoolsArgs:
        """The arguments for all pools of a configuration, whose workers join the control plane.

        `workers`: begins the names of the workers' resources.
        """
        pools = config.cluster.pools
        arguments = [
            InfiniBandWorkerPoolArgs(
                pool=pool,
                prefix=workers,
                workers=config.inventory.workers_of(pool),
                fronts=config.inventory.fronts,
                login=config.login,
                install_id=control_plane.install_id,
                kubeconfig=control_plane.kubeconfig,
                servers=control_plane.servers,
                unreachable=preflight.unreachable,
                join_url=config.inventory.api_endpoint,
                agent_token=control_plane.agent_token,
                registries_yaml=control_plane.registries_yaml,
                settings=pools[pool],
                k3s=config.cluster.k3s,
                project=config.project,
                environment=proxy.environment(config.inventory),
            )
            for pool in sorted(pools)
        ]
        return cls(pools=arguments)


class WorkerPools(pulumi.ComponentResource):
    """Makes an InfiniBandWorkerPool per pool."""

    steps: list[remote.Command]
    """One Command per worker, pool by pool."""

    def __init__(self, name: str, args: WorkerPoolsArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("busbar:index:WorkerPools", name, None, opts)
        self.by_name: dict[str, InfiniBandWorkerPool] = {}
        for each in args.pools:
            self.by_name[each.pool] = InfiniBandWorkerPool(
                f"{name}-{each.pool}", each, pulumi.ResourceOptions(parent=self)
            )
        self.steps = [step for pool in self.by_name.values() for step in pool.steps]
        self.register_outputs({"pools": list(self.by_name)})

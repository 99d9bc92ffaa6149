"""Workers with the same hardware: K3s agents with GPUs and HCAs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pulumi
from pulumi_command import remote

from busbar import names
from busbar.components.engine.hosts import STEP_INPUTS, SshLogin, create_host_command, create_host_removal
from busbar.components.engine.node_steps import restart_hooks
from busbar.components.engine.rolling_update import RollingUpdate
from busbar.components.engine.stack import StackConfig
from busbar.hosts import k3s, proxy, scripts
from busbar.hosts.inventory import Host, Login
from busbar.preflight.spec import SCRIPT_SECONDS


def create_delivery_hook(name: str, login: SshLogin, hosts: Mapping[str, Host]) -> pulumi.ErrorHook:
    """The hook for Commands with a `delivered` script; `hosts`: name of the Command -> its host.

    It asks for one retry, if the Command failed because the script was missing and it could be sent.
    """

    async def on_error(args: pulumi.ErrorHookArgs) -> bool:
        line = scripts.not_delivered(scripts.DELIVERED[hosts[args.name].role])
        if len(args.errors) != 1 or line not in args.errors[0].splitlines():
            return False
        # Imported here, because an update in which every host has its script does not need it.
        from busbar.hosts.remote import Hosts, ScriptError, UnreachableError

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


class InfiniBandWorkerPool(pulumi.ComponentResource):
    """Makes two Commands per worker: the K3s agent, and one that acts only when the worker is removed.

    The agent depends on its removal. Running agents change a few at a time (engine/rolling_update.py), all
    others at once. The Node of a removed worker is drained and deleted before (engine/node_steps.py).

    `pool`: its name in the configuration. `prefix`: begins the names of the workers' resources. It is the
    same in all pools, so that a worker that moves to another one keeps its resources. `unreachable`: workers
    that preflight did not reach. Others are outputs of K3sControlPlane; `servers` with a Node change first.
    """

    steps: list[remote.Command]
    """One Command per worker, in the order of the configuration."""

    def __init__(
        self,
        name: str,
        opts: pulumi.ResourceOptions | None = None,
        *,
        config: StackConfig,
        pool: str,
        prefix: str,
        install_id: pulumi.Input[str],
        kubeconfig: pulumi.Input[str],
        servers: Mapping[str, remote.Command],
        agent_token: pulumi.Input[str],
        registries_yaml: pulumi.Input[str],
        unreachable: pulumi.Input[Sequence[str]],
    ) -> None:
        super().__init__("busbar:index:InfiniBandWorkerPool", name, None, opts)
        self._config, self._k3s = config, config.cluster.k3s
        self._prefix, self._install_id = prefix, install_id
        self._agent_token, self._registries_yaml = agent_token, registries_yaml
        self._unreachable = unreachable
        settings = self._settings = config.cluster.pools[pool]
        workers = self._workers = config.inventory.workers_of(pool)
        self._install_values = {
            **k3s.download_values(self._k3s, "worker", config.project),
            **k3s.rotation_values(self._k3s, "certificates"),
        }
        hosts = {names.on_host(prefix, host.name): host for host in workers}
        delivery = create_delivery_hook(f"{name}-delivery", config.login, hosts)
        self._hooks = pulumi.ResourceHookBinding.merge(
            pulumi.ResourceHookBinding(on_error=[delivery]),
            restart_hooks(
                name,
                {agent: host.name for agent, host in hosts.items()},
                kubeconfig,
                seconds=settings.drain_timeout_seconds,
            ),
        )
        by_name: dict[str, remote.Command] = {}
        self._rolling = RollingUpdate(
            pool,
            by_name,
            limit=settings.restarts_at_once(len(workers)),
            jobs=settings.running_jobs != "keep",
            # The component's URN is known when everything that it depends on is done.
            begin=self.urn,
            kubeconfig=kubeconfig,
            servers=servers,
            unreachable=unreachable,
        )
        for host in workers:
            by_name[host.name] = self._install(host)
        self.steps = [*by_name.values()]
        self.register_outputs({"node_names": [host.name for host in workers]})

    def _install(self, host: Host) -> remote.Command:
        pool, name, workers = self._settings, names.on_host(self._prefix, host.name), len(self._workers)
        on = self._config.host_args(host, name, self._install_id)
        removal = create_host_removal(
            on, "k3s-agent", REMOVAL_DEADLINE_SECONDS, {}, pulumi.ResourceOptions(parent=self)
        )
        seconds = AGENT_DEADLINE_SECONDS + k3s.restart_seconds(pool, workers)
        return create_host_command(
            name,
            on,
            "k3s-agent",
            k3s.install_seconds(self._k3s, "worker", seconds),
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
                transforms=[self._leave_out_if_off] if host.name in self._config.inventory.quarantine else [],
            ),
            payload={
                "config": self._render_config(host),
                "registries": self._registries_yaml,
                **proxy.payload(on.environment),
            },
            delivered=True,
        )

    async def _leave_out_if_off(
        self, args: pulumi.ResourceTransformArgs
    ) -> pulumi.ResourceTransformResult | None:
        """Change nothing on a worker in quarantine that preflight did not reach: it may be off."""
        worker = names.host_of(args.name)
        if worker not in (await pulumi.Output.from_input(self._unreachable).future() or ()):
            return None
        pulumi.warn(f"{worker} is in quarantine and left out: its changes wait until it is back")
        args.opts.ignore_changes = [*STEP_INPUTS]
        return pulumi.ResourceTransformResult(args.props, args.opts)

    def _render_config(self, host: Host) -> pulumi.Output[str]:
        return pulumi.Output.from_input(self._agent_token).apply(
            lambda token: k3s.agent_config(
                self._k3s,
                self._settings,
                node_name=host.name,
                server=self._config.inventory.api_endpoint,
                token=token,
                labels=host.labels,
            )
        )

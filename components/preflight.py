"""Preflight: every host is checked before anything is changed on any of them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pulumi
from pulumi_command import local

from busbar.components.engine.local_command import create_hosts_command
from busbar.components.engine.ssh import SshLogin, with_login
from busbar.components.engine.stack_config import StackConfig
from busbar.hosts.host import Host
from busbar.preflight.facts import machine, read, unpack, unreachable, with_k3s
from busbar.preflight.spec import spec_of, without_login


@dataclass(frozen=True, kw_only=True)
class PreflightArgs:
    """All hosts and their requirements (busbar.preflight.spec).

    `requirements`: role, or `worker/<pool>` -> HostRequirements. `nfs`: NfsRequirements.
    `quarantined`: workers whose hardware may be broken. `api_endpoint`: address of an endpoint of the site.
    `install_id`: `JoinTokens.install_id`, by which hosts of another cluster are found, if given.
    """

    hosts: Sequence[Host]
    requirements: Mapping[str, Mapping[str, Any]]
    login: SshLogin
    nfs: Mapping[str, Any] | None = None
    quarantined: Sequence[str] = ()
    api_endpoint: str | None = None
    install_id: pulumi.Input[str] | None = None

    @classmethod
    def of(cls, config: StackConfig, install_id: pulumi.Input[str]) -> "PreflightArgs":
        """The arguments for all hosts of a configuration."""
        spec = spec_of(config.cluster, login={}, project=config.project)
        return cls(
            hosts=config.inventory.hosts,
            requirements=spec["requirements"],
            login=config.login,
            nfs=spec.get("nfs"),
            quarantined=spec.get("quarantined", ()),
            api_endpoint=spec.get("api_endpoint"),
            install_id=install_id,
        )


class Preflight(pulumi.ComponentResource):
    """Makes one Command: `busbar preflight` over all hosts in parallel, failing with all findings at once.

    `hosts`: host name -> its facts {"gpus", "gpu_model", "driver", "rails", ...}. `machines`: host name ->
    identity of its machine (busbar.preflight.facts.machine). `with_k3s`: the hosts on which busbar may have
    installed K3s before this update: those where preflight found it, and those that it did not query.
    `unreachable`: the workers that did not respond to the last query. `checked`: the Command on which
    everything that changes a host must depend.
    """

    hosts: pulumi.Output[Mapping[str, dict[str, Any]]]
    machines: pulumi.Output[Mapping[str, str]]
    with_k3s: pulumi.Output[Sequence[str]]
    unreachable: pulumi.Output[Sequence[str]]
    checked: local.Command

    def __init__(self, name: str, args: PreflightArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("busbar:index:Preflight", name, None, opts)
        self._is_asked = False
        asked = pulumi.ResourceHook(f"{name}-asked", self._note_asked)
        spec = without_login(args.hosts, args.requirements, args.nfs, args.quarantined, args.api_endpoint)
        stdin: pulumi.Output[str] = pulumi.Output.from_input(args.install_id).apply(
            lambda known: with_login({**spec, "install_id": known}, args.login)
        )
        hooks = pulumi.ResourceHookBinding(after_create=[asked], after_update=[asked])
        own = pulumi.ResourceOptions(parent=self, hooks=hooks)
        # Hosts that passed with the same spec are not checked again.
        self.checked = create_hosts_command(
            f"{name}-hosts", "preflight", stdin, own, with_previous_result=True
        )
        self.hosts = self.checked.stdout.apply(unpack)
        # The result of an earlier update is from before its installations.
        self.with_k3s = self.hosts.apply(lambda hosts: sorted(with_k3s(hosts) if self._is_asked else hosts))
        self.machines = self.checked.stdout.apply(
            lambda text: {name: machine(record) for name, record in read(text).items()}
        )
        self.unreachable = self.checked.stdout.apply(lambda text: sorted(unreachable(read(text))))
        self.register_outputs({"hosts": self.hosts})

    def _note_asked(self, _: pulumi.ResourceHookArgs) -> None:
        """Record that the Command has run in this update; the engine calls this hook then."""
        self._is_asked = True

"""Preflight: every host is checked before anything is changed on any of them."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pulumi
from pulumi_command import local

from busbar.hosts.inventory import Inventory
from busbar.preflight.facts import read, unpack, unreachable, with_k3s
from busbar.preflight.spec import spec_of
from components.engine.local_command import busbar_command
from components.engine.ssh import SshLogin


@dataclass(frozen=True, kw_only=True)
class PreflightArgs:
    """All hosts and the login to them. `project`: folder that relative paths in the stack start from."""

    inventory: Inventory
    login: SshLogin
    project: Path


class Preflight(pulumi.ComponentResource):
    """Makes one Command: `busbar preflight` over all hosts in parallel, failing with all findings at once.

    `hosts` maps a host's name to what was found on it: {"gpus", "gpu_model", "driver", "rails", ...}.
    `machines` maps it to a digest of its machine-id. `with_k3s`: the hosts on which busbar may have installed
    K3s before this update: those where preflight found it, and those that it did not ask. `unreachable`: the
    workers that did not answer when it last asked them. `checked` is what everything that changes a host must
    depend on.
    """

    hosts: pulumi.Output[Mapping[str, dict[str, Any]]]
    machines: pulumi.Output[Mapping[str, str]]
    with_k3s: pulumi.Output[Collection[str]]
    unreachable: pulumi.Output[Collection[str]]
    checked: local.Command

    def __init__(self, name: str, args: PreflightArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("busbar:index:Preflight", name, None, opts)
        self._is_asked = False
        asked = pulumi.ResourceHook(f"{name}-asked", self._note_asked)
        spec = spec_of(args.inventory.cluster, login={}, project=args.project)
        self.checked = local.Command(
            f"{name}-hosts",
            create=busbar_command("preflight"),
            # Secret where the login has a secret.
            stdin=args.login.spec.apply(lambda login: json.dumps({**spec, "login": login}, sort_keys=True)),
            # The previous result: hosts that passed with the same spec are not checked again.
            add_previous_output_in_env=True,
            logging=local.Logging.STDERR,
            opts=pulumi.ResourceOptions(
                parent=self, hooks=pulumi.ResourceHookBinding(after_create=[asked], after_update=[asked])
            ),
        )
        self.hosts = self.checked.stdout.apply(unpack)
        # The answer of an earlier update is from before its installations.
        self.with_k3s = self.hosts.apply(lambda hosts: sorted(with_k3s(hosts) if self._is_asked else hosts))
        self.machines = self.checked.stdout.apply(
            lambda text: {name: record.machine for name, record in read(text).items()}
        )
        self.unreachable = self.checked.stdout.apply(lambda text: sorted(unreachable(read(text))))
        self.register_outputs({"hosts": self.hosts})

    def _note_asked(self, _: pulumi.ResourceHookArgs) -> None:
        """The engine calls it where the Command has run in this update."""
        self._is_asked = True

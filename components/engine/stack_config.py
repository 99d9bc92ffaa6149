"""The configuration of the selected stack, read once: `busbar:cluster`, and the secrets beside it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import pulumi
from pulumi.runtime import get_config_env, is_config_secret

from busbar import config
from busbar.components.engine.ssh import SshLogin
from busbar.config.errors import unknown_keys
from busbar.config.hardware import AnyCluster
from busbar.config.hosts import has_list
from busbar.config.schema import KEY, PROJECT
from busbar.config.secrets import plain_text
from busbar.hosts.inventory import Inventory

C = TypeVar("C", bound=AnyCluster)


@dataclass(frozen=True, kw_only=True)
class StackConfig:
    """A checked configuration. Secrets are Outputs; values that shape the graph are plain.

    `secrets`: the secrets that are set, by key (busbar.config.SECRETS).
    """

    cluster: config.Cluster
    inventory: Inventory
    login: SshLogin
    secrets: Mapping[str, pulumi.Output[str]]
    project: Path
    """The folder of the program, which relative paths of the configuration start from."""

    @classmethod
    def of(
        cls, data: Mapping[str, Any], secrets: Mapping[str, pulumi.Output[str]], project: Path
    ) -> StackConfig:
        """Check the object `busbar:cluster`; `secrets` and `project` as above.

        Raises pulumi.RunError with every finding, before any resource is registered.
        """
        cluster, login = checked(data, secrets, project, config.load, config.warnings)
        return cls(
            cluster=cluster, inventory=Inventory.of(cluster), login=login, secrets=secrets, project=project
        )

    @property
    def registry_credentials(self) -> pulumi.Output[dict[str, Any]] | None:
        """Registry -> login, secret; None if none is set."""
        text = self.secrets.get("registryCredentials")
        return None if text is None else text.apply(config.registry_credentials)


def checked(
    data: Mapping[str, Any],
    secrets: Mapping[str, pulumi.Output[str]],
    project: Path,
    load: Callable[..., C],
    warnings: Callable[[C], Iterable[config.Finding]],
    roles: Mapping[str, str] | None = None,
) -> tuple[C, SshLogin]:
    """Load a configuration with LOAD, and its login; show the warnings.

    `roles`: of a list of hosts elsewhere, as busbar.config.hosts_from.ROLES, which it is by default.
    Raises pulumi.RunError with every finding, before any resource is registered.
    """
    try:
        if has_list(data):
            # Few configurations need it, and a program loads as few modules as possible.
            from busbar.components.engine.listed_hosts import load_listed

            load = partial(load_listed, roles=roles, load=load)
        found = load(data, secret_keys=secrets, root=project)
        login = SshLogin.load(found.ssh, secrets, project)
    except config.ConfigError as error:
        raise invalid(error) from None
    for warning in warnings(found):
        pulumi.warn(str(warning))
    return found, login


def read_stack(
    project: str = PROJECT, key: str = KEY, secrets: Collection[str] = config.SECRETS
) -> tuple[Mapping[str, Any], Mapping[str, pulumi.Output[str]]]:
    """`<project>:<key>` of the selected stack, not checked yet, and the secrets that are set, by key.

    Raises pulumi.RunError for an unknown key, and for a secret that is not encrypted or has another form.
    """
    stack = pulumi.Config(project)
    # Pulumi.yaml declares the secret keys with an empty default.
    given = [name for name in secrets if stack.get(name)]
    problems = list(unknown_keys(sorted(get_config_env()), project, [key, *secrets]))
    problems += [plain_text(name, project) for name in given if not is_config_secret(f"{project}:{name}")]
    try:
        if problems:
            raise config.ConfigError(problems)
        if "registryCredentials" in given:
            config.registry_credentials(stack.require("registryCredentials"))
    except config.ConfigError as error:
        raise invalid(error) from None
    return stack.get_object(key) or {}, {name: stack.require_secret(name) for name in given}


def invalid(error: config.ConfigError) -> pulumi.RunError:
    """The error that ends the program for an invalid configuration."""
    return pulumi.RunError(f"invalid configuration of stack {pulumi.get_stack()}:\n{error}")

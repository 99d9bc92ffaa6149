"""The configuration of the selected stack, read once: `busbar:cluster`, and the secrets beside it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pulumi
from pulumi.runtime.config import CONFIG, get_config_env, is_config_secret

from busbar import config
from busbar.components.engine.ssh import SshLogin
from busbar.config.errors import unknown_keys
from busbar.config.schema import KEY, PROJECT
from busbar.config.secrets import plain_text
from busbar.hosts.inventory import Inventory


@dataclass(frozen=True, kw_only=True)
class StackConfig:
    """A checked configuration. Secrets are Outputs; what shapes the graph is plain.

    `secrets`: by key (busbar.config.SECRETS), those that are set.
    """

    cluster: config.Cluster
    inventory: Inventory
    login: SshLogin
    secrets: Mapping[str, pulumi.Output[str]]
    project: Path
    """The folder of the program, which relative paths of the configuration start from."""

    @classmethod
    def load(cls, project: Path) -> StackConfig:
        """Read `busbar:cluster` and the secret keys of the selected stack; `project` is the program's folder.

        Raises pulumi.RunError with every finding of the configuration, before any resource is registered.
        """
        stack = pulumi.Config("busbar")
        # Pulumi.yaml declares the secret keys with an empty default.
        given = [key for key in config.SECRETS if stack.get(key)]
        secrets = {key: stack.require_secret(key) for key in given}
        try:
            problems = list(unknown_keys(given_keys(), PROJECT, [KEY, *config.SECRETS]))
            problems += [plain_text(key) for key in given if not is_config_secret(f"busbar:{key}")]
            if problems:
                raise config.ConfigError(problems)
            cluster = config.load(stack.get_object("cluster") or {}, secret_keys=secrets, root=project)
            if "registryCredentials" in secrets:
                config.registry_credentials(stack.require("registryCredentials"))
            login = SshLogin.load(
                cluster.ssh,
                secret_key=secrets.get("sshPrivateKey"),
                key_password=secrets.get("sshPrivateKeyPassword"),
                project=project,
            )
        except config.ConfigError as error:
            raise pulumi.RunError(f"invalid configuration of stack {pulumi.get_stack()}:\n{error}") from None
        for warning in config.warnings(cluster):
            pulumi.warn(warning)
        return cls(
            cluster=cluster, inventory=Inventory.of(cluster), login=login, secrets=secrets, project=project
        )

    @property
    def registry_credentials(self) -> pulumi.Output[dict[str, Any]] | None:
        """Registry -> login, secret; None where none is set."""
        text = self.secrets.get("registryCredentials")
        return None if text is None else text.apply(config.registry_credentials)


def given_keys() -> list[str]:
    """`<namespace>:<name>` of everything that the stack configures. The SDK has no public function for it."""
    return sorted({*CONFIG.get(), *get_config_env()})

"""The stack's configuration, read once: what is asked for, and the secrets that go with it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pulumi

from busbar import config
from busbar.hosts.inventory import Inventory
from components.ssh import Login


@dataclass(frozen=True, kw_only=True)
class Site:
    """A checked configuration. Secrets are Outputs; what shapes the graph is plain."""

    cluster: config.Cluster
    inventory: Inventory
    login: Login
    registry_credentials: pulumi.Output[dict[str, Any]] | None
    s3_access_key: pulumi.Output[str] | None
    s3_secret_key: pulumi.Output[str] | None

    @classmethod
    def of_stack(cls, project: Path) -> Site:
        """Read `busbar:cluster` and the secret keys of the selected stack; `project` is the program's folder.

        Raises pulumi.RunError with every finding of the configuration, before any resource is registered.
        """
        stack = pulumi.Config("busbar")
        secrets = {key: _secret(stack, key) for key in config.SECRETS}
        given = [key for key, value in secrets.items() if value is not None]
        try:
            cluster = config.load(stack.get_object("cluster") or {}, secret_keys=given, root=project)
            if "registryCredentials" in given:
                config.registry_credentials(stack.require("registryCredentials"))
            login = Login.of(
                cluster.ssh,
                secret_key=secrets["sshPrivateKey"],
                key_password=secrets["sshPrivateKeyPassword"],
                project=project,
            )
        except config.ConfigError as error:
            raise pulumi.RunError(
                f"the configuration of stack {pulumi.get_stack()} is wrong:\n{error}"
            ) from None
        for note in config.warnings(cluster):
            pulumi.warn(note)
        credentials = secrets["registryCredentials"]
        return cls(
            cluster=cluster,
            inventory=Inventory.of(cluster),
            login=login,
            registry_credentials=credentials.apply(config.registry_credentials)
            if credentials is not None
            else None,
            s3_access_key=secrets["s3AccessKey"],
            s3_secret_key=secrets["s3SecretKey"],
        )


def _secret(stack: pulumi.Config, key: str) -> pulumi.Output[str] | None:
    """A secret key of the stack; None where it is not set (Pulumi.yaml declares it with an empty default)."""
    return stack.require_secret(key) if stack.get(key) else None

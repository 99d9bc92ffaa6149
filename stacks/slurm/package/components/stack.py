"""The configuration of the selected stack of stacks/slurm, and how to log in to its hosts."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pulumi
from pulumi.runtime.config import is_config_secret

from busbar.components.engine.ssh import SshLogin
from busbar.components.engine.stack_config import given_keys, invalid
from busbar.config import ConfigError
from busbar.config.secrets import plain_text
from stacks.slurm.package import config
from stacks.slurm.package.config import Slurm


@dataclass(frozen=True, kw_only=True)
class SlurmStack:
    """A checked configuration."""

    slurm: Slurm
    login: SshLogin

    @classmethod
    def load(cls, project: Path) -> SlurmStack:
        """Read the configuration; `project` is the program's folder.

        Raises pulumi.RunError with every finding, before any resource is registered.
        """
        stack = pulumi.Config(config.PROJECT)
        given = [key for key in config.SECRETS if stack.get(key)]
        problems = list(config.unknown_keys(given_keys()))
        problems += [plain_text(key) for key in given if not is_config_secret(f"{config.PROJECT}:{key}")]
        secrets = {key: stack.require_secret(key) for key in given}
        try:
            if problems:
                raise ConfigError(problems)
            slurm = config.load(stack.get_object(config.KEY) or {}, secret_keys=given, root=project)
            login = SshLogin.load(
                slurm.ssh,
                secret_key=secrets.get("sshPrivateKey"),
                key_password=secrets.get("sshPrivateKeyPassword"),
                project=project,
            )
        except ConfigError as error:
            raise invalid(error) from None
        for text in config.warnings(slurm):
            pulumi.warn(text)
        return cls(slurm=slurm, login=login)

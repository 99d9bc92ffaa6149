"""The configuration of the selected stack of stacks/slurm, and how to log in to its hosts."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pulumi

from busbar.components.engine.ssh import SshLogin
from busbar.components.engine.stack_config import invalid, read_stack
from busbar.config import ConfigError
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
        data, secrets = read_stack(config.PROJECT, config.KEY, config.SECRETS)
        try:
            slurm = config.load(data, secret_keys=secrets, root=project)
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

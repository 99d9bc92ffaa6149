"""The configuration of the selected stack of stacks/slurm, and how to log in to its hosts."""

from __future__ import annotations

from pathlib import Path

import pulumi

from busbar.components.engine.ssh import SshLogin
from busbar.components.engine.stack_config import invalid, read_stack
from busbar.config import ConfigError, validation_checks
from stacks.slurm.package import config
from stacks.slurm.package.config import Slurm


def load_stack(project: Path) -> tuple[Slurm, SshLogin]:
    """The checked configuration, and the login that it describes; `project` is the program's folder.

    Raises pulumi.RunError with every finding, before any resource is registered.
    """
    data, secrets = read_stack(config.PROJECT, config.KEY, config.SECRETS)
    try:
        slurm = config.load(data, secret_keys=secrets, root=project)
        login = SshLogin.load(slurm.ssh, secrets, project)
    except ConfigError as error:
        raise invalid(error) from None
    for warning in validation_checks.warnings(slurm):
        pulumi.warn(str(warning))
    return slurm, login

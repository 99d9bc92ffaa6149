"""The spec for a stack, read from its file without the engine: for `busbar preflight STACK` by hand."""

from __future__ import annotations

from pathlib import Path

import yaml

from busbar.config import ConfigError, load
from busbar.config.files import resolve
from busbar.preflight.spec import Spec, spec_of


def spec_of_stack(stack: str, project: Path) -> Spec:
    """The spec of `Pulumi.<stack>.yaml` in `project`.

    The secret busbar:sshPrivateKey can only be read by the engine; such a stack is asked with the ssh-agent.
    Raises ConfigError for a file that is missing or not valid.
    """
    path = project / f"Pulumi.{stack}.yaml"
    try:
        content = yaml.safe_load(path.read_text())
    except OSError as error:
        raise ConfigError([f"{path}: cannot be read: {error.strerror}"]) from None
    except yaml.YAMLError as error:
        raise ConfigError([f"{path}: is not YAML: {error}"]) from None
    settings = (content or {}).get("config") or {}
    if "busbar:cluster" not in settings:
        raise ConfigError([f"{path}: has no config key busbar:cluster"])
    secret_keys = [key.removeprefix("busbar:") for key in settings if key != "busbar:cluster"]
    cluster = load(settings["busbar:cluster"], secret_keys=secret_keys)
    key_file = str(resolve(project, cluster.ssh.key_file)) if cluster.ssh.key_file else None
    bastion = cluster.ssh.bastion.model_dump() if cluster.ssh.bastion else None
    return Spec.model_validate(spec_of(cluster, login={"key_file": key_file, "bastion": bastion}))

"""A stack file in a few lines; `busbar` imports this module at every start."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from busbar.finding import Finding


def describe(path: Path) -> tuple[list[str], list[Finding]]:
    """The lines, and the warnings on the file. Raises ConfigError."""
    from stacks.slurm_k8s.package.config import CONFIG

    slurm = CONFIG.read(path)
    one = "; lost with its server" if slurm.state.accept_state_on_one_node else ""
    database = slurm.accounting
    return [
        f"cluster {slurm.cluster}, pools: {', '.join(slurm.pools) or 'all'}, namespace {slurm.namespace}",
        f"slurm-operator {slurm.version} from {slurm.charts}; Slurm {slurm.image_tag} from {slurm.images}",
        f"state: {slurm.state.size}, class {slurm.state.storage_class or 'default'}{one}",
        f"accounting: {f'{database.database} on {database.host}' if database else 'none'}",
        f"login: {slurm.login.service}, port {slurm.login.port}",
    ], []

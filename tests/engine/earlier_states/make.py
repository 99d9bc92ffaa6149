"""Make the states: `python -m tests.engine.earlier_states.make CHECKOUT` (of revision 84223d6).

    git worktree add /tmp/earlier 84223d6 && ln -s $PWD/.venv /tmp/earlier/.venv
    python -m tests.engine.earlier_states.make /tmp/earlier && git worktree remove --force /tmp/earlier

The program of that checkout makes each stack of configurations.py on the real engine, with plugins that do
nothing, and its own modules say what a Command would have printed there.
"""

from __future__ import annotations

import json
import lzma
import sys
import tempfile
from pathlib import Path
from typing import Any

import yaml

from tests.engine.earlier_states import configurations
from tests.engine.earlier_states.stack import CORE, NAME, Checkout

STATES = Path(__file__).parent / "states.json.xz"
PROJECT_FOLDER = "@PROJECT@"
"""Stands in the states for the folder of the project."""
# Before a release is installed, the program looks for leftovers of an earlier one in the cluster.
_NO_CLUSTER = """\
import busbar.helm.recovery
import busbar.kube.client
busbar.helm.recovery.before_install = lambda api, release: None
busbar.kube.client.RestApi = lambda kubeconfig: None
"""


def main() -> None:
    """Write the states of the checkout that the command line names."""
    checkout = Path(sys.argv[1]).resolve()
    states = {name: _core(checkout, cluster) for name, cluster in configurations.CORE.items()}
    text = json.dumps(states, sort_keys=True, separators=(",", ":"))
    STATES.write_bytes(lzma.compress(text.encode(), preset=9 | lzma.PRESET_EXTREME))
    print(f"{len(states)} states, {STATES.stat().st_size} bytes")


def _core(root: Path, configuration: configurations.Configuration) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as name:
        (Path(name) / "sitecustomize.py").write_text(_NO_CLUSTER)
        checkout = Checkout(root, Path(name), modules=name)
        (checkout.folder / "cluster.json").write_text(json.dumps(configuration.content))
        stack_file = checkout.project(CORE) / f"Pulumi.{NAME}.yaml"
        checkout.pulumi(CORE, "stack", "init")
        stack = yaml.safe_load(stack_file.read_text()) | {"config": {"busbar:cluster": configuration.content}}
        stack_file.write_text(yaml.safe_dump(stack))
        for key, value in configuration.secrets.items():
            checkout.pulumi(CORE, "config", "set", "--secret", key, value)
        _, error = checkout.up(CORE)
        if error:
            raise SystemExit(error)
        state = json.dumps(checkout.export(CORE)).replace(str(checkout.project(CORE)), PROJECT_FOLDER)
        return {
            "cluster": configuration.content,
            "configuration": stack_file.read_text(),
            "state": json.loads(state),
        }


if __name__ == "__main__":
    main()

"""Make the states: `python -m tests.engine.earlier_states.make CHECKOUT` (of revision 84223d6).

    git worktree add /tmp/earlier 84223d6 && ln -s $PWD/.venv /tmp/earlier/.venv
    python -m tests.engine.earlier_states.make /tmp/earlier && git worktree remove --force /tmp/earlier

The program of that checkout makes each stack of configurations.py on the real engine, with plugins that do
nothing, and its own modules say what a Command would have printed there.
"""

from __future__ import annotations

import json
import lzma
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from busbar.outputs.pool import summarize
from tests.engine.earlier_states import configurations
from tests.engine.earlier_states.answers import verdict
from tests.engine.earlier_states.configurations import Configuration, OnCluster
from tests.engine.earlier_states.stack import CORE, TRAINING, Checkout
from tests.support.api_server import ApiServer, api_server

State = dict[str, Any]
"""What is kept of a stack: its file, its state, and its `cluster`, or the name of its `core`."""
JOB = "kubernetes:batch/v1:Job"
ARCHIVE = Path(__file__).parent / "states.json.xz"
_NO_GPU_OPERATOR = "    gpu_operator:\n      enabled: false\n"
_OWN_NFD = "    network_operator: {values: {nfd: {enabled: false}}}\n"
# Any salt does: the passphrase is the lab's, and nothing here is a secret.
SALT = "v1:tarYmadj0iM=:v1:QcvYX8ymfSsmC0XQ:FI+G4klu5nu8KQUSHA2rdBKL2Zc0zw=="


def main() -> None:
    """Write the states of the checkout that the command line names."""
    root = Path(sys.argv[1]).resolve()
    with tempfile.TemporaryDirectory() as folder, api_server(Path(folder)) as server:
        states = {name: _core(root, server, each) for name, each in configurations.CORE.items()}
        for name, each in configurations.TRAINING.items():
            states[name] = _training(root, server, each, states[each.core])
    scripts = {name: _script(root, name) for name in ("k3s-server", "k3s-agent")}
    text = json.dumps({"states": states, "scripts": scripts}, sort_keys=True, separators=(",", ":"))
    ARCHIVE.write_bytes(lzma.compress(text.encode(), preset=9 | lzma.PRESET_EXTREME))
    print(f"{len(states)} states, {ARCHIVE.stat().st_size} bytes")


def _core(root: Path, server: ApiServer, configuration: Configuration) -> State:
    stack = {"encryptionsalt": SALT, "config": {"busbar:cluster": configuration.content}}
    with tempfile.TemporaryDirectory() as name:
        checkout = Checkout(root, Path(name), server)
        checkout.tell(configuration.content, running=configuration.running)
        checkout.create(CORE, yaml.safe_dump(stack))
        for key, value in configuration.secrets.items():
            checkout.pulumi(CORE, "config", "set", "--secret", key, value)
        return {"cluster": configuration.content, **_made(checkout, CORE)}


def _training(root: Path, server: ApiServer, configuration: OnCluster, core: State) -> State:
    stack = {"encryptionsalt": SALT, "config": {"busbar-training:training": configuration.content}}
    with tempfile.TemporaryDirectory() as name:
        checkout = Checkout(root, Path(name), server)
        checkout.tell(core["cluster"])
        checkout.create(CORE, core["configuration"])
        checkout.load(CORE, core["state"])
        checkout.create(TRAINING, yaml.safe_dump(stack))
        return {"core": configuration.core, **_made(checkout, TRAINING)}


def _made(checkout: Checkout, place: str) -> State:
    _, error = checkout.up(place)
    if error:
        raise SystemExit(error)
    return {"configuration": checkout.configuration(place), "state": checkout.export(place)}


def _script(root: Path, name: str) -> str:
    """A script of host/ as a host runs it."""
    program = f"from busbar.hosts import scripts; print(scripts.text({name!r}))"
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=root, env={"PYTHONPATH": str(root)},
        text=True, capture_output=True, check=True,
    )  # fmt: skip
    return done.stdout


def read() -> tuple[Mapping[str, State], Mapping[str, str]]:
    """The states by name, and the scripts by name.

    The format of what was measured at that revision is not read any more: it is printed as 0.2.0 does. The
    plugin that made them kept the quantities of Jobs as numbers; the provider has always made them text. A
    site with the Network Operator and without the GPU Operator now has to say that it has its own NFD.
    """
    archive = json.loads(lzma.decompress(ARCHIVE.read_bytes()))
    measured = json.dumps(summarize(verdict()))
    for state in archive["states"].values():
        state["configuration"] = state["configuration"].replace(_NO_GPU_OPERATOR, _NO_GPU_OPERATOR + _OWN_NFD)
        for resource in state["state"]["deployment"]["resources"]:
            if "gdrdma_edges" in str(resource.get("outputs", {}).get("stdout")):
                resource["outputs"]["stdout"] = measured
            if resource["type"] == JOB:
                _write_quantities(resource)
    return archive["states"], archive["scripts"]


def _write_quantities(value: Any) -> None:
    items = list(value.items()) if isinstance(value, dict) else enumerate(value)
    for key, item in items:
        if key in ("limits", "requests"):
            value[key] = {name: str(quantity) for name, quantity in item.items()}
        elif isinstance(item, dict | list):
            _write_quantities(item)


if __name__ == "__main__":
    main()

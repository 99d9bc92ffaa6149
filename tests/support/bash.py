"""Runs functions of the host scripts in a real bash, without their `main`, so that nothing needs root."""

import subprocess
from collections.abc import Mapping
from pathlib import Path

from busbar.hosts import scripts as hostscript

# Places of the scripts, and where they are in a Box.
PLACES = {
    "STATE_DIR": "state",
    "DOWNLOADS_DIR": "state/downloads",
    "FIRST_VALUES": "state/first-values",
    "RESTORING": "state/restoring",
    "K3S": "bin/k3s",
    "K3S_CONFIG_DIR": "etc",
    "K3S_AUTH_CONFIG": "etc/auth-config.yaml",
    "KUBECONFIG_FILE": "etc/k3s.yaml",
    "K3S_DATA_DIR": "data",
    "DB": "data/server/db",
    "ETCD_DATA": "data/server/db/etcd",
    "K3S_UNITS": "units",
    "KUBELET_DIR": "kubelet",
    "KUBECACHEDIR": "kubectl",
    "DELIVERED_DIR": "delivered",
    "MOUNTS": "mounts",
    "LOCK_FILE": "lock",
    "TEARDOWN": "teardown",
    "LEAVING": "leaving",
}


def run(script: str, call: str, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """`call` after the functions of `script`; `arguments` are $1, $2, ...; `variables` its environment."""
    functions = hostscript.text(script).rstrip().removesuffix("\nmain")
    return subprocess.run(
        ["bash", "-c", f"{functions}\nset -euo pipefail\n{call}", "bash", *arguments],
        env={"PATH": "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin", "NODE_NAME": "worker-1", **variables},
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip


def line(payload: Mapping[str, str] | None) -> str:
    """The payload as a script gets it."""
    return hostscript.payload_line(payload or {}).rstrip()


def output(script: str, call: str, *arguments: str, **variables: str) -> str:
    """The stdout of a call that must succeed."""
    done = run(script, call, *arguments, **variables)
    assert done.returncode == 0, done.stderr
    return done.stdout


def programs(folder: Path, texts: Mapping[str, str]) -> None:
    """Write programs into a folder; a text without an interpreter is of bash."""
    folder.mkdir(exist_ok=True)
    for name, text in texts.items():
        (folder / name).write_text(text if text.startswith("#!") else f"#!/bin/bash\n{text}\n")
        (folder / name).chmod(0o755)


class Box:
    """A folder in which the functions of the scripts find their places; it is $ROOT for them."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._places = "".join(f"{name}={root}/{path}; " for name, path in PLACES.items())

    def write(self, path: str, text: str = "") -> Path:
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        return file

    def program(self, path: str, text: str) -> Path:
        """A program of these lines of sh."""
        file = self.write(path, f"#!/bin/sh\n{text}\n")
        file.chmod(0o755)
        return file

    def read(self, path: str) -> str:
        return (self.root / path).read_text()

    def mode(self, path: str) -> int:
        return (self.root / path).stat().st_mode & 0o7777

    def has(self, path: str) -> bool:
        return (self.root / path).exists()

    def run(
        self, script: str, call: str, payload: Mapping[str, str] | None = None, /, **variables: str
    ) -> subprocess.CompletedProcess[str]:
        """`call` after the functions of `script`, with this payload."""
        given = {"ROOT": str(self.root), "PAYLOAD": line(payload)}
        return run(script, self._places + call, **{**given, **variables})

    def output(
        self, script: str, call: str, payload: Mapping[str, str] | None = None, /, **variables: str
    ) -> str:
        """The stdout of a call that must succeed."""
        done = self.run(script, call, payload, **variables)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def error(
        self, script: str, call: str, payload: Mapping[str, str] | None = None, /, **variables: str
    ) -> str:
        """The stderr of a call that must fail, and print nothing else."""
        done = self.run(script, call, payload, **variables)
        assert (done.returncode, done.stdout) == (1, ""), done.stderr
        return done.stderr

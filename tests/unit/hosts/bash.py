"""Runs functions of the host scripts in a real bash, without their `main`, so that nothing needs root."""

from __future__ import annotations

import subprocess

from busbar.hosts import scripts as hostscript


def run(script: str, call: str, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """`call` after the functions of `script`; `arguments` are $1, $2, ...; `variables` its environment."""
    functions = hostscript.text(script).rstrip().removesuffix("\nmain")
    return subprocess.run(
        ["bash", "-c", f"{functions}\nset -euo pipefail\n{call}", "bash", *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env={"PATH": "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin", "NODE_NAME": "worker-1", **variables},
    )


def output(script: str, call: str, *arguments: str, **variables: str) -> str:
    """The stdout of a call that must succeed."""
    done = run(script, call, *arguments, **variables)
    assert done.returncode == 0, done.stderr
    return done.stdout

"""The tests of the lab's Go code, in Go: the simulator of device plugins, the replacements of K3s and NFS."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

LAB = Path(__file__).resolve().parents[2]
K3S_MODULE = LAB / "offline" / "go" / "k3s"
# Without the packages that import Kubernetes itself: those take minutes to compile, and have no tests.
K3S = [
    f"./internal/{name}"
    for name in (
        "argmap",
        "config",
        "etcd",
        "flannel",
        "images",
        "join",
        "lb",
        "nodepassword",
        "pki",
        "token",
    )
]


@pytest.mark.parametrize(
    ("module", "packages"),
    [(LAB / "go" / "devices", ["./..."]), (K3S_MODULE, K3S), (LAB / "go" / "nfs", ["./..."])],
)
def test_the_go_code_passes_its_own_tests(module: Path, packages: list[str]) -> None:
    if shutil.which("go") is None:
        pytest.skip("there is no `go` on PATH")
    done = subprocess.run(
        ["go", "test", "-trimpath", *packages],
        cwd=module,
        env={**os.environ, "CGO_ENABLED": "0"},
        text=True,
        capture_output=True,
        timeout=3600,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_no_go_test_of_k3s_is_left_out() -> None:
    tested = {f"./{file.parent.relative_to(K3S_MODULE)}" for file in K3S_MODULE.rglob("*_test.go")}
    assert tested == set(K3S)

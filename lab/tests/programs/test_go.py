"""The tests of the lab's Go code, in Go: the simulator of the operators, the replacements of K3s and NFS."""

import shutil
import subprocess

import pytest

from lab.build.go import FLAGS, MODULE, environment
from lab.offline import OFFLINE

# Without packages that have no tests: those that import Kubernetes itself take minutes to compile.
K3S = [
    f"busbar/lab/k3s/internal/{name}"
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
        "proc",
        "token",
    )
]


@pytest.mark.parametrize("packages", [["./devices/..."], K3S, ["./nfs/..."]], ids=["devices", "k3s", "nfs"])
def test_the_go_code_passes_its_own_tests(packages: list[str]) -> None:
    if shutil.which("go") is None:
        pytest.skip("there is no `go` on PATH")
    done = subprocess.run(
        ["go", "test", *FLAGS, *packages],
        cwd=MODULE,
        env=environment(),
        text=True,
        capture_output=True,
        timeout=3600,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_no_go_test_of_k3s_is_left_out() -> None:
    tested = {
        f"busbar/lab/{file.parent.relative_to(OFFLINE)}" for file in (OFFLINE / "k3s").rglob("*_test.go")
    }
    assert tested == set(K3S)

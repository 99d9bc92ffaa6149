"""Places and names of the host scripts that the program and the docs have too."""

from __future__ import annotations

from pathlib import Path

import pytest

from busbar.hosts import haproxy, k3s, scripts
from busbar.preflight.spec import SCRIPT_SECONDS
from tests.unit.hosts.bash import output

DOCS = (Path(__file__).parents[3] / "docs/hosts.md").read_text()


@pytest.mark.parametrize(
    ("script", "value", "expected"),
    [
        ("k3s-server", "$K3S_AUTH_CONFIG", k3s.AUTH_CONFIG),
        ("k3s-server", "$K3S_DATA_DIR/server/tls/server-ca.crt", haproxy.SERVER_CA_FILE),
        ("k3s-agent", "$DELIVERED_DIR", scripts.DELIVERED_DIR),
    ],
)
def test_scripts_and_program_use_the_same_places_and_names(script: str, value: str, expected: str) -> None:
    assert output(script, f'echo "{value}"') == f"{expected}\n"


@pytest.mark.parametrize(
    ("script", "names"),
    [
        ("haproxy", "STATE_DIR DELIVERED_DIR LOCK_FILE KUBECACHEDIR CONFIG KEEPALIVED"),
        ("k3s-server", "K3S K3S_CONFIG_DIR K3S_DATA_DIR"),
        ("nfs-server", "NFS_EXPORTS NFS_CONFIG NFS_STATE_DIR PACKAGE"),
        ("preflight", "INFINIBAND"),
    ],
)
def test_places_of_a_script_are_those_that_the_docs_name(script: str, names: str) -> None:
    for name in names.split():
        assert f"`{output(script, f'echo ${name}').strip()}" in DOCS, name


def test_preflight_is_waited_for_as_long_as_its_programs_may_take() -> None:
    assert int(output("preflight", "echo $((2 * NVIDIA_SMI_SECONDS + 6 * HEALTH_SECONDS))")) < SCRIPT_SECONDS

"""A host whose Node got another pod CIDR, after a rename or a deletion, gets a new network for its pods."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.hosts.bash import run

HOST = """
ip() { [[ -z $BRIDGE ]] || echo "7: cni0    inet $BRIDGE brd 10.42.3.255 scope global cni0"; }
timeout() { printf '%s' "$CIDR"; [[ $CIDR != silent ]]; }
"""


@pytest.mark.parametrize(
    ("bridge", "cidr", "fits"),
    [
        ("10.42.3.1/24", "10.42.3.0/24", True),
        ("10.42.3.65/26", "10.42.3.64/26", True),
        ("10.42.3.1/24", "10.42.4.0/24", False),
        ("10.42.3.1/24", "10.42.3.0/26", False),
        # No pod has run here yet; K3s has given no CIDR yet; IPv6.
        ("", "10.42.4.0/24", True),
        ("10.42.3.1/24", "", True),
        ("10.42.3.1/24", "fd00:42::/64", True),
    ],
)
def test_the_bridge_of_the_pods_has_the_first_address_of_the_nodes_cidr(
    bridge: str, cidr: str, fits: bool
) -> None:
    done = run("k3s-agent", HOST + "k3s_has_pod_network_of_node", BRIDGE=bridge, CIDR=cidr)
    assert (done.returncode == 0, done.stderr) == (fits, "")


def test_an_api_that_is_away_right_after_the_restart_of_the_agent_is_asked_again(tmp_path: Path) -> None:
    looks = tmp_path / "looks"
    restarted = f'timeout() {{ echo >>"{looks}"; [[ $(wc -l <"{looks}") -ge 3 ]] && echo 10.42.3.0/24; }}; '
    call = HOST + restarted + "sleep() { :; }; k3s_has_pod_network_of_node"
    done = run("k3s-agent", call, BRIDGE="10.42.3.1/24", CIDR="")
    assert (done.returncode, len(looks.read_text())) == (0, 3), done.stderr


def test_without_an_answer_of_the_api_no_pod_is_ended() -> None:
    done = run(
        "k3s-agent",
        HOST + "sleep() { SECONDS=$((SECONDS + 30)); }; k3s_has_pod_network_of_node || echo renewed",
        BRIDGE="10.42.3.1/24", CIDR="silent",
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (1, "")

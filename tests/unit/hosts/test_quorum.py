"""No server restarts while etcd needs it: etcd says who votes, and the other voters have to answer."""

from __future__ import annotations

import json
import subprocess

import pytest

from tests.unit.hosts.bash import run

# What curl gets: MEMBERS of etcd, whether the own etcd SERVES, which servers are UP now, and LATER.
HOST = r"""
unset SECONDS
SECONDS=0
systemctl() { [[ $ACTIVE == true ]]; }
sleep() { SECONDS=$((SECONDS + $1)); }
curl() {
  local url=${*: -1}
  case $url in
    */health) [[ $SERVES == true ]] && echo '{"health":"true"}' || echo '{"health":"false"}' ;;
    */member/list) printf '%s' "$MEMBERS" ;;
    */maintenance/status) printf '%s' "${STATUS:-}" ;;
    */readyz)
      ((SECONDS < 30)) || UP+=" ${LATER:-}"
      [[ " $UP " == *" ${url%:6443/readyz} "* ]] && printf ok
      ;;
  esac
}
"""


def members(*names: str, learner: str = "") -> str:
    """As etcd's gateway writes it; a member that never started has no name and no client address."""
    found = [
        {
            "ID": str(number),
            **({"name": f"{name}-0123abcd"} if name else {}),
            "peerURLs": [f"https://10.0.0.{number}:2380"],
            **({"clientURLs": [f"https://10.0.0.{number}:2379"]} if name else {}),
            **({"isLearner": True} if name and name == learner else {}),
        }
        for number, name in enumerate(names, 1)
    ]
    return json.dumps({"header": {"member_id": "1"}, "members": found}, separators=(",", ":"))


THREE = members("server-1", "server-2", "server-3")


def restart(
    up: str, *, listed: str = THREE, active: str = "true", serves: str = "true", later: str = ""
) -> subprocess.CompletedProcess[str]:
    """Whether server-1 may restart, with `up` the numbers of the servers that answer."""
    addresses = " ".join(f"https://10.0.0.{number}" for number in up.split())
    return run(
        "k3s-server",
        HOST + "keep_quorum; echo restarts",
        NODE_NAME="server-1",
        ACTIVE=active,
        SERVES=serves,
        MEMBERS=listed,
        UP=addresses,
        LATER=" ".join(f"https://10.0.0.{number}" for number in later.split()),
    )


@pytest.mark.parametrize(
    ("listed", "up"),
    [
        (THREE, "1 2 3"),
        (members("server-1"), "1"),
        # Both are needed whatever is done.
        (members("server-1", "server-2"), "1 2"),
        (members("server-1", "server-2", "server-3", "server-4", "server-5"), "1 2 3 4"),
        # A learner does not count.
        (members("server-1", "server-2", "server-3", "server-4", learner="server-4"), "1 2 3"),
    ],
)
def test_a_server_restarts_while_the_others_are_a_majority(listed: str, up: str) -> None:
    done = restart(up, listed=listed)
    assert done.stdout == "restarts\n", done.stderr


@pytest.mark.parametrize(
    ("listed", "up", "silent"),
    [
        (THREE, "1 2", "server-3-0123abcd"),
        (THREE, "1", "server-2-0123abcd server-3-0123abcd"),
        (members("server-1", "server-2"), "1", "server-2-0123abcd"),
        (members("server-1", "server-2", ""), "1 2 3", ""),
        (members("server-1", "server-2", "server-3", "server-4", "server-5"), "1 2 3", "server-4-0123abcd"),
        (members("server-1", "server-2", "server-3", "server-4", learner="server-3"), "1 2 3", "server-4-"),
    ],
)
def test_a_server_that_etcd_needs_is_not_restarted_and_the_silent_ones_are_named(
    listed: str, up: str, silent: str
) -> None:
    done = restart(up, listed=listed)
    assert (done.returncode, done.stdout) == (1, "")
    assert "k3s was not restarted: etcd would lose its quorum. Of " in done.stderr
    assert f"silent: {silent}".strip() in done.stderr
    assert "Fix: repair K3s there first" in done.stderr


def test_a_restart_waits_for_a_server_that_is_about_to_answer() -> None:
    assert restart("1 2", later="3").stdout == "restarts\n"


def test_a_server_that_answers_for_a_moment_between_crashes_does_not_count() -> None:
    crashes = "server_answers() { ((++looks % 3 == 0)); }; looks=0; "
    done = run(
        "k3s-server",
        HOST + crashes + "keep_quorum; echo restarts",
        NODE_NAME="server-1", ACTIVE="true", SERVES="true", MEMBERS=THREE, UP="",
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (1, "")


def test_a_server_that_is_not_up_restarts_at_once() -> None:
    assert restart("", active="false").stdout == "restarts\n"


@pytest.mark.parametrize(
    ("status", "serves", "voter"),
    [
        ('{"leader":"77"}', "true", True),
        ('{"leader":"77","isLearner":true}', "true", False),
        ('{"leader":"77"}', "false", False),
        ('{"version":"3.6.6"}', "true", False),
        ("", "true", False),
    ],
)
def test_a_server_votes_by_etcds_own_word(status: str, serves: str, voter: bool) -> None:
    done = run("k3s-server", HOST + "is_voter", STATUS=status, SERVES=serves)
    assert (done.returncode == 0) is voter


def test_every_script_that_restarts_a_server_asks_etcd_first() -> None:
    for script in ("k3s-server", "kubeconfig"):
        call = 'keep_quorum() { echo asked; exit 0; }; systemctl() { echo "$*"; }; note() { :; }; '
        restarts = "renew" if script == "kubeconfig" else "k3s_restart"
        assert run(script, call + restarts).stdout == "asked\n", script

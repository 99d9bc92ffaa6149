"""No server restarts while etcd needs it: etcd says who votes, and the other voters have to answer."""

import json
from subprocess import CompletedProcess

import pytest

from tests.support.bash import run

# What curl gets: MEMBERS of etcd, whether the own etcd SERVES, which servers are UP now, and LATER.
HOST = r"""
unset SECONDS
SECONDS=0
systemctl() { [[ ${ACTIVE:-true} == true ]]; }
sleep() { SECONDS=$((SECONDS + $1)); }
curl() {
  local url=${*: -1}
  case $url in
    */health) echo "{\"health\":\"${SERVES:-true}\"}" ;;
    */member/list) printf '%s' "$MEMBERS" ;;
    */maintenance/status) printf '%s' "${STATUS:-}" ;;
    */readyz)
      ((SECONDS < 30)) || UP+=" ${LATER:-}"
      url=${url#https://10.0.0.} url=${url%:6443/readyz}
      [[ " $UP " == *" $url "* ]] && printf ok
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


def servers(count: int, learner: str = "") -> str:
    return members(*(f"server-{number}" for number in range(1, count + 1)), learner=learner)


def restart(up: str, listed: str = servers(3), prelude: str = "", **values: str) -> CompletedProcess[str]:
    """The restart of server-1, with `up` the numbers of the servers that answer."""
    given = {"NODE_NAME": "server-1", "MEMBERS": listed, "UP": up, **values}
    return run("k3s-server", f"{HOST}{prelude}\nkeep_quorum; echo restarts", **given)


@pytest.mark.parametrize(
    ("listed", "up"),
    [
        (servers(3), "1 2 3"),
        (servers(1), "1"),
        (servers(2), "1 2"),  # both are needed whatever is done
        (servers(5), "1 2 3 4"),
        (servers(4, learner="server-4"), "1 2 3"),  # a learner does not count
    ],
)
def test_a_server_restarts_while_the_others_are_a_majority(listed: str, up: str) -> None:
    done = restart(up, listed)
    assert done.stdout == "restarts\n", done.stderr


@pytest.mark.parametrize(
    ("listed", "up", "silent"),
    [
        (servers(3), "1 2", "server-3-0123abcd"),
        (servers(3), "1", "server-2-0123abcd server-3-0123abcd"),
        (servers(2), "1", "server-2-0123abcd"),
        (members("server-1", "server-2", ""), "1 2 3", ""),
        (servers(5), "1 2 3", "server-4-0123abcd"),
        (servers(4, learner="server-3"), "1 2 3", "server-4-"),
    ],
)
def test_a_server_that_etcd_needs_is_not_restarted(listed: str, up: str, silent: str) -> None:
    done = restart(up, listed)
    assert (done.returncode, done.stdout) == (1, "")
    assert "k3s was not restarted: etcd would lose its quorum. Of " in done.stderr
    assert f"silent: {silent}".strip() in done.stderr
    assert "Fix: repair K3s there first" in done.stderr


def test_a_restart_waits_for_a_server_that_is_about_to_answer_and_stays_up() -> None:
    assert restart("1 2", LATER="3").stdout == "restarts\n"
    between_crashes = restart("", prelude="looks=0; server_answers() { ((++looks % 3 == 0)); }")
    assert (between_crashes.returncode, between_crashes.stdout) == (1, "")
    assert restart("", ACTIVE="false").stdout == "restarts\n", "one that is not up restarts at once"


def test_a_server_whose_etcd_does_not_name_the_voters_is_not_restarted() -> None:
    done = restart("1 2 3", listed="")
    assert (done.returncode, done.stdout) == (1, "")
    assert "etcd on this server is not responding, though k3s runs" in done.stderr


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

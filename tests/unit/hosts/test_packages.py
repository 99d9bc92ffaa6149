"""Packages of the operating systems that are supported."""

import os
import re
import subprocess

import pytest

from busbar.hosts import scripts
from tests.support.bash import Box


def test_no_script_but_packages_calls_a_package_manager() -> None:
    calls = re.compile(r"\b(apt-get|dpkg|dpkg-query|dnf|yum|zypper|rpm)\b")
    used = {path.name for path in scripts.HOST_DIR.glob("*.sh") if calls.search(path.read_text())}
    assert used == {"packages.sh"}


# A host without packages; what apt-get is called with is in the file `calls`.
HOST = """
APT_LOCK=$ROOT/apt.lock APT_ARCHIVES=$ROOT/archives
package_installed() { [[ -e $ROOT/installed ]]; }
timeout() { shift; echo "$*" >>$ROOT/calls; }
exec 9>/dev/null
"""


def calls(box: Box, call: str, prelude: str = "") -> list[str]:
    """How apt-get was called."""
    box.write("calls")
    box.output("haproxy", f"{HOST}{prelude}\n{call}")
    return box.read("calls").splitlines()


def test_a_missing_package_is_installed_once_after_an_update_of_the_lists(box: Box) -> None:
    update, change = calls(box, "package_install haproxy")
    assert update.startswith("apt-get ") and update.endswith(" update")
    assert change.startswith("apt-get ") and change.endswith(" install -y --no-install-recommends haproxy")
    # dpkg must not ask about a changed file; unattended-upgrades take minutes at the first boot.
    assert " Dpkg::Options::=--force-confold " in change and " DPkg::Lock::Timeout=300 " in change
    box.write("installed")
    assert calls(box, "package_install haproxy") == []


def test_a_package_is_downloaded_ahead_and_then_installed_without_the_network(box: Box) -> None:
    options = " install -y --no-install-recommends "
    assert calls(box, "package_download haproxy")[-1].endswith(f"{options}--download-only haproxy")
    box.write("archives/haproxy_2.8_amd64.deb")
    [call] = calls(box, "package_install haproxy")
    assert call.endswith(f"{options}--no-download haproxy")


def test_an_installation_waits_for_a_download_ahead_that_still_runs(box: Box) -> None:
    runs = "flock 6; touch $ROOT/runs; sleep 0.3; echo downloaded >>$ROOT/calls"
    downloading = f"({runs}) 6>$APT_LOCK & until [[ -e $ROOT/runs ]]; do sleep 0.02; done"
    assert calls(box, "package_install haproxy", downloading)[0] == "downloaded"


@pytest.mark.parametrize(
    ("call", "last"),
    [
        ("apt_update", "update"),
        ("apt_change 480 purge haproxy", "haproxy"),
        ("apt_run() { echo dpkg was interrupted; false; }; apt_change 480 purge", "-a"),
    ],
)
def test_a_service_of_a_package_does_not_inherit_the_lock(box: Box, call: str, last: str) -> None:
    has = "[[ ! -e /proc/self/fd/9 && ! -e /proc/self/fd/7 ]] || echo the lock"
    locks = (
        f'exec 8>&1 7>/dev/null 9>/dev/null; timeout() {{ {{ echo "${{*: -1}}"; {has}; }} >&8; false; }}; '
    )
    assert box.run("haproxy", locks + call).stdout == f"{last}\n"


LOCKED = "E: Could not get lock /var/lib/apt/lists/lock. It is held by process 812 (apt-get)"
NO_ROUTE = "E: Failed to fetch: no route to host"


@pytest.mark.parametrize(
    ("message", "failures", "looks", "said"),
    [
        (LOCKED, 3, 4, []),
        (NO_ROUTE, 9, 1, [NO_ROUTE, "apt-get update failed; trying with the existing package lists"]),
    ],
)
def test_the_lists_are_fetched_again_only_while_another_apt_holds_their_lock(
    box: Box, message: str, failures: int, looks: int, said: list[str]
) -> None:
    update = f"""
    timeout() {{
      echo >>$ROOT/looks
      (($(wc -l <$ROOT/looks) > {failures})) || {{ echo '{message}'; return 100; }}
    }}
    sleep() {{ :; }}
    exec 9>/dev/null
    apt_update"""
    done = box.run("haproxy", update)
    assert (done.returncode, len(box.read("looks"))) == (0, looks)
    assert [line.removeprefix("busbar: worker-1: ") for line in done.stderr.splitlines()] == said


# The packages of a host: apt-get refuses everything while dpkg has not finished what was interrupted.
APT = """
trap 'on_error "$?" "$LINENO" "$BASH_COMMAND"' ERR
set -E
exec 9>/dev/null
APT_LOCK=/dev/null
apt_update() { :; }
timeout() { shift; "$@"; }
apt-get() {
  [[ ! -e $ROOT/interrupted ]] || { echo "E: dpkg was interrupted, you must manually run ..."; return 100; }
  [[ -z ${BROKEN:-} ]] || { echo "E: no such package"; return 1; }
  bash -c 'echo "Unpacking haproxy ..."' && touch "$ROOT/installed"
  [[ $DEBIAN_FRONTEND == noninteractive ]]  # else debconf asks, and waits
}
dpkg() { [[ $DEBIAN_FRONTEND == noninteractive && $* == *"--configure -a" ]] && rm "$ROOT/interrupted"; }
apt_install haproxy
"""


def test_an_installation_whose_connection_breaks_is_not_ended_halfway(box: Box) -> None:
    functions = scripts.text("haproxy").rstrip().removesuffix("\nmain")
    reader, writer = os.pipe()
    os.close(reader)
    env = {**os.environ, "ROOT": str(box.root)}
    command = ["bash", "-c", f"{functions}\n{APT}"]
    subprocess.run(command, stdout=writer, stderr=writer, env=env, timeout=120, check=False)
    os.close(writer)
    assert box.has("installed")


def test_what_an_interrupted_dpkg_left_is_finished_first(box: Box) -> None:
    box.write("interrupted")
    done = box.run("haproxy", APT)
    assert (done.returncode, done.stderr.count("\n")) == (0, 1), done.stderr
    assert "dpkg --configure -a" in done.stderr and box.has("installed")


def test_a_failed_installation_shows_what_apt_said(box: Box) -> None:
    said, why = box.error("haproxy", APT, BROKEN="yes").splitlines()
    assert said == "E: no such package"
    assert "apt-get install haproxy failed" in why

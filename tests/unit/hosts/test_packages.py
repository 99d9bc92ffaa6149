"""Packages of the operating systems that are supported."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

from busbar.hosts import scripts
from busbar.hosts.supported_os import describe, install
from tests.unit.hosts.bash import output, run

CALLS = 'timeout() { shift; echo "$*"; }; '
MISSING = (
    "package_installed() { false; }; APT_LOCK=/dev/null; "
    'timeout() { shift; echo "$*" >>/dev/fd/8; }; exec 8>&1 9>/dev/null; '
)


def test_packages_are_installed_by_apt_on_the_operating_systems_that_are_named() -> None:
    assert install("ubuntu", "nfs-common") == "apt-get install nfs-common"
    assert install("plan9", "nfs-common") is None
    assert describe().startswith("ubuntu 22.04/24.04/26.04, debian 12/13")


def test_no_script_but_packages_calls_a_package_manager() -> None:
    calls = re.compile(r"\b(apt-get|dpkg|dpkg-query|dnf|yum|zypper|rpm)\b")
    used = {path.name for path in scripts.HOST_DIR.glob("*.sh") if calls.search(path.read_text())}
    assert used == {"packages.sh"}


def test_a_package_that_is_installed_is_not_installed_again() -> None:
    prelude = CALLS + "package_installed() { true; }; "
    assert output("haproxy", prelude + "package_install haproxy 2>&1") == ""


def test_a_missing_package_is_installed_after_an_update_of_the_lists() -> None:
    calls = output("haproxy", MISSING + "package_install haproxy").splitlines()
    assert [line.split()[0] for line in calls] == ["apt-get", "apt-get"]
    assert calls[0].endswith(" update")
    assert calls[1].endswith(" install -y --no-install-recommends haproxy")
    assert " Dpkg::Options::=--force-confold " in calls[1], (
        "dpkg must not ask about a changed configuration file"
    )
    assert " DPkg::Lock::Timeout=300 " in calls[1], "unattended-upgrades take minutes at the first boot"


def test_a_package_that_was_downloaded_ahead_is_installed_without_the_network(tmp_path: Path) -> None:
    (tmp_path / "haproxy_2.8_amd64.deb").touch()
    [call] = output("haproxy", f"{MISSING} APT_ARCHIVES={tmp_path}; package_install haproxy").splitlines()
    assert call.endswith(" install -y --no-install-recommends --no-download haproxy")


def test_a_package_is_downloaded_ahead_and_not_installed() -> None:
    *_, call = output("haproxy", f"{MISSING} package_download haproxy").splitlines()
    assert call.endswith(" install -y --no-install-recommends --download-only haproxy")


def test_an_installation_waits_for_a_download_ahead_that_still_runs(tmp_path: Path) -> None:
    downloading = '(flock 6; sleep 1; echo downloaded >&8) 6>"$APT_LOCK" & sleep 0.3;'
    prelude = f"{MISSING} APT_LOCK={tmp_path}/lock; {downloading}"
    calls = output("haproxy", f"{prelude} package_install haproxy").splitlines()
    assert calls[0] == "downloaded"


def test_a_service_that_a_package_starts_does_not_inherit_the_lock_of_the_step() -> None:
    has = "[[ ! -e /proc/self/fd/9 && ! -e /proc/self/fd/7 ]] || echo the lock"
    prelude = (
        "exec 8>&1 7>/dev/null 9>/dev/null; "
        + f'timeout() {{ {{ echo "${{*: -1}}"; {has}; }} >&8; false; }}; '
    )
    interrupted = "apt_run() { echo dpkg was interrupted; false; }; "
    for calls in ("apt_update", "apt_change 480 purge haproxy", f"{interrupted}apt_change 480 purge"):
        assert run("haproxy", f"{prelude}{calls}").stdout in ("update\n", "haproxy\n", "-a\n"), calls


LOCKED = "E: Could not get lock /var/lib/apt/lists/lock. It is held by process 812 (apt-get)"


def apt_update(tmp_path: Path, failures: int, message: str) -> tuple[int, str]:
    """How often the lists were fetched, and what was said, if the first `failures` calls fail."""
    calls = tmp_path / "calls"
    prelude = (
        f"timeout() {{ echo x >>{calls}; [[ $(wc -l <{calls}) -gt {failures} ]] || "
        f"{{ echo '{message}'; return 100; }}; }}; sleep() {{ :; }}; exec 9>/dev/null; "
    )
    done = run("haproxy", prelude + "apt_update")
    assert done.returncode == 0
    return len(calls.read_text().splitlines()), done.stderr


def test_the_lists_are_fetched_again_while_another_apt_holds_their_lock(tmp_path: Path) -> None:
    assert apt_update(tmp_path, 3, LOCKED) == (4, "")


def test_lists_that_cannot_be_fetched_are_no_reason_to_wait(tmp_path: Path) -> None:
    count, said = apt_update(tmp_path, 9, "E: Failed to fetch: no route to host")
    assert count == 1
    assert "no route to host" in said
    assert "trying with the existing package lists" in said


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
  bash -c 'echo "Unpacking haproxy ..."' && touch "$ROOT/installed"
  [[ $DEBIAN_FRONTEND == noninteractive ]]  # else debconf asks, and waits
}
dpkg() { [[ $DEBIAN_FRONTEND == noninteractive && $* == *"--configure -a" ]] && rm "$ROOT/interrupted"; }
"""


def test_an_installation_whose_connection_breaks_is_not_ended_halfway(tmp_path: Path) -> None:
    functions = scripts.text("haproxy").rstrip().removesuffix("\nmain")
    reader, writer = os.pipe()
    os.close(reader)
    subprocess.run(
        ["bash", "-c", f"{functions}\n{APT}\napt_install haproxy"],
        stdout=writer,
        stderr=writer,
        env={**os.environ, "ROOT": str(tmp_path)},
        timeout=120,
        check=False,
    )
    os.close(writer)
    assert (tmp_path / "installed").exists()


def test_what_an_interrupted_dpkg_left_is_finished_first(tmp_path: Path) -> None:
    (tmp_path / "interrupted").touch()
    done = run("haproxy", f"{APT}\napt_install haproxy", ROOT=str(tmp_path))
    assert (done.returncode, done.stderr.count("\n")) == (0, 1), done.stderr
    assert "dpkg --configure -a" in done.stderr
    assert (tmp_path / "installed").exists()


def test_a_failed_installation_shows_what_apt_said(tmp_path: Path) -> None:
    done = run(
        "haproxy",
        f"{APT}\ndpkg() {{ false; }}; apt-get() {{ echo 'E: no such package'; false; }}; apt_install haproxy",
    )
    assert done.returncode == 1
    said, why = done.stderr.splitlines()
    assert said == "E: no such package"
    assert "apt-get install haproxy failed" in why


def test_the_installation_checks_the_path_that_haproxy_checks() -> None:
    prelude = "CONFIG=/dev/stdin; "
    assert output("haproxy", prelude + "health_path <<<'  option httpchk GET /readyz'") == "/readyz\n"

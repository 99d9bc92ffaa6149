"""The seam to the package manager, and the list of operating systems that belongs to it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from busbar.hosts import scripts
from busbar.hosts.supported_os import (
    PACKAGE_MANAGERS,
    SUPPORTED_OS,
    OperatingSystem,
    describe,
    package_manager,
)
from tests.unit.hosts.bash import output, run

FUNCTIONS = ("installed", "install", "version", "purge")
APT_IS_THERE = "command() { [[ $2 == apt-get ]]; }; "
CALLS = 'timeout() { shift; echo "$*"; }; '


@pytest.mark.parametrize("name", PACKAGE_MANAGERS)
def test_every_package_manager_has_its_four_functions(name: str) -> None:
    for function in FUNCTIONS:
        output("haproxy", f"declare -F {name}_{function}")


def test_every_supported_operating_system_names_a_known_package_manager() -> None:
    assert {system.packages for system in SUPPORTED_OS.values()} <= set(PACKAGE_MANAGERS)
    assert package_manager("ubuntu") is PACKAGE_MANAGERS["apt"]
    assert package_manager("plan9") is None
    assert describe().startswith("ubuntu 22.04/24.04, debian 12")


@pytest.mark.parametrize(("version", "tested"), [("9", True), ("9.4", True), ("90", False), ("8.9", False)])
def test_a_minor_release_is_tested_where_its_major_release_is(version: str, tested: bool) -> None:
    assert OperatingSystem(("9",), "apt").is_tested(version) is tested


def test_no_script_but_packages_calls_a_package_manager() -> None:
    calls = re.compile(r"\b(apt-get|dpkg|dpkg-query|dnf|yum|zypper|rpm)\b")
    used = {path.name for path in scripts.HOST_DIR.glob("*.sh") if calls.search(path.read_text())}
    assert used == {"packages.sh"}


def test_a_package_that_is_installed_is_not_installed_again() -> None:
    prelude = APT_IS_THERE + CALLS + "apt_installed() { true; }; "
    assert output("haproxy", prelude + "package_install haproxy 2>&1") == ""


def test_a_missing_package_is_installed_after_an_update_of_the_lists() -> None:
    prelude = APT_IS_THERE + CALLS + "apt_installed() { false; }; "
    prelude += 'timeout() { shift; echo "$*" >>/dev/fd/8; }; exec 8>&1 9>/dev/null; '
    calls = output("haproxy", prelude + "package_install haproxy").splitlines()
    assert [line.split()[0] for line in calls] == ["apt-get", "apt-get"]
    assert calls[0].endswith(" update")
    assert calls[1].endswith(" install -y --no-install-recommends haproxy")


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


def test_a_host_without_a_supported_package_manager_is_named_with_the_fix() -> None:
    done = run("haproxy", "command() { false; }; package_version haproxy")
    assert "worker-1: no supported package manager found, expected apt-get" in done.stderr
    assert "Fix: use an operating system that busbar supports" in done.stderr


def test_the_installation_checks_the_path_that_haproxy_checks() -> None:
    prelude = "CONFIG=/dev/stdin; "
    assert output("haproxy", prelude + "health_path <<<'  option httpchk GET /readyz'") == "/readyz\n"

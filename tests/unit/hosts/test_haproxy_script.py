"""The installation of a load balancer: which configuration runs, and what a removal leaves of keepalived."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.unit.hosts.bash import run

BALANCER = """
STATE_DIR=$ROOT/busbar CONFIG=$ROOT/haproxy.cfg KEEPALIVED=$ROOT/keepalived.conf CA_FILE=$ROOT/ca.pem
for part in claim_host install_package configure_haproxy record_applied; do
  eval "$part() { :; }"
done
poll() { shift; [[ $* == "healthy 127.0.0.1" ]]; }
payload() { :; }
stop_unit() { echo "stopped $1"; }
package_purge() { echo "purged $1"; rm -f "$KEEPALIVED"; }
install_balancer | grep -v '^{' || true
"""


def installed(root: Path) -> str:
    (root / "busbar").mkdir(exist_ok=True)
    done = run("haproxy", BALANCER, ROOT=str(root), VIRTUAL_IP="", API_PORT="6443")
    assert done.returncode == 0, done.stderr
    return done.stdout


def had_keepalived(root: Path, *marks: str) -> None:
    (root / "busbar").mkdir()
    for mark in marks:
        (root / "busbar" / mark).write_text("of the site\n")
    (root / "keepalived.conf").write_text("# Written by busbar: one address\n")


def test_the_only_load_balancer_has_no_keepalived_of_busbar_any_more(tmp_path: Path) -> None:
    had_keepalived(tmp_path, "keepalived.installed")
    assert installed(tmp_path) == "stopped keepalived\npurged keepalived\n"
    assert installed(tmp_path) == "", "only once"


def test_the_only_load_balancer_has_the_configuration_of_the_site_again(tmp_path: Path) -> None:
    had_keepalived(tmp_path, "keepalived.conf.original")
    assert installed(tmp_path) == "stopped keepalived\n"
    assert (tmp_path / "keepalived.conf").read_text() == "of the site\n"
    assert list((tmp_path / "busbar").iterdir()) == []


def test_a_package_that_was_there_without_a_configuration_stays_and_does_not_run(tmp_path: Path) -> None:
    had_keepalived(tmp_path)
    assert installed(tmp_path) == "stopped keepalived\n"
    assert not (tmp_path / "keepalived.conf").exists()


def test_keepalived_of_the_site_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "keepalived.conf").write_text("of the site\n")
    assert installed(tmp_path) == ""
    assert (tmp_path / "keepalived.conf").exists()


# Programs that accept every file with a "good" in it, and units whose reload fails while $ROOT/refuse exists.
PROGRAMS = """
STATE_DIR=$ROOT/busbar CONFIG=$ROOT/haproxy.cfg KEEPALIVED=$ROOT/keepalived.conf CA_FILE=$ROOT/ca.pem
mkdir -p "$STATE_DIR"
haproxy() { grep -q good "${@: -1}"; }
keepalived() { grep -q good "${@: -1}"; }
timeout() { shift; "$@"; }
systemctl() {
  [[ $1 != reload-or-restart ]] || { echo "$*"; [[ ! -e $ROOT/refuse ]]; }
}
payload() { printf '# Written by busbar\\n%s\\n' "$NEW"; }
touch "$CA_FILE"
"""

PARTS = pytest.mark.parametrize(
    ("function", "unit", "file"),
    [
        ("configure_haproxy", "haproxy", "haproxy.cfg"),
        ("configure_keepalived", "keepalived", "keepalived.conf"),
    ],
)


def configured(root: Path, function: str, new: str = "good") -> subprocess.CompletedProcess[str]:
    return run("haproxy", PROGRAMS + function, ROOT=str(root), NEW=new)


@PARTS
def test_a_configuration_whose_reload_failed_is_loaded_by_the_next_run(
    tmp_path: Path, function: str, unit: str, file: str
) -> None:
    configured(tmp_path, function)
    (tmp_path / "refuse").touch()
    assert configured(tmp_path, function, "good and new").returncode == 1
    (tmp_path / "refuse").unlink()
    assert configured(tmp_path, function, "good and new").stdout == f"reload-or-restart {unit}\n"


@PARTS
def test_a_configuration_that_is_refused_does_not_replace_the_one_that_runs(
    tmp_path: Path, function: str, unit: str, file: str
) -> None:
    configured(tmp_path, function)
    done = configured(tmp_path, function, "bad")
    assert (done.returncode, done.stdout) == (1, "")
    assert f"{unit} refuses" in done.stderr
    assert (tmp_path / file).read_text() == "# Written by busbar\ngood\n"
    assert configured(tmp_path, function).stdout == "", "the old one is still loaded"


def test_keepalived_that_runs_for_the_site_is_refused(tmp_path: Path) -> None:
    (tmp_path / "keepalived.conf").write_text("good, of the site\n")
    done = configured(tmp_path, "VIRTUAL_IP=10.0.0.9; install_balancer")
    assert done.returncode == 1
    assert "keepalived is already running on this host with a configuration of the site" in done.stderr
    assert (tmp_path / "keepalived.conf").read_text() == "good, of the site\n"
    assert list((tmp_path / "busbar").iterdir()) == [], "nothing else was changed"


UNIT_OF_THE_SITE = """
may_remove() { :; }
removed() { :; }
remove_state() { :; }
stop_unit() { echo "stopped $1"; }
systemctl() {
  case $1 in
    is-enabled | is-active) [[ $BEFORE == *"${1#is-}"* ]] ;;
    start) echo "$*" ;;
    enable) [[ -n ${REMOVING:-} ]] && echo "$*" ;;
  esac
}
configure_haproxy
BEFORE=""
configure_haproxy
REMOVING=1
remove_balancer
"""


@pytest.mark.parametrize(
    ("before", "again"),
    [
        ("enabled active", "enable -q haproxy\nstart haproxy\n"),
        ("enabled", "enable -q haproxy\n"),
        ("active", "start haproxy\n"),
        ("", ""),
    ],
)
def test_the_haproxy_of_the_site_is_enabled_and_runs_again_if_it_did(
    tmp_path: Path, before: str, again: str
) -> None:
    (tmp_path / "haproxy.cfg").write_text("good, of the site\n")
    done = run("haproxy", PROGRAMS + UNIT_OF_THE_SITE, ROOT=str(tmp_path), NEW="good", BEFORE=before)
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"stopped haproxy\n{again}"
    assert (tmp_path / "haproxy.cfg").read_text() == "good, of the site\n"

"""The installation of a load balancer: what it leaves of keepalived when the second one was taken out."""

from __future__ import annotations

from pathlib import Path

from tests.unit.hosts.bash import run

BALANCER = """
STATE_DIR=$ROOT/busbar CONFIG=$ROOT/haproxy.cfg KEEPALIVED=$ROOT/keepalived.conf CA_FILE=$ROOT/ca.pem
for part in claim_host install_package configure_haproxy record_applied package_version; do
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

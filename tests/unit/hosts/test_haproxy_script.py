"""The installation of a load balancer: which configuration runs, and what a removal leaves of keepalived."""

import subprocess

import pytest

from tests.support.bash import Box

# Programs that accept every file with a "good" in it, and units whose reload fails while $ROOT/refuse exists.
PROGRAMS = """
CONFIG=$ROOT/haproxy.cfg KEEPALIVED=$ROOT/keepalived.conf CA_FILE=$ROOT/ca.pem VIRTUAL_IP=${VIRTUAL_IP:-}
mkdir -p "$STATE_DIR"
touch "$CA_FILE"
haproxy() { grep -q good "${@: -1}"; }
keepalived() { grep -q good "${@: -1}"; }
timeout() { shift; "$@"; }
systemctl() {
  case $1 in
    reload-or-restart) echo "$*"; [[ ! -e $ROOT/refuse ]] ;;
    is-enabled | is-active) [[ ${BEFORE-enabled active} == *"${1#is-}"* ]] ;;
    enable | start) [[ -z ${REMOVING:-} ]] || echo "$*" ;;
  esac
}
stop_unit() { echo "stopped $1"; }
package_purge() { echo "purged $1"; rm -f "$KEEPALIVED"; }
"""
FILES = {"haproxy": "haproxy.cfg", "keepalived": "keepalived.conf"}
OURS, OF_THE_SITE = "# Written by busbar\ngood\n", "good, of the site\n"


def run(box: Box, call: str, new: str = "good", **values: str) -> subprocess.CompletedProcess[str]:
    conf = f"# Written by busbar\n{new}\n"
    payload = {"haproxy_cfg": conf, "keepalived_conf": conf}
    return box.run("haproxy", PROGRAMS + call, payload, **values)


@pytest.mark.parametrize("unit", FILES)
def test_a_configuration_whose_reload_failed_is_loaded_by_the_next_run(box: Box, unit: str) -> None:
    run(box, f"configure_{unit}")
    box.write("refuse")
    assert run(box, f"configure_{unit}", "good and new").returncode == 1
    (box.root / "refuse").unlink()
    assert run(box, f"configure_{unit}", "good and new").stdout == f"reload-or-restart {unit}\n"


@pytest.mark.parametrize("unit", FILES)
def test_a_configuration_that_is_refused_does_not_replace_the_one_that_runs(box: Box, unit: str) -> None:
    run(box, f"configure_{unit}")
    done = run(box, f"configure_{unit}", "bad")
    assert (done.returncode, done.stdout) == (1, "")
    assert f"{unit} refuses" in done.stderr
    assert box.read(FILES[unit]) == OURS
    assert run(box, f"configure_{unit}").stdout == "", "the old one is still loaded"


def test_keepalived_that_runs_for_the_site_is_refused(box: Box) -> None:
    box.write("keepalived.conf", OF_THE_SITE)
    done = run(box, "install_balancer", VIRTUAL_IP="10.0.0.9")
    assert done.returncode == 1
    assert "keepalived is already running on this host with a configuration of the site" in done.stderr
    assert box.read("keepalived.conf") == OF_THE_SITE
    assert [*(box.root / "state").iterdir()] == [], "nothing else was changed"


@pytest.mark.parametrize(
    ("conf", "mark", "printed", "left"),
    [
        (OURS, "keepalived.installed", "stopped keepalived\npurged keepalived\n", None),
        (OURS, "keepalived.conf.original", "stopped keepalived\n", OF_THE_SITE),
        # The package was there without a configuration.
        (OURS, "", "stopped keepalived\n", None),
        (OF_THE_SITE, "", "", OF_THE_SITE),
    ],
)
def test_the_only_load_balancer_loses_our_keepalived(
    box: Box, conf: str, mark: str, printed: str, left: str | None
) -> None:
    box.write("keepalived.conf", conf)
    if mark:
        box.write(f"state/{mark}", OF_THE_SITE)
    parts = ("claim_host", "install_package", "configure_haproxy", "healthy", "record_applied")
    stubs = "".join(f"{part}() {{ :; }}; " for part in parts)
    install = f"{stubs} install_balancer | grep -v '^{{' || true"
    assert run(box, install).stdout == printed
    assert (box.read("keepalived.conf") if box.has("keepalived.conf") else None) == left
    assert [*(box.root / "state").iterdir()] == []
    assert run(box, install).stdout == "", "only once"


@pytest.mark.parametrize(
    ("before", "again"),
    [
        ("enabled active", "enable -q haproxy\nstart haproxy\n"),
        ("enabled", "enable -q haproxy\n"),
        ("active", "start haproxy\n"),
        ("", ""),
    ],
)
def test_the_haproxy_of_the_site_is_enabled_and_runs_as_it_did(box: Box, before: str, again: str) -> None:
    box.write("haproxy.cfg", OF_THE_SITE)
    run(box, "configure_haproxy", BEFORE=before)
    run(box, "configure_haproxy", "good and new", BEFORE="")
    removal = "may_remove() { :; }; removed() { :; }; remove_state() { :; }; remove_balancer"
    done = run(box, removal, REMOVING="yes")
    assert done.stdout == f"stopped haproxy\n{again}", done.stderr
    assert box.read("haproxy.cfg") == OF_THE_SITE


@pytest.mark.parametrize("unit", FILES)
def test_a_file_of_the_site_whose_copy_broke_off_is_there_again_after_a_removal(box: Box, unit: str) -> None:
    box.write(FILES[unit], OF_THE_SITE)
    disk_is_full = 'cp() { echo -n g >"${@: -1}"; return 1; }; '
    assert run(box, f"{disk_is_full}configure_{unit}").returncode == 1
    assert run(box, f"configure_{unit}").returncode == 0
    run(box, f'remove_part {unit} "$ROOT/{FILES[unit]}"')
    assert box.read(FILES[unit]) == OF_THE_SITE


@pytest.mark.parametrize(
    ("conf", "mark", "socket", "refused"),
    [
        (OF_THE_SITE, "", 'LISTEN 0 4096 *:443 *:* users:(("haproxy",pid=7,fd=5))', True),
        # It serves nothing, as after its installation; or is ours, also if somebody has changed its file.
        (OF_THE_SITE, "", 'LISTEN 0 128 *:22 *:* users:(("sshd",pid=8,fd=3))', False),
        (OURS, "", 'LISTEN 0 4096 *:6443 *:* users:(("haproxy",pid=7,fd=5))', False),
        (OF_THE_SITE, "haproxy.installed", 'LISTEN 0 4096 *:6443 *:* users:(("haproxy",pid=7,fd=5))', False),
        (
            OF_THE_SITE,
            "haproxy.cfg.original",
            'LISTEN 0 4096 *:443 *:* users:(("haproxy",pid=7,fd=5))',
            False,
        ),
    ],
)
def test_haproxy_that_others_run_after_preflight_is_left_alone(
    box: Box, conf: str, mark: str, socket: str, refused: bool
) -> None:
    box.write("haproxy.cfg", conf)
    if mark:
        box.write(f"state/{mark}")
    stubs = f"ss() {{ echo '{socket}'; }}; claim_host() {{ touch $ROOT/claimed; exit; }}; "
    done = run(box, f"{stubs}install_balancer")
    says = (
        "haproxy already serves on this host, with a configuration that busbar did not write; no changes made"
    )
    assert (done.returncode, says in done.stderr, box.has("claimed")) == (refused, refused, not refused)


@pytest.mark.parametrize(
    ("unit", "left", "printed"),
    [
        *((unit, "good, of others\n", "") for unit in FILES),
        *((unit, OURS, f"stopped {unit}\npurged {unit}\n") for unit in FILES),
        # A removal that was interrupted has written it.
        ("haproxy", "of the package\n", "stopped haproxy\npurged haproxy\n"),
    ],
)
def test_a_removal_leaves_what_others_configured_since(box: Box, unit: str, left: str, printed: str) -> None:
    box.write(FILES[unit], "of the package\n")
    box.write(f"state/{unit}.installed")
    run(box, f"configure_{unit}")
    box.write(FILES[unit], left)
    done = run(box, f'remove_part {unit} "$ROOT/{FILES[unit]}"')
    assert (done.stdout, box.read(FILES[unit]) if not printed else left) == (printed, left)
    says = f"{unit} stays: {box.root}/{FILES[unit]} is no longer the one that busbar wrote"
    assert (says in done.stderr) is (not printed)

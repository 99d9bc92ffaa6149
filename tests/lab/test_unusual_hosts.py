"""Hosts with unusual shells, mounts, links and flags: an update works there, or names what is wrong."""

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol

import pytest

from lab.hosts.nspawn import SHARED, SHARED_MOUNT
from tests.support.lab import UP_SECONDS, Lab, eventually

pytestmark = pytest.mark.drill

WORKER = "worker-2"
CONFIG = "/etc/rancher/k3s/config.yaml"
FISH = ("fish", "fish-common", "libpcre2-32-0")


class Oddity(Protocol):
    """Makes the worker unusual, and usual again."""

    def __call__(self, lab: Lab) -> AbstractContextManager[None]: ...


@contextmanager
def a_login_with_fish(lab: Lab) -> Iterator[None]:
    folder = SHARED / "fish"
    folder.mkdir(exist_ok=True)
    words = ("apt-get", "download", "-qq", "-o", "APT::Sandbox::User=root", *FISH)
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True, timeout=300, check=False)
    if done.returncode != 0:
        pytest.skip(f"apt-get does not download Debian's fish: {done.stderr}")
    shell = "sed -i 's|^\\(root:.*:\\)[^:]*$|\\1{}|' /etc/passwd"
    lab.ssh(
        WORKER,
        f"for deb in {SHARED_MOUNT}/fish/*.deb; do dpkg -x $deb /; done; {shell.format('/usr/bin/fish')}",
    )
    try:
        assert lab.ssh(WORKER, "echo $FISH_VERSION").strip()
        yield
    finally:
        lab.ssh(WORKER, shell.format("/bin/bash"))


@contextmanager
def a_tmp_without_programs(lab: Lab) -> Iterator[None]:
    lab.ssh(WORKER, "mount -t tmpfs -o noexec,nosuid,nodev,mode=1777 tmpfs /tmp")
    try:
        yield
    finally:
        lab.ssh(WORKER, "umount /tmp")


@contextmanager
def a_linked_configuration(lab: Lab) -> Iterator[None]:
    lab.ssh(
        WORKER, "systemctl stop k3s-agent && mv /etc/rancher /srv/rancher && ln -s /srv/rancher /etc/rancher"
    )
    lab.ssh(WORKER, "systemctl start k3s-agent")
    try:
        yield
        assert lab.ssh(WORKER, "readlink /etc/rancher").strip() == "/srv/rancher"
    finally:
        lab.ssh(WORKER, "systemctl stop k3s-agent && rm /etc/rancher && mv /srv/rancher /etc/rancher")
        lab.ssh(WORKER, "systemctl start k3s-agent")


def converged(lab: Lab) -> subprocess.CompletedProcess[str]:
    words = ("up", "dev", "--yes", "--skip-preview", "--converge", WORKER)
    return lab.run(sys.executable, "-m", "busbar", *words, seconds=UP_SECONDS)


def row(lab: Lab) -> str:
    """What `busbar verify` says of the worker."""
    done = lab.run(sys.executable, "-m", "busbar", "verify", "dev", "--json")
    found = [each for each in json.loads(done.stdout)["drift"] if each["host"] == WORKER]
    return "\n".join(f"{each['kind']}: {each['what']}" for each in found)


@pytest.mark.parametrize(
    "oddity",
    [a_login_with_fish, a_tmp_without_programs, a_linked_configuration],
    ids=lambda each: each.__name__,
)
def test_a_changed_file_is_named_and_converged(lab: Lab, oddity: Oddity) -> None:
    with oddity(lab):
        lab.ssh(WORKER, f"echo '# by hand' >> {CONFIG}")
        assert row(lab) == f"drift: {CONFIG} was changed"
        done = converged(lab)
        assert done.returncode == 0, done.stdout + done.stderr
        assert row(lab) == ""


def test_an_immutable_file_ends_the_update_with_its_name(lab: Lab) -> None:
    lab.ssh(WORKER, f"echo '# by hand' >> {CONFIG}; chattr +i {CONFIG}")
    try:
        done = converged(lab)
    finally:
        lab.ssh(WORKER, f"chattr -i {CONFIG}")
    text = done.stdout + done.stderr
    assert done.returncode == 1 and CONFIG in text, text
    # The new file that could not take the place of the old one stays beside it; K3s reads no such name, but
    # an update notes it as applied.
    lab.ssh(WORKER, f"rm -f {CONFIG}.??????")
    again = converged(lab)
    assert (again.returncode, row(lab)) == (0, ""), again.stdout + again.stderr


def test_a_hung_sshd_is_named_and_keeps_no_command(lab: Lab) -> None:
    # It runs again by itself: nobody could log in to end that.
    main = "$(systemctl show -P MainPID ssh)"
    lab.ssh(WORKER, f'systemd-run -q --on-active=40 bash -c "kill -CONT {main}"; kill -STOP {main}')
    found = row(lab)
    print(found)
    assert found.startswith("unknown: "), found

    def is_back() -> bool:
        return lab.run(sys.executable, "-m", "lab", "ssh", WORKER, "true").returncode == 0

    eventually(is_back, 90, "sshd accepts logins")
    assert row(lab) == ""


def test_a_dead_proxy_of_the_login_is_named_with_its_file(lab: Lab) -> None:
    lab.ssh(
        WORKER,
        "cp /etc/environment /root/environment; echo https_proxy=http://127.0.0.1:9 >> /etc/environment",
    )
    try:
        done = lab.run(sys.executable, "-m", "busbar", "preflight", "dev", "--json")
    finally:
        lab.ssh(WORKER, "mv /root/environment /etc/environment")
    found = [each for each in json.loads(done.stdout)["findings"] if "proxy" in each["what"]]
    [proxy] = found
    assert (proxy["host"], proxy["kind"], done.returncode) == (WORKER, "warning", 0)
    assert "does not reach the proxy 127.0.0.1:9, which /etc/environment names" in proxy["what"]


def test_conditions_of_others_are_named_with_who_has_set_them(lab: Lab) -> None:
    kernel = {"type": "KernelDeadlock", "status": "True", "reason": "DockerHung", "message": "blocked"}
    nvlink = {
        "type": "GpuNvlinkWatch",
        "status": "True",
        "reason": "GpuNvlinkWatchIsNotHealthy",
        "message": "x;",
    }

    def patch(*conditions: dict[str, str]) -> None:
        text = json.dumps({"status": {"conditions": conditions}})
        lab.kubectl(f"patch node {WORKER} --subresource=status --type=strategic -p '{text}'")

    patch(kernel, nvlink)
    try:
        assert set(row(lab).splitlines()) == {
            "site: condition KernelDeadlock of kubectl-patch (blocked)",
            "site: condition GpuNvlinkWatch of NVSentinel (x)",
        }
    finally:
        patch(*({"type": each["type"], "$patch": "delete"} for each in (kernel, nvlink)))
    assert row(lab) == ""


def test_the_verdict_of_the_bring_up_is_an_event_on_each_worker(lab: Lab) -> None:
    selector = "involvedObject.kind=Node,reason=NcclPass"
    events = json.loads(lab.kubectl(f"get events -n default --field-selector {selector} -o json"))["items"]
    assert {each["involvedObject"]["name"] for each in events} >= {"worker-1", "worker-2"}
    assert " on 2 nodes: pass, " in events[0]["message"]
    assert "NcclPass" in lab.kubectl(f"describe node {WORKER}")

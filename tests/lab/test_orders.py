"""Orders of an ordinary day that surprise: machines swapped or moved, a power cut, two commands at once."""

import json
import re
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from busbar.outputs import ClusterOutputs
from lab.hosts import nspawn
from lab.topology import find, hosts
from tests.lab.test_day2_machines import _first_address, _install_anew
from tests.support.lab import PROJECT, RECOVERY_SECONDS, SERVERS, UP_SECONDS, Change, Lab, eventually
from tests.support.own_stack import OwnStack

pytestmark = pytest.mark.drill

# Of one host each: it stays a second address of its machine.
ADDRESSES = {"worker-2": "10.77.0.132", "server-3": "10.77.0.133"}
BUSBAR = (sys.executable, "-m", "busbar")


def busbar(lab: Lab, *words: str) -> tuple[int, str]:
    """Exit code, and both outputs as one line."""
    began = time.monotonic()
    done = lab.run(*BUSBAR, *words, seconds=UP_SECONDS)
    text = done.stdout + done.stderr
    print(f"$ busbar {' '.join(words)}: {done.returncode}, {time.monotonic() - began:.1f} s\n{text}")
    return done.returncode, " ".join(text.split())


def as_applied(lab: Lab) -> bool:
    return busbar(lab, "verify", "dev")[0] == 0


@pytest.fixture
def stack(lab: Lab, tmp_path: Path) -> Iterator[OwnStack]:
    yield OwnStack(PROJECT, tmp_path / "project", lab.environment)
    assert busbar(lab, "up", "dev", "--yes", "--skip-preview")[0] == 0


def test_after_a_power_cut_of_all_hosts_the_cluster_is_as_applied(lab: Lab) -> None:
    for host in hosts():
        nspawn.clean_stale_state(host)
    code, said = busbar(lab, "verify", "dev")
    assert code == 1 and "Traceback" not in said
    lab.boot()
    lab.await_voters()
    eventually(lambda: as_applied(lab), RECOVERY_SECONDS, "the cluster is as applied")


def test_two_workers_with_each_others_address_are_refused_by_name(lab: Lab, changed: Change) -> None:
    nodes = lab.uids("nodes")

    def swap(*keys: str) -> Any:
        def change(cluster: dict[str, Any]) -> None:
            one, other = cluster["hosts"]["workers"]
            for key in keys:
                one[key], other[key] = other[key], one[key]

        return change

    for keys in (("address",), ("address", "host_key")):
        said = " ".join(changed(swap(*keys), fails=True).split())
        assert "worker-1" in said and "worker-2" in said and "no changes made" in said, said
        print(said[-3000:])
    assert lab.uids("nodes") == nodes


@pytest.fixture
def moved(lab: Lab, request: pytest.FixtureRequest) -> Iterator[str]:
    """A host whose machine has another address until the test has ended."""
    name = request.param
    old, new = find(name).address, ADDRESSES[name]
    lab.ssh(name, _first_address(new, old))
    yield name
    lab.ssh(name, _first_address(old, new))


def at_new_address(group: str, name: str) -> Any:
    def change(cluster: dict[str, Any]) -> None:
        [host] = [each for each in cluster["hosts"][group] if each["name"] == name]
        host["address"] = ADDRESSES[name]

    return change


@pytest.fixture
def as_before(changed: Change) -> Change:
    """As `changed`: its last update comes after the machine has its first address again."""
    return changed


@pytest.mark.parametrize("moved", ["worker-2"], indirect=True)
def test_a_worker_whose_machine_has_another_address_is_used_there(
    lab: Lab, as_before: Change, moved: str
) -> None:
    before = lab.uids("nodes")
    as_before(at_new_address("workers", moved))
    assert lab.uids("nodes") == before
    found = lab.kubectl(f"get node {moved} -o jsonpath='{{.status.addresses[*].address}}'")
    assert ADDRESSES[moved] in found
    assert lab.conditions(moved)["Ready"] == "True"


@pytest.mark.parametrize("moved", ["server-3"], indirect=True)
def test_a_server_whose_machine_has_another_address_is_refused_before_anything_is_changed(
    lab: Lab, as_before: Change, moved: str
) -> None:
    said = " ".join(as_before(at_new_address("servers", moved), fails=True).split())
    assert f"the address of a server in etcd, {find(moved).address}, cannot be changed" in said
    assert "no changes made" in said
    assert lab.voters() == set(SERVERS)


def test_an_update_completes_what_a_targeted_destroy_has_removed(lab: Lab) -> None:
    done = lab.pulumi("stack", "export", "--stack", "dev")
    urns = [each["urn"] for each in json.loads(done.stdout)["deployment"]["resources"]]
    [removal] = [urn for urn in urns if urn.endswith("-removal@worker-2")]
    words = ("--yes", "--skip-preview", "--stack", "dev", "--target", removal, "--target-dependents")
    done = lab.pulumi("destroy", *words)
    print(done.stdout, done.stderr)
    assert done.returncode == 0
    assert lab.ssh("worker-2", "ls -d /var/lib/busbar 2>/dev/null || true") == ""
    code, said = busbar(lab, "up", "dev", "--yes", "--skip-preview")
    assert code == 0 and "PASS" in said
    assert set(lab.uids("nodes")) == {*SERVERS, "worker-1", "worker-2"}
    assert as_applied(lab)


def test_beside_an_update_another_change_is_refused_and_a_drain_stays(lab: Lab, stack: OwnStack) -> None:
    stack.configure(lambda cluster: cluster["pools"]["lab"].update(labels={"drill": "1"}))
    update = stack.start_up()
    try:
        eventually(lambda: "preflight" in update.printed, 120, "the update has begun")
        changes = (("destroy", "dev", "--yes"), ("up", "dev", "--yes", "--skip-preview"))
        with ThreadPoolExecutor() as at_once:
            for code, said in at_once.map(lambda words: busbar(lab, *words), changes):
                # Either the lock of the update is seen first, or the state that it has written since.
                assert (code, "no changes made" in said) == (1, True)
        assert busbar(lab, "drain", "dev", "worker-1")[0] == 0
        assert update.ended_within(UP_SECONDS)
        assert lab.kubectl("get node worker-1 -o jsonpath='{.spec.unschedulable}'").strip() == "true"
    finally:
        update.kill()
        print(update.printed)
        busbar(lab, "uncordon", "dev", "worker-1")


def test_hosts_that_were_all_installed_anew_are_a_cluster_again_by_the_printed_commands(lab: Lab) -> None:
    began = datetime.now(UTC)
    for host in hosts():
        nspawn.stop(nspawn.folder(host))
    lab.boot()
    code, said = busbar(lab, "up", "dev", "--yes", "--skip-preview")
    assert (code, "busbar verify dev" in said, "PULUMI_K8S" in said) == (1, True, False)
    code, said = busbar(lab, "verify", "dev")
    assert (code, "no server has K3s" in said, "CoreDNS" in said) == (1, True, False)
    first, second = re.findall(r"busbar (up dev --converge [\w,-]+)", said)
    assert busbar(lab, *first.split(), "--yes", "--skip-preview")[0] == 1
    assert busbar(lab, *second.split(), "--yes", "--skip-preview")[0] == 0
    assert as_applied(lab)
    # The verdict of the lost cluster says nothing about this one.
    measured_at = ClusterOutputs.from_dict(lab.outputs()).nccl["lab"].measured_at
    assert measured_at and measured_at > began


def test_a_member_that_somebody_has_removed_from_etcd_comes_back_with_its_data_aside(lab: Lab) -> None:
    database = "/var/lib/rancher/k3s/server/db"
    aside = lab.ssh("server-2", f"ls -d {database}/etcd-old-* 2>/dev/null || true").split()
    members = json.loads(lab.etcd("server-1", "/v3/cluster/member/list"))["members"]
    [member] = [each["ID"] for each in members if each["name"].startswith("server-2")]
    lab.etcd("server-1", "/v3/cluster/member/remove", json.dumps({"ID": member}))
    # K3s runs on without its member until somebody starts it again (k3s-io/k3s pkg/etcd/etcd.go).
    named = "server-2 server etcd has removed this server"
    eventually(lambda: named in busbar(lab, "verify", "dev")[1], 30, "server-2 is named")
    assert busbar(lab, "up", "dev", "--yes", "--skip-preview", "--converge", "server-2")[0] == 0
    lab.await_voters()
    assert len(lab.ssh("server-2", f"ls -d {database}/etcd-old-*").split()) == len(aside) + 1
    assert as_applied(lab)


def test_hosts_that_were_dead_during_a_destroy_are_refused_until_they_are_cleaned(lab: Lab) -> None:
    dead = {"server-3": ("k3s-server", "k3s"), "worker-2": ("k3s-agent", "k3s-agent")}
    for name in dead:
        nspawn.clean_stale_state(find(name))
    try:
        code, said = busbar(lab, "destroy", "dev", "--yes")
        assert code == 0
        for name in dead:
            assert f"could not be cleaned: {name}" in said
        assert "busbar docs hosts 'By hand'" in said
    finally:
        lab.boot()
    code, said = busbar(lab, "up", "dev", "--yes", "--skip-preview")
    assert code == 1
    for name, (script, unit) in dead.items():
        assert f"could not be cleaned: {name}" in said
        assert f"{name}: belongs to another cluster" in said
        _install_anew(lab, name, script, unit)
    for note in (PROJECT / ".busbar/dev/uncleaned").iterdir():
        note.unlink()
    code, said = busbar(lab, "up", "dev", "--yes", "--skip-preview")
    assert code == 0 and "PASS" in said
    assert as_applied(lab)

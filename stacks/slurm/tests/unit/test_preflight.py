"""What preflight finds wrong for Slurm: each case changes one fact of a good host."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
import yaml

from busbar.finding import Finding
from busbar.preflight.facts import HostRecord
from busbar.preflight.spec import Answer
from busbar.preflight.survey import Outcome
from stacks.slurm.package import preflight
from stacks.slurm.package.preflight import Spec
from stacks.slurm.tests.support import ALSO, compute, configured, reported, slurm, spec
from stacks.slurm.tests.support import host as machine
from tests.support.reports import CLOCK, hca

CTL, LOGIN, GPU_1, GPU_2 = preflight.hosts_of(slurm())


def found(
    also: dict[str, Any] | None = None, *, host: Any = GPU_1, of: Spec | None = None, **changes: Any
) -> list[str]:
    """`LEVEL what. Fix: fix` of every finding."""
    checks = preflight.check(of or spec(), host, reported(also, **changes), CLOCK)
    return [f"{each.kind} {each.what}. Fix: {each.fix}" for each in checks]


# The finding, what differs in what Slurm's part of the survey reports, and in what the core's part reports.
ERRORS = yaml.safe_load("""
- [error is a node of a Kubernetes cluster (k3s-agent), {}, {active_units: [k3s-agent]}]
- [error is a node of a Kubernetes cluster (K3s has run here), {}, {k3s_data: true}]
- [error is a K3s agent of another cluster (busbar/prod/worker-1), {role: K3s agent},
   {owner: {owner: busbar/prod/worker-1, install_id: ffffffffffffffff}}]
- [error belongs to another cluster (busbar-slurm/b/slurm-compute@gpu-1), {role: Slurm slurmd host},
   {owner: {owner: busbar-slurm/b/slurm-compute@gpu-1, install_id: ffffffffffffffff}}]
- ["error has a Slurm that busbar did not install: /etc/slurm/slurm.conf",
   {foreign: /etc/slurm/slurm.conf}, {}]
- [error TCP port 6818 of slurmd is in use by nc, {}, {listening: [{port: 6818, process: nc}]}]
- ["error Slurm 22.05.8-4+deb12u3 of debian 12 is too old: auth/slurm and sackd came with 23.11",
   {available: 22.05.8-4+deb12u3}, {os: debian, os_version: "12"}]
- [warning has no Slurm in its package lists yet, {available: "", installed: ""}, {}]
- [error has no enroot*.deb in , {missing_debs: enroot*.deb}, {}]
- [error has no all_reduce_perf of nccl-tests on PATH or in /opt/nccl_tests/build,
   {missing_programs: all_reduce_perf}, {}]
- ["error 1 device files /dev/nvidia*, expected 8", {gpu_minors: [0]}, {}]
- [error no HCA in /sys/class/infiniband, {}, {hcas: []}]
- [error /tmp has no room for a file of 1 MB, {}, {tmp_is_writable: false}]
- [error 0.0 GB free on /, {}, {disks: [{path: /, free_bytes: 5}]}]
- ["error missing tools: flock", {}, {missing_tools: [flock]}]
""")
OF_CLOCK = ["error clock is 60 s ahead of this machine's", {}, {"epoch": CLOCK[1] + 60}]


NO_GPU: dict[str, Any] = {"gpus": None, "fabric_manager": None, "gdr": None, "hcas": []}
DEBS = spec(slurm(packages="/srv/debs"))
NO_USER = "error has no user slurm, which SchedMD's packages expect"
IN_QUARANTINE = spec(slurm(hosts=compute({"quarantine": "RMA"}, {})))
NFS = spec(slurm(home={"nfs": {"folder": "/srv/home", "min_free_gb": 10}}))
FOLDER = {
    "kind": "folder", "foreign_exports": [], "system_disk": False, "free_bytes": 10**12,
    "writable": False, "managed": False,
}  # fmt: skip
CLIENT = {"installed": True, "source": GPU_1.address}


def listening(*ports: int, process: str = "nginx") -> dict[str, Any]:
    return {"listening": [{"port": port, "process": process} for port in ports]}


def user(name: str, **values: Any) -> Spec:
    return spec(slurm(users={"accounts": {name: {"uid": 5001}}, **values}))


ADA, OF_OS = user("ada"), "rename it in users.accounts: {} is an account of the operating system"
# A host, the request, what differs from a good one's report for Slurm and for the core, and the findings.
HOSTS: list[tuple[Any, Spec, dict[str, Any], dict[str, Any], list[str]]] = [
    *((GPU_1, spec(), also, changes, [expected]) for expected, also, changes in [*ERRORS, OF_CLOCK]),
    (GPU_1, spec(), {}, {}, []),
    (CTL, spec(), {}, NO_GPU, []),
    (GPU_1, spec(), {"available": "23.11.0-1"}, {"disks": [{"path": "/", "free_bytes": 10**9}]}, []),
    (GPU_1, IN_QUARANTINE, {"gpu_minors": []}, {"hcas": []}, ["warning no HCA", "warning 0 device files"]),
    # An installed Slurm counts, unless it comes from a folder.
    (GPU_1, spec(), {"installed": "24.11.5-4", "available": ""}, {}, []),
    (GPU_1, DEBS, {"installed": "24.11.5", "available": "23.02.7-1"}, {},
     ["error Slurm 23.02.7-1 of ubuntu 24.04 is too old", NO_USER]),
    (GPU_1, DEBS, {"available": ""}, {}, ["error has no slurm-smd-client_*.deb in /srv/debs", NO_USER]),
    # slurmctld, which is on the controller alone, keeps its state for one name.
    (CTL, spec(), {"cluster": "site"}, NO_GPU, []),
    (GPU_1, spec(), {"cluster": "former"}, {}, []),
    (CTL, spec(), {"cluster": "former"}, NO_GPU,
     ["error name cannot be changed: slurmctld's state is of cluster former, the file says site. "
      "Fix: write back name: former; "]),
    # A daemon may listen where it should.
    (GPU_1, spec(), {}, listening(6818, process="slurmd"), []),
    (LOGIN, spec(), {}, {**NO_GPU, **listening(6817)}, []),
    (CTL, spec(), {}, {**NO_GPU, **listening(6817, 6819)},
     [f"error TCP port {port} is in use by nginx" for port in ("6817 of slurmctld", "6819 of slurmdbd")]),
    (CTL, spec(), {}, {**NO_GPU, "unresolved": ["login", "gpu-1"]},
     ["warning cannot resolve login, gpu-1: slurmctld waits"]),
    (LOGIN, NFS, {}, {"nfs_client": {**CLIENT, "source": LOGIN.address}}, []),
    (GPU_1, NFS, {}, {"nfs_client": CLIENT}, []),
    (GPU_1, NFS, {}, {"nfs_client": {**CLIENT, "installed": False}}, ["error mount.nfs is not installed"]),
    (LOGIN, NFS, {}, {"nfs_client": {**CLIENT, "source": "10.9.9.9"}},
     ["error reaches the NFS server 10.0.0.1 from its address 10.9.9.9"]),
    # Root writes in the folder of the homes.
    (CTL, NFS, {}, {"nfs_folder": FOLDER}, []),
    (CTL, NFS, {}, {"nfs_folder": {**FOLDER, "system_disk": True}},
     ["error /srv/home is on the disk of the operating system: jobs can fill it, and a worker that forges "
      "file handles reaches other files there. Fix: mount a disk there, or set home.nfs.allow_system_disk"]),
    # A user has one uid on every host.
    (GPU_1, ADA, {"users": {"ada": ["5001", "ada"]}}, {}, []),
    (GPU_1, ADA, {"users": {"ada": ["", ""]}}, {}, []),
    (GPU_1, user("ada", create=False), {"users": {"ada": ["", ""]}}, {}, ["error has no user ada"]),
    (GPU_1, ADA, {"users": {"ada": ["", "eve"]}}, {}, ["error uid 5001 of ada belongs to eve"]),
    *(
        (GPU_1, user(name), {"users": {name: [uid, ""]}}, {},
         [f"error uid of {name} is {uid}, expected 5001. Fix: {fix}"])
        for name, uid, fix in [
            *((name, uid, OF_OS.format(name))
              for name, uid in (("www-data", "33"), ("munge", "64030"), ("sync", "65534"))),
            *(("ada", uid, f"set users.accounts.ada.uid: {uid}, or usermod -u 5001 ada")
              for uid in ("1000", "59999", "65536", "100234")),
        ]
    ),
]  # fmt: skip


@pytest.mark.parametrize(("host", "of", "also", "changes", "expected"), HOSTS)
def test_a_host_has_the_findings_of_its_role(
    host: Any, of: Spec, also: dict[str, Any], changes: dict[str, Any], expected: list[str]
) -> None:
    said = found(also, host=host, of=of, **changes)
    assert len(said) == len(expected), said
    assert all(each.startswith(start) for each, start in zip(said, expected, strict=True)), said


@pytest.mark.parametrize(
    ("of", "programs"),
    [
        ({}, "all_reduce_perf"),
        ({"validation": {"image": "/images/nccl-tests.sqsh"}, "container_packages": "/srv/debs"}, ""),
        ({"validation": {"enabled": False}}, ""),
        ({"validation": {"env": {"PATH": "/sw/bin:/usr/bin"}}}, ""),
    ],
)
def test_compute_hosts_need_the_programs_of_a_measurement(of: dict[str, Any], programs: str) -> None:
    of_host = spec(slurm(**of))
    assert of_host.values(GPU_1)["PROGRAMS"] == programs
    assert of_host.values(LOGIN)["PROGRAMS"] == ""


def across(change: dict[str, dict[str, Any]], of: Spec | None = None) -> list[str]:
    of = of or spec()
    records = {}
    for host in of.hosts:
        also = {"hostname": host.name, "machine": host.name, **change.get(host.name, {})}
        machine = also.pop("machine")
        records[host.name] = HostRecord("x", machine, preflight.facts_of(of, host, reported(also)))
    return [f"{each.host}: {each.what}" for each in preflight.check_across(of, records)]


SHARED = spec(slurm(home={"shared": True}))


# The finding, what hosts report that differs from a good one's, and whether the homes are shared.
ACROSS = yaml.safe_load("""
- [null, {}, false]
- [null, {login: {slurm_ids: "64030:64030"}}, false]  # Debian's package makes the user with this id.
- ["gpu-2: uid:gid of slurm is 999:999, on ctl 64030:64030", {gpu-2: {slurm_ids: "999:999"}}, false]
- ["gpu-1: has the machine-id of ctl: one machine listed twice, or a cloned image",
   {gpu-1: {machine: ctl}}, false]
- ["gpu-1: has the host name ctl, as ctl, and slurmd is known by it", {gpu-1: {hostname: ctl}}, false]
- [null, {gpu-1: {home: ext4 /dev/sda}}, false]
- ["gpu-1: /home is on ext4 /dev/sda, on ctl nfs4 nas:/home", {gpu-1: {home: ext4 /dev/sda}}, true]
- ["ctl: /home is on ext4 /dev/sda2 on every host, which is a disk of each host",
   {ctl: &disk {home: ext4 /dev/sda2}, login: *disk, gpu-1: *disk, gpu-2: *disk}, true]
- [null, {ctl: &bound {home: "ext4 /dev/sda2[/srv]"}, login: *bound, gpu-1: *bound, gpu-2: *bound}, true]
- ["gpu-1: Slurm 25.05.1 is newer than the controller's 24.11.5-4", {gpu-1: {installed: 25.05.1}}, false]
- [null, {ctl: {installed: 25.05.1}}, false]
- ["gpu-1: Slurm 24.05.2 is more than 3 releases behind the controller's",
   {ctl: {installed: 26.05.1}, login: {installed: 25.05.1}, gpu-1: {installed: 24.05.2}}, false]
""")


@pytest.mark.parametrize(("expected", "change", "is_shared"), ACROSS)
def test_hosts_are_compared_with_others(
    expected: str | None, change: dict[str, Any], is_shared: bool
) -> None:
    assert across(change, SHARED if is_shared else None) == ([expected] if expected else [])


def test_rails_and_settings_that_differ_from_those_of_another_compute_host_are_named() -> None:
    of, records = spec(), {}
    for host, mtu, size in ((GPU_1, "4096", "4096"), (GPU_2, "2048", "512")):
        hcas = [hca(f"mlx5_{number}", active_mtu=mtu) for number in range(8)]
        settings = {each["pci"]: {"MaxReadReq": size} for each in hcas}
        report = reported({"hostname": host.name}, hcas=hcas, pci_settings=settings)
        records[host.name] = HostRecord("x", host.name, preflight.facts_of(of, host, report))
    sizes, mtus = sorted(f"{each.host} {each.what}" for each in preflight.check_across(of, records))
    assert sizes.startswith("gpu-2 has PCI settings of rails MaxReadReq 512, most workers of pool h100 have")
    assert mtus.startswith("gpu-2 has active MTU 2048 on mlx5_0, mlx5_1, mlx5_2, mlx5_3 and 4 more, most")


@pytest.fixture
def survey(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Outcome]:
    """The survey of hosts, of which GONE is not responding, or REFUSES the login.

    ALSO: host -> what differs in its report.
    """

    def run(
        of: Spec,
        before: Any,
        gone: str = "",
        *,
        is_installed: bool = False,
        also: Any = None,
        refuses: bool = False,
    ) -> Outcome:
        async def answer(_: Any, hosts: Any, __: Any) -> dict[str, Answer | Finding]:
            answers: dict[str, Answer | Finding] = {}
            for name in (host.name for host in hosts):
                report = reported({"hostname": name, **(also or {}).get(name, {})}, machine=name)
                answers[name] = Answer(report, CLOCK)
            if gone:
                answers[gone] = Finding((gone,), "no answer", "look", unreachable=not refuses)
            return answers

        monkeypatch.setattr(preflight, "query_all", answer)
        return asyncio.run(preflight.survey(of, before, is_installed=is_installed))

    return run


def test_a_host_that_passed_is_not_asked_again_until_what_is_required_changes(survey: Any) -> None:
    first = survey(spec(), {})
    assert (first.errors, first.queried) == ([], 4)
    assert survey(spec(), first.records).queried == 0
    assert survey(SHARED, first.records).queried == 4


@pytest.mark.parametrize(
    ("name", "passed_before", "is_installed", "is_left_out"),
    [
        ("gpu-1", False, False, False),
        ("gpu-1", True, False, True),
        # A measurement of a running cluster goes on without it.
        ("gpu-1", False, True, True),
        ("ctl", True, False, False),
    ],
)
def test_a_compute_host_that_passed_before_or_is_installed_is_left_out_and_no_other(
    survey: Any, name: str, passed_before: bool, is_installed: bool, is_left_out: bool
) -> None:
    before = survey(spec(), {}).records if passed_before else {}
    outcome = survey(SHARED, before, name, is_installed=is_installed)
    assert [each.host for each in outcome.errors] == ([] if is_left_out else [name])
    if not passed_before:
        assert name not in outcome.records
    elif is_left_out:
        [finding] = [each for each in outcome.findings if each.host == name]
        assert (finding.kind, finding.what) == ("warning", "no answer; left out of this update")
        assert outcome.records[name].facts == before[name].facts
        assert survey(SHARED, outcome.records).queried == 1, "it is asked again"


@pytest.mark.parametrize("held", [(), ("gpu-1",)])
def test_a_host_that_refuses_the_login_is_left_out_in_quarantine_only(
    survey: Any, held: tuple[str, ...]
) -> None:
    before, of = survey(spec(), {}).records, SHARED.model_copy(update={"quarantined": held})
    outcome = survey(of, before, "gpu-1", refuses=True)
    assert [each.host for each in outcome.errors] == ([] if held else ["gpu-1"])


@pytest.mark.parametrize(
    ("name", "state", "role", "cancels", "is_refused"),
    [
        ("ctl-2", "", "Slurm slurmd host", False, True),
        # It has another name now, or has got a copy of the state.
        ("ctl-2", "site", "Slurm slurmd host", False, False),
        # The first update has failed.
        ("ctl-2", "", "", False, False),
        # Another machine has the name of the former one, which may be lost.
        ("ctl", "", "Slurm slurmd host", False, True),
        ("ctl", "", "Slurm slurmd host", True, False),
        ("ctl", "site", "Slurm slurmd host", False, False),
    ],
)
def test_a_controller_without_the_state_is_refused(
    survey: Any, name: str, state: str, role: str, cancels: bool, is_refused: bool
) -> None:
    hosts = {**configured()["hosts"], "controller": machine(name, 3)}
    moved = spec(slurm(hosts=hosts, removal={"cancel_jobs": cancels}))
    also = {name: {"cluster": state}, "gpu-1": {"role": role}, "gpu-2": {"role": role}}
    outcome = survey(moved, survey(spec(), {}).records, also=also)
    assert [each.host for each in outcome.errors] == ([name] if is_refused else [])
    back = "write back ctl" if name == "ctl-2" else "write back its former address"
    assert all(str(each.fix).startswith(back) for each in outcome.errors)
    assert all("removal.cancel_jobs: true" in str(each.fix) for each in outcome.errors)


def test_equal_hosts_have_equal_facts_whatever_they_are_called_and_however_much_memory_is_free() -> None:
    reports = [
        reported({"hostname": host.name}, memory_bytes=(2 << 40) + n) for n, host in enumerate((GPU_1, GPU_2))
    ]
    facts = [preflight.facts_of(spec(), *each) for each in zip((GPU_1, GPU_2), reports, strict=True)]
    assert facts[0] == facts[1] and facts[0]["gpu_minors"] == ALSO["gpu_minors"]
    assert facts[0]["memory_bytes"] == 2 << 40


def test_a_compute_host_must_have_what_its_pool_and_its_measurement_ask_for() -> None:
    pool = {"gpus": 4, "rails": 2, "rate_gbps": 200, "gpu_model": "A100", "ignore_hcas": ["mlx5_9"]}
    made = slurm(
        pools={"h100": {**pool, "link_layer": "ethernet"}},
        validation={"transport": "rdma", "expected_busbw_gbps": 50},
    )
    required = spec(made).requirements_of(GPU_1).model_dump(mode="json", exclude_defaults=True)
    assert required == {**pool, "min_disk_gb": 1, "link_layer": "ethernet", "transport": "rdma"}


def test_every_host_but_the_server_mounts_the_homes_and_is_asked_again_for_another_server() -> None:
    values = [NFS.values(host) for host in (CTL, LOGIN, GPU_1)]
    assert [each.get("NFS_FOLDER") for each in values] == ["/srv/home", None, None]
    assert [each.get("NFS_SERVER") for each in values] == [None, "10.0.0.1", "10.0.0.1"]
    moved = spec(slurm(home={"nfs": {"folder": "/srv/home", "host": "login"}}))
    for host in (LOGIN, GPU_1):
        assert len({each.fingerprint(host) for each in (NFS, moved, spec())}) == 3
    assert spec(cluster="other").fingerprint(CTL) != spec().fingerprint(CTL)


def test_a_host_is_asked_for_names_homes_and_uids() -> None:
    assert spec().values(CTL)["NAMES"] == "ctl login gpu-1 gpu-2"
    users = {"accounts": {"ada": {"uid": 5001}, "bob": {"uid": 5002}}}
    asked = {"SLURM_PACKAGES": "os", "HOME_PATH": "/home", "USERS": "ada:5001 bob:5002"}
    assert asked.items() <= spec(slurm(users=users)).values(GPU_1).items()

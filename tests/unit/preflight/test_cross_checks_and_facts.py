"""Checks across hosts, and the stored facts."""

from __future__ import annotations

from typing import Any

import pytest

from busbar.cli.before import show_hosts
from busbar.finding import Finding
from busbar.hosts.scripts import packed
from busbar.preflight.cross_checks import check_across_hosts
from busbar.preflight.facts import HostRecord, pack, rail_addresses, read, unpack
from busbar.preflight.host_checks import host_facts
from busbar.preflight.output import lines, table
from busbar.preflight.spec import HostRequirements
from busbar.preflight.survey import Outcome
from tests.support.reports import hca, report
from tests.unit.preflight.samples import REQUIRED, a_host, spec

# Linux hands a program at most this much in one environment variable (MAX_ARG_STRLEN).
ENVIRONMENT_LIMIT = 128 * 1024


def passed(machine: str, **changes: object) -> HostRecord:
    return HostRecord("f" * 12, machine, host_facts(REQUIRED, report()) | changes)


THREE = spec(*(a_host(f"worker-{n}") for n in (1, 2, 3)))


def test_equal_hosts_have_no_findings() -> None:
    hosts = {f"worker-{n}": passed(f"m{n}") for n in (1, 2, 3)}
    assert check_across_hosts(THREE, {}, hosts) == []


@pytest.mark.parametrize(
    ("fact", "value", "says"),
    [
        ("driver", "535.54.03", "has driver 535.54.03, most workers of pool h100 have 570.124.06"),
        ("gpu_model", "NVIDIA H200", "has GPU model NVIDIA H200, most workers of pool h100 have NVIDIA H100"),
    ],
)
def test_a_different_driver_or_gpu_is_an_error(fact: str, value: str, says: str) -> None:
    hosts = {f"worker-{n}": passed(f"m{n}") for n in (1, 2, 3)}
    hosts["worker-2"] = passed("m2", **{fact: value})
    (finding,) = check_across_hosts(THREE, {}, hosts)
    assert (finding.host, finding.kind) == ("worker-2", "error")
    assert says in finding.what


def test_a_worker_in_quarantine_may_have_another_driver() -> None:
    hosts = {f"worker-{n}": passed(f"m{n}") for n in (1, 2, 3)}
    hosts["worker-2"] = passed("m2", driver="535.54.03")
    repaired = THREE.model_copy(update={"quarantined": ("worker-2",)})
    assert check_across_hosts(repaired, {}, hosts) == []
    assert repaired.fingerprint(THREE.hosts[1]) != THREE.fingerprint(THREE.hosts[1]), "it is checked again"


def test_a_different_firmware_is_a_warning() -> None:
    hosts = {f"worker-{n}": passed(f"m{n}") for n in (1, 2, 3)}
    hosts["worker-3"] = passed("m3", hca_firmware=["28.39.1002"])
    (finding,) = check_across_hosts(THREE, {}, hosts)
    assert (finding.host, finding.kind) == ("worker-3", "warning")


def test_a_host_whose_pci_settings_differ_or_are_not_known_is_a_warning() -> None:
    settings = {hca(f"mlx5_{n}")["pci"]: {"MaxReadReq": "4096", "RlxdOrd": "+"} for n in range(8)}
    reports = {name: report(pci_settings=settings) for name in ("worker-1", "worker-2")}
    for changed, got in ((settings | {hca("mlx5_3")["pci"]: {"MaxReadReq": "512"}}, "512"), ({}, "none")):
        reports["worker-3"] = report(pci_settings=changed)
        hosts = {name: HostRecord("f", name, host_facts(REQUIRED, each)) for name, each in reports.items()}
        (finding,) = check_across_hosts(THREE, {}, hosts)
        assert (finding.host, finding.kind) == ("worker-3", "warning")
        assert "PCI settings of rails" in finding.what
        assert got in finding.what
        assert "most workers of pool h100 have MaxReadReq 4096, RlxdOrd +" in finding.what


RDMA = REQUIRED.model_copy(update={"transport": "gpudirect-rdma"})
ROCE = RDMA.model_copy(update={"link_layer": "ethernet", "gid_index": 3})


def ports(required: HostRequirements, **workers: dict[str, Any]) -> list[Finding]:
    """The findings across workers whose rails all have these values."""
    reports = {
        name: report(hcas=[hca(f"mlx5_{n}", **values) for n in range(8)]) for name, values in workers.items()
    }
    records = {name: HostRecord("f", name, host_facts(required, each)) for name, each in reports.items()}
    of_pool = spec(*(a_host(name.replace("_", "-")) for name in workers), required=required)
    return check_across_hosts(of_pool, {}, {name.replace("_", "-"): each for name, each in records.items()})


def test_rails_with_another_active_mtu_are_an_error_with_both_values() -> None:
    (found,) = ports(RDMA, worker_1={}, worker_2={"active_mtu": "2048"})
    assert (found.host, found.kind) == ("worker-2", "error")
    assert found.what == (
        "has active MTU 2048 on mlx5_0, mlx5_1, mlx5_2, mlx5_3 and 4 more, most workers of pool h100 have "
        "4096: RDMA between them fails"
    )
    assert ports(REQUIRED, worker_1={}, worker_2={"active_mtu": "2048"}) == [], "TCP does not use them"


def test_an_unknown_mtu_equals_none_and_differs_from_none() -> None:
    unknown = {"active_mtu": "unknown: ibv_devinfo is not installed"}
    assert ports(RDMA, worker_1={}, worker_2=unknown) == []
    port = {"link_layer": "Ethernet", "netdev_mtu": "9000", "gids": {"3": "RoCE v2"}, **unknown}
    (found,) = ports(ROCE, worker_1=port, worker_2=port, worker_3=port | {"netdev_mtu": "1500"})
    assert (found.host, found.kind) == ("worker-3", "error")
    assert found.what.startswith("has MTU of the network interface 1500 on mlx5_0")


def test_another_p_key_is_an_error_and_another_membership_is_none() -> None:
    (found,) = ports(RDMA, worker_1={}, worker_2={}, worker_3={"pkeys": {"0": "0x8a17"}})
    assert (found.host, found.kind) == ("worker-3", "error")
    assert found.what.startswith("has P_Key 0x8a17 on mlx5_0") and "h100 have 0xffff" in found.what
    assert ports(RDMA, worker_1={}, worker_2={"pkeys": {"0": "0x7fff"}}) == []


def test_two_limited_members_are_told_the_keys_with_full_membership() -> None:
    limited = {"pkeys": {"0": "0x7fff", "1": "0x8a17"}}
    found = ports(RDMA, worker_1=limited, worker_2=limited)
    assert [(each.host, each.kind) for each in found] == [("worker-1", "error"), ("worker-2", "error")]
    assert "limited member" in found[0].what and "full membership there: 1: 0x8a17" in found[0].what
    with_index = RDMA.model_copy(update={"pkey_index": 1})
    assert ports(with_index, worker_1=limited, worker_2=limited) == []


def test_a_gid_of_another_type_at_the_index_of_the_job_is_an_error() -> None:
    port = {"link_layer": "Ethernet", "netdev_mtu": "9000", "gids": {"3": "RoCE v2"}}
    (found,) = ports(ROCE, worker_1=port, worker_2=port | {"gids": {"3": "IB/RoCE v1"}})
    assert (found.host, found.kind) == ("worker-2", "error")
    assert found.what.startswith("has GID type IB/RoCE v1 on mlx5_0")


def test_another_kernel_is_a_warning_among_the_hosts_that_were_asked_now() -> None:
    hosts = {f"worker-{n}": passed(f"m{n}") for n in (1, 2, 3)}
    hosts["worker-3"] = passed("m3", kernel="6.8.0-31-generic")  # stored before its kernel was updated
    asked = {f"worker-{n}": report(hostname=f"worker-{n}") for n in (1, 2)}
    assert check_across_hosts(THREE, asked, hosts) == []
    asked["worker-3"] = report(hostname="worker-3", kernel="6.8.0-31-generic")
    (finding,) = check_across_hosts(THREE, asked, hosts)
    assert (finding.host, finding.kind) == ("worker-3", "warning")
    assert finding.what.startswith("has kernel 6.8.0-31-generic, most workers of pool h100 have 6.8.0-60")


SHARING = spec(
    *(a_host(f"server-{n}", "server") for n in (1, 2, 3)),
    required=REQUIRED.model_copy(update={"networks": {"hosts.virtual_ip.address": "10.0.0.100"}}),
)


def sharing(*managed: tuple[str, ...], answers: bool = True) -> list[Finding]:
    """The findings where servers have these of busbar's services, and the address answers or not."""
    reports = {
        f"server-{n}": report(hostname=f"server-{n}", managed=units, shared_answers=answers)
        for n, units in enumerate(managed, 1)
    }
    return [each for each in check_across_hosts(SHARING, reports, {}) if "answers at" in each.what]


def test_an_address_to_share_that_another_machine_has_is_an_error() -> None:
    (finding,) = sharing(("k3s",), ("k3s",), ())
    assert (finding.host, finding.kind) == ("server-1", "error")
    assert finding.what.startswith("another machine answers at hosts.virtual_ip.address 10.0.0.100")
    assert sharing((), (), (), answers=False) == []


def test_an_address_that_one_of_the_hosts_shares_already_is_theirs() -> None:
    assert sharing(("keepalived",), (), ()) == []
    assert sharing((), ()) == [], "of the third nothing is known"


def test_one_machine_listed_twice_is_found() -> None:
    hosts = {"worker-1": passed("same"), "worker-2": passed("same"), "worker-3": passed("m3")}
    (finding,) = check_across_hosts(THREE, {}, hosts)
    assert (finding.host, finding.kind) == ("worker-2", "error")
    assert "machine-id of worker-1" in finding.what


OFFERED = spec(
    *(a_host(f"worker-{n}") for n in (1, 2, 3)), required=REQUIRED.model_copy(update={"offered": True})
)


def test_an_hca_in_the_slot_of_another_hosts_rail_would_be_offered_to_pods() -> None:
    hosts = {f"worker-{n}": passed(f"m{n}") for n in (1, 2, 3)}
    hosts["worker-2"] = passed("m2", other_pci=["0000:20:00.0"])
    (finding,) = check_across_hosts(OFFERED, {}, hosts)
    assert (finding.host, finding.kind) == ("worker-2", "error")
    assert "not a rail at 0000:20:00.0, where worker-1 has a rail" in finding.what
    assert check_across_hosts(THREE, {}, hosts) == [], "the site selects the HCAs itself"
    hosts["worker-2"] = passed("m2", other_pci=["0000:20:00.0"], rails=["mlx5_1"])
    assert check_across_hosts(OFFERED, {}, hosts) == [], "a port is down, and has a finding of its own"


def test_rails_in_different_slots_of_different_hosts_are_all_offered() -> None:
    hosts = {"worker-1": passed("m1"), "worker-2": passed("m2", rail_pci=["0000:99:00.0"])}
    assert check_across_hosts(OFFERED, {}, hosts) == []
    facts = {name: host.facts for name, host in hosts.items()}
    assert rail_addresses(facts) == [*(f"0000:{n:02x}:00.0" for n in range(0x20, 0x28)), "0000:99:00.0"]


def test_the_result_of_440_workers_with_different_pci_addresses_fits_too() -> None:
    hosts = {
        f"a-worker-with-a-long-name-{n:04}": passed(
            f"{n:08x}", rail_pci=[f"{n:04x}:{rail:02x}:00.0" for rail in range(8)], other_pci=[]
        )
        for n in range(440)
    }
    text = pack(hosts)
    assert len(text) < ENVIRONMENT_LIMIT
    assert read(text) == hosts


@pytest.mark.parametrize(
    ("members", "at_risk"),
    [
        ({"s-1": True, "s-2": False, "s-3": True}, ["s-2"]),  # s-3 leaves while s-2 is down
        ({"s-1": True, "s-2": True, "s-3": True}, []),
        ({"s-1": True, "s-2": True, "s-3": False}, []),  # the one that leaves is the one that is down
        ({"s-1": True, "s-2": False, "s-3": False}, []),  # so it is here: its leaving costs no vote
        ({"s-1": True, "s-2": False}, []),  # nobody leaves
        ({"s-1": True, "s-2": True, "s-3": False, "s-4": True}, []),  # s-3 goes too
    ],
)
def test_a_running_server_does_not_leave_etcd_while_one_that_stays_is_down(
    members: dict[str, bool], at_risk: list[str]
) -> None:
    servers = spec(*(a_host(name, role="server") for name in ("s-1", "s-2")))
    told = report(etcd_members=[{"name": name, "ready": ready} for name, ready in members.items()])
    found = [
        finding for finding in check_across_hosts(servers, {"s-1": told}, {}) if "majority" in finding.what
    ]
    assert [(finding.host, finding.kind) for finding in found] == [(name, "error") for name in at_risk]


def test_a_server_and_a_worker_that_are_swapped_are_named_as_such() -> None:
    site = spec(a_host("server-1", "server"), a_host("worker-1"))
    none = {"status": "missing", "error": "", "list": [], "pci": 0}
    swapped = {
        "server-1": report(hostname="a", pci_gpus=8, gpus=None),
        "worker-1": report(hostname="b", gpus=none, hcas=[]),
    }
    (finding,) = check_across_hosts(site, swapped, {})
    assert (finding.host, finding.kind) == ("server-1", "error")
    assert "has 8 GPUs; worker-1 is listed as a worker and has neither GPU nor HCA" in finding.what
    both = {**swapped, "worker-1": report(hostname="b")}
    assert check_across_hosts(site, both, {}) == [], "a server may have GPUs"


OURS = "0123456789abcdef"


def mark(resource: str, install_id: str = OURS) -> dict[str, str]:
    return {"owner": f"busbar/prod/{resource}", "install_id": install_id}


@pytest.mark.parametrize("known", [OURS, ""])
def test_a_host_of_another_cluster_is_refused_also_by_a_stack_that_has_installed_nothing(known: str) -> None:
    site = spec(a_host("worker-1")).model_copy(update={"install_id": known})
    reports = {"worker-1": report(owner=mark("busbar-worker@worker-1", "f" * 16))}
    (finding,) = check_across_hosts(site, reports, {})
    assert (finding.host, finding.kind) == ("worker-1", "error")
    assert finding.what == "belongs to another cluster: busbar/prod/busbar-worker@worker-1 installed it"
    steps = ["correct its address in this file", "busbar recover STACK", "remove it from that one's file"]
    places = [str(finding.fix).index(each) for each in steps]
    assert places == sorted(places), "the likeliest cause comes first, what drains production last"


@pytest.mark.parametrize(
    ("known", "found"),
    [
        (OURS, mark("busbar-worker@worker-1")),
        (OURS, mark("busbar-worker@x", "")),
        (None, mark("busbar-worker@x", "f" * 16)),
    ],
)
def test_a_host_of_this_cluster_or_of_one_that_cannot_be_told_is_not_refused(
    known: str | None, found: dict[str, str]
) -> None:
    site = spec(a_host("worker-1")).model_copy(update={"install_id": known})
    assert check_across_hosts(site, {"worker-1": report(owner=found)}, {}) == []


@pytest.mark.parametrize("known", [OURS, None])
def test_two_workers_that_are_swapped_are_both_named(known: str | None) -> None:
    site = spec(a_host("worker-1"), a_host("worker-2")).model_copy(update={"install_id": known})
    reports = {
        "worker-1": report(hostname="b", owner=mark("busbar-worker@worker-2")),
        "worker-2": report(hostname="a", owner=mark("busbar-worker@worker-1")),
    }
    first, second = check_across_hosts(site, reports, {})
    assert (first.host, second.host) == ("worker-1", "worker-2")
    assert first.what.startswith(
        "is the machine that was installed as worker-2, which is listed with another"
    )


def test_a_worker_that_gets_a_new_name_is_not_swapped() -> None:
    site = spec(a_host("gpu-2")).model_copy(update={"install_id": OURS})
    assert check_across_hosts(site, {"gpu-2": report(owner=mark("busbar-worker@worker-2"))}, {}) == []


def test_two_hosts_with_one_host_name_are_an_error() -> None:
    reports = {"worker-1": report(hostname="node"), "worker-2": report(hostname="node")}
    (finding,) = check_across_hosts(THREE, reports, {})
    assert finding.host == "worker-2"
    assert "hostnamectl set-hostname worker-2" in str(finding.fix)


def test_the_result_of_440_workers_fits_into_an_environment_variable() -> None:
    hosts = {f"a-worker-with-a-long-name-{n:04}": passed(f"{n:08x}") for n in range(440)}
    text = pack(hosts)
    assert len(text) < ENVIRONMENT_LIMIT / 4
    assert read(text) == hosts
    assert unpack(text)["a-worker-with-a-long-name-0439"]["gpus"] == 8


@pytest.mark.parametrize("text", ["", "[]", "H4sIAAAA", packed("[]"), packed('{"a":{"facts":{}}}')])
def test_a_text_that_is_not_a_result_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="result of preflight"):
        read(text)


def test_equal_findings_are_joined_and_errors_come_first() -> None:
    found = [
        Finding(("a",), "is slow", "wait", kind="warning"),
        Finding(("b",), "is down", "boot"),
        Finding(("c",), "is slow", "wait", kind="warning"),
    ]
    assert list(lines(found)) == [
        ("error", "b: is down. Fix: boot"),
        ("warning", "a, c: is slow. Fix: wait"),
    ]


def test_other_roce_settings_than_those_of_most_workers_are_a_warning() -> None:
    hosts = {f"worker-{n}": passed(f"m{n}", roce=["priority 3, PFC on"]) for n in (1, 2, 3)}
    hosts["worker-3"] = passed("m3", roce=["priority 0, PFC off"])
    (finding,) = check_across_hosts(THREE, {}, hosts)
    assert (finding.host, finding.kind) == ("worker-3", "warning")
    assert "has RoCE settings priority 0, PFC off, most workers of pool h100" in finding.what


def test_in_a_narrow_terminal_no_word_of_the_table_is_broken_or_cut(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    facts = {"os": "debian 12", "gpus": 8, "gpu_model": "NVIDIA H100 80GB HBM3", "driver": "580.95.05"}
    hosts = {f"worker-{n}": passed(f"m{n}", rails=["mlx5_0", "mlx5_1"], **facts) for n in (1, 2, 3)}
    reason = "condition GpuNvlinkWatch of NVSentinel ([DCGM_FR_NVLINK_DOWN] link 4 of GPU 3 is down)"
    nodes = {"worker-1": reason, "worker-2": "Ready", "worker-3": "NotReady"}
    show_hosts(THREE, Outcome([], hosts, queried=3), nodes)
    shown = capsys.readouterr().out
    wanted = ["worker", "h100", "10.0.0.21", "debian", "NVIDIA", "HBM3", "mlx5_1", "580.95.05", "yes"]
    assert {*wanted, "Ready", "NotReady"} <= {*shown.replace(",", "").split()}
    assert f"Node worker-1: {reason}\n" in shown


def test_the_table_has_a_column_for_roce_where_a_host_has_it() -> None:
    for facts, titles in (({"roce": ["priority 3, PFC on"]}, ["RoCE"]), ({}, [])):
        hosts = {"worker-1": passed("m1", **facts)}
        shown = table(THREE, Outcome([], hosts, queried=1))
        assert [str(column.header) for column in shown.columns if column.header == "RoCE"] == titles
        assert len({len(list(column.cells)) for column in shown.columns}) == 1

"""What NCCL was set up with: version, plugin, topology file and HCAs, as printed and as expected."""

import re
from array import array
from typing import Any

import pytest
from hypothesis import given as every
from hypothesis import settings
from hypothesis import strategies as st

from busbar.judge.nccl import Expectation, judge, read_lines
from busbar.judge.nccl.checks.context import Check
from busbar.judge.nccl.checks.setup import hcas, nccl_version, plugin, topology_file
from busbar.judge.nccl.log.evidence import Evidence
from busbar.judge.nccl.log.records import LogLine
from tests.unit.judge.nccl.logs import Made
from tests.unit.judge.nccl.tables import MIB, context, printed, row, said, table, whole

IB8 = tuple(f"mlx5_{n}" for n in range(8))


def version(found: dict[str, Any], least: str | None) -> Check:
    return nccl_version(context(Expectation(min_nccl=least), evidence=Evidence(versions=found)))


@pytest.mark.parametrize(
    ("found", "least", "code"),
    [
        ("2.28.7+cuda12.9", "2.28.7", "nccl-version.accepted"),
        ("2.28.7+cuda12.9", "2.28", "nccl-version.accepted"),
        # the number of a build makes no release newer
        ("2.28.7", "2.28.7-1", "nccl-version.accepted"),
        ("2.28.3+cuda12.9", "2.28.5", "nccl-version.too_old"),
        ("2.9.9", "2.28.0", "nccl-version.too_old"),
        ("2.9.9", None, "nccl-version.not_required"),
    ],
)
def test_nccl_is_as_new_as_its_release_says(found: str, least: str | None, code: str) -> None:
    check = version(said(found, 5), least)
    assert (check.code, check.line) == (code, 5)
    assert found in check.reason


def test_a_version_that_was_not_printed_is_not_known() -> None:
    assert version({}, "2.28").code == "nccl-version.not_printed"
    assert version({}, None).reason == "no minimum version given; none was printed"


def used(evidence: Evidence, **want: str) -> Check:
    return plugin(context(Expectation(**want), evidence=evidence))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("evidence", "code"),
    [
        (printed(networks=said("IBext", 3)), "plugin.used"),
        (printed(networks=said("IBext_v8", 3)), "plugin.used"),
        (printed({"NET/IBext/0/GDRDMA": 2}), "plugin.used"),
        (printed(networks=said("IBextra", 3)), "plugin.other"),
        (printed({"NET/IB/0/GDRDMA": 2}), "plugin.other"),
        (Evidence(), "plugin.not_printed"),
    ],
)
def test_the_expected_plugin_is_proved_by_its_name_or_by_an_edge(evidence: Evidence, code: str) -> None:
    check = used(evidence, require_plugin="IBext")
    assert check.code == code
    assert (check.line is not None) == (bool(evidence.networks) or code == "plugin.other")


def given(evidence: Evidence, **want: Any) -> Check:
    return topology_file(context(Expectation(**want), table([row(512 * MIB)], ranks=16), evidence=evidence))


SET: dict[str, Any] = {
    "environment": said("NCCL_DEBUG", 2),
    "topology_set": said("/opt/topo.xml", 3),
    "facts": {"NCCL_TOPO_FILE": {"/opt/topo.xml": {""}}},
}


def set_on(*hosts: str) -> Evidence:
    """HOSTS that print the topology file."""
    return Evidence(**{**SET, "facts": {"NCCL_TOPO_FILE": {"/opt/topo.xml": set(hosts)}}})


@pytest.mark.parametrize(
    ("evidence", "want", "code"),
    [
        (Evidence(**SET), {}, "topology-file.not_required"),
        (Evidence(**SET), {"topology_file": "/opt/topo.xml"}, "topology-file.set"),
        (Evidence(**SET), {"topology_file": "/opt/other.xml"}, "topology-file.other"),
        (Evidence(**SET, topology_failed=said("/opt/topo.xml", 4)), {}, "topology-file.not_opened"),
        (Evidence(), {"topology_file": "/opt/topo.xml"}, "topology-file.not_printed"),
        (
            Evidence(environment=said("NCCL_DEBUG", 2)),
            {"topology_file": "/opt/topo.xml"},
            "topology-file.not_printed",  # the log is not whole
        ),
        # one of the two hosts of the device list does not say it
        (set_on("worker-0.local"), {"topology_file": "/opt/topo.xml"}, "topology-file.not_printed"),
        (set_on("worker-0", "worker-1"), {"topology_file": "/opt/topo.xml"}, "topology-file.set"),
    ],
)
def test_the_topology_file_is_the_expected_one_and_could_be_opened(
    evidence: Evidence, want: dict[str, Any], code: str
) -> None:
    assert given(evidence, **want).code == code


def opened(
    of_host: dict[str, tuple[str, ...]], evidence: Evidence | None = None, **want: Any
) -> tuple[str, int | None]:
    """Code and line of `hcas_of`."""
    check = hcas_of(of_host, evidence, **want)
    return check.code, check.line


def hcas_of(of_host: dict[str, tuple[str, ...]], evidence: Evidence | None = None, **want: Any) -> Check:
    """The gate on a run on two hosts of eight rails over GPUDirect RDMA."""
    found = evidence or printed(networks=said("IB", 3))
    found.hcas_of_host = of_host
    found.hcas = said("the list", 6) if of_host else {}
    expectation = {"nodes": 2, "gpus_per_node": 8, "rails": 8, "transport": "gpudirect-rdma", **want}
    run = whole()
    run.preamble.ranks[:] = table([row(512 * MIB)], ranks=16).preamble.ranks
    return hcas(context(Expectation(**expectation), run, evidence=found))


BOTH = {"worker-0": IB8, "worker-1": IB8}


@pytest.mark.parametrize(
    ("of_host", "want", "code"),
    [
        (BOTH, {}, "hcas.opened"),
        (BOTH, {"rails": 9}, "hcas.too_few"),
        (BOTH, {"rails": 7}, "hcas.opened"),
        ({**BOTH, "worker-1": IB8[1:]}, {}, "hcas.too_few"),
        (BOTH, {"hcas": list(IB8)}, "hcas.opened"),
        ({**BOTH, "worker-1": IB8[1:]}, {"hcas": list(IB8)}, "hcas.other"),
        ({**BOTH, "worker-1": (*IB8, "mlx5_9")}, {"hcas": list(IB8)}, "hcas.other"),
        # names that are given are all that counts
        ({"worker-0": IB8[:1], "worker-1": IB8[:1]}, {"hcas": list(IB8[:1])}, "hcas.opened"),
        (BOTH, {"hcas": list(IB8), "transport": "socket"}, "hcas.opened"),
    ],
)
def test_every_host_opens_the_hcas_of_its_rails(
    of_host: dict[str, tuple[str, ...]], want: dict[str, Any], code: str
) -> None:
    assert opened(of_host, **want) == (code, 6)


@pytest.mark.parametrize(
    ("of_host", "code"),
    [
        ({}, "hcas.not_printed"),
        ({"worker-0": IB8}, "hcas.not_printed"),
        ({"worker-0.site": IB8, "worker-1.site": IB8}, "hcas.opened"),
        # a message without its process may be of any host
        ({"worker-0": IB8, "": IB8}, "hcas.opened"),
    ],
)
def test_a_host_that_names_no_hca_is_not_known_to_have_any(
    of_host: dict[str, tuple[str, ...]], code: str
) -> None:
    assert opened(of_host)[0] == code


@pytest.mark.parametrize(
    ("evidence", "want", "required"),
    [
        (Evidence(), {}, True),
        (printed({"NET/IB/0": 1}, networks=said("AWS Libfabric")), {}, True),
        (printed(networks=said("AWS Libfabric")), {}, False),
        (printed(networks=said("IB")), {"transport": "rdma"}, True),
        (printed(networks=said("IB")), {"transport": "socket"}, False),
        (printed(networks=said("IB")), {"rails": 0}, False),
        (printed(networks=said("IB")), {"rails": None}, False),
        (printed(networks=said("IB")), {"nodes": 1}, False),
        (printed(networks=said("AWS Libfabric")), {"hcas": ["mlx5_0"]}, True),
    ],
)
def test_hcas_are_counted_where_infiniband_verbs_carry_the_data_between_hosts(
    evidence: Evidence, want: dict[str, Any], required: bool
) -> None:
    assert opened({}, evidence, **want)[0] == ("hcas.not_printed" if required else "hcas.not_required")


def linked(layers: dict[str, str], fabric: str | None, *devices: int) -> Check:
    """The gate on two hosts whose HCAs have these link layers, by letter; edges use DEVICES."""
    names = {"I": "IB", "R": "RoCE"}
    found = printed(networks=said("IB", 3), net_devices={host: set(devices) for host in layers if devices})
    found.hcas_of_host = dict.fromkeys(layers, IB8)
    found.hcas = said("the list", 6)
    found.hca_links = {
        host: {(n, f"mlx5_{n}", names[letter]) for n, letter in enumerate(text)}
        for host, text in layers.items()
    }
    want = {"nodes": 2, "gpus_per_node": 8, "rails": 8, "transport": "gpudirect-rdma", "fabric": fabric}
    return hcas(context(Expectation.model_validate(want), whole(), evidence=found))


ALL = tuple(range(8))


@settings(max_examples=60)
@every(
    st.lists(st.text("IR", min_size=8, max_size=8), min_size=2, max_size=2),
    st.sampled_from(["infiniband", "roce", None]),
)
def test_rails_of_another_link_layer_than_expected_or_of_two_never_pass(
    hosts: list[str], fabric: str | None
) -> None:
    layers = {f"worker-{n}": text for n, text in enumerate(hosts)}
    right = set("".join(hosts)) == (
        {"infiniband": {"I"}, "roce": {"R"}}[fabric] if fabric else set(hosts[0][0])
    )
    assert (linked(layers, fabric, *ALL).status == "pass") == right
    # which HCAs carry the data is not known
    assert (linked(layers, fabric).status == "pass") == right


@pytest.mark.parametrize(
    ("devices", "fabric", "code"),
    [
        ((1, 2, 3, 4, 5, 6, 7), "infiniband", "hcas.opened"),
        (ALL, "infiniband", "hcas.other_fabric"),
        ((0,), "roce", "hcas.opened"),
        (ALL, None, "hcas.mixed"),
        ((), "infiniband", "hcas.mixed"),
    ],
)
def test_only_the_link_layer_of_hcas_that_carry_data_counts(
    devices: tuple[int, ...], fabric: str | None, code: str
) -> None:
    layers = {"worker-0": "RIIIIIII", "worker-1": "RIIIIIII"}
    assert linked(layers, fabric, *devices).code == code


def test_hcas_that_nccl_joins_to_one_device_count_all() -> None:
    joined = "NET/IB : Using [0]={[0] mlx5_0:1/RoCE, [1] mlx5_1:1/IB} [RO]; OOB eth0:10.0.0.1<0>"
    lines = [re.sub(r"NET/IB : Using .*", joined, line) for line in Made().lines()]
    want = Expectation(profile="h100-ib-8x400", nodes=2, rails=2, net_devices=8)
    assert judge(lines, want).check("hcas").code == "hcas.other_fabric"


COMM = "comm 0x5 rank {} nRanks 16 nNodes 2 localRanks 8 localRank 0 MNNVL {}"


@pytest.mark.parametrize(
    ("messages", "facts"),
    [
        # what all processes of a host have opened counts
        (
            [
                "NET/IB : Using [0]mlx5_0:1/IB [1]mlx5_1:1/RoCE [RO]; OOB eth0",
                "NET/IB : Using [0]mlx5_1:1/RoCE ; OOB eth0:10.0.0.1<0>",
            ],
            {
                "hcas_of_host": {"worker-0": ("mlx5_1",)},
                "hca_links": {
                    "worker-0": {(0, "mlx5_0", "IB"), (1, "mlx5_1", "RoCE"), (0, "mlx5_1", "RoCE")}
                },
            },
        ),
        # a list of trees counts whole only
        (
            ["Trees [0] 1/4/-1->0->-1 [1] -1/-1/-1->0->3", "Trees [0] -1->1->0 [1] -1/-1/-1->1->3"],
            {"parents": {0: array("l", [-1, 3])}},
        ),
        (
            [f"AllReduce: {size} Bytes -> Algo RING proto SIMPLE channel 0" for size in (8, 2**30, 16)],
            {"algorithm_sizes": {"AllReduce RING": 2**30}},
        ),
        (
            [COMM.format(0, 1), COMM.format(1, 0)],
            {"counts": {(16, 2): 1}, "local_ranks": {"8": 1}, "mnnvl": {"1": 1, "0": 2}},
        ),
        (
            ["NCCL_TOPO_FILE set by environment to /a.xml.", "NCCL_TOPO_FILE set by environment to /b.xml"],
            {
                "topology_set": {"/a.xml": 1, "/b.xml": 2},
                "facts": {"NCCL_TOPO_FILE": {"/a.xml": {"worker-0"}, "/b.xml": {"worker-0"}}},
            },
        ),
    ],
)
def test_what_processes_of_a_host_print_is_put_together(messages: list[str], facts: dict[str, Any]) -> None:
    def plain(value: Any) -> Any:
        """The number of the line in place of each line."""
        if isinstance(value, dict):
            return {key: plain(each) for key, each in value.items()}
        return value.line if isinstance(value, LogLine) else value

    log = read_lines(f"worker-0:{40 + n}:90 [0] NCCL INFO {text}" for n, text in enumerate(messages))
    assert {name: plain(getattr(log.evidence, name)) for name in facts} == facts

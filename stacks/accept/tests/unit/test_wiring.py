"""The cabling: what ibnetdiscover prints, against a design or what most nodes of a rail group have."""

from collections.abc import Callable
from pathlib import Path

import pytest

from stacks.accept.package.evidence import Untrusted
from stacks.accept.package.subjects.cabling import (
    COLUMNS,
    End,
    Fabric,
    Link,
    faults,
    few_uplinks,
    guid_of,
    of_design,
    of_groups,
    read_design,
    write_design,
)
from stacks.accept.tests.net import Net

NODES = 8
RAILS = {
    f"gpu-{node}": {f"mlx5_{hca}": 0xB83F0000 + 16 * node + hca for hca in range(4)} for node in range(NODES)
}
HCAS = {End(node, hca): guid for node, hcas in RAILS.items() for hca, guid in hcas.items()}
# Two rail groups of four nodes.
GROUPS = {f"gpu-{node}": f"su-{node // 4}" for node in range(NODES)}
REAL_HCAS = {End("worker-1", "mlx5_0"): 0xB83FABCD12340001, End("worker-2", "mlx5_0"): 0xB83FABCD12340002}
REAL = Path(__file__).with_name("ibnetdiscover.txt").read_text()


def hca(node: int, rail: int) -> tuple[str, int]:
    return f"gpu-{node} mlx5_{rail}", 1


def net() -> Net:
    return Net.of(RAILS, group=4)


def built(change: Callable[[Net], object]) -> Fabric:
    found = net()
    change(found)
    return Fabric.read(found.text(), HCAS)


def by_design(fabric: Fabric, *, ports: bool = True) -> list[str]:
    rows = read_design(write_design(Fabric.read(net().text(), HCAS)))
    kept = rows if ports else {near: End(far.at, "") for near, far in rows.items() if not near.is_switch}
    hcas, between = of_design(fabric, kept, HCAS)
    return [*faults(fabric, hcas), *faults(fabric, between)]


def by_groups(fabric: Fabric) -> list[str]:
    cables, open_ = of_groups(fabric, GROUPS, HCAS)
    assert open_ == []
    return [*faults(fabric, cables)]


def test_the_output_of_the_real_tool_is_read() -> None:
    """ibnetdiscover 44 on ibsim: a narrow HCA, an uplink, a managed switch, an aggregation node of SHARP."""
    found, (first, second) = Fabric.read(REAL, REAL_HCAS), REAL_HCAS
    assert found.names == {"S-0000000000200000": "leaf0", "S-0000000000200010": "spine0"}
    assert found.links[first] == Link(End("leaf0", "1"), "8xHDR", 400)
    assert found.links[second] == Link(End("leaf0", "2"), "1xHDR", 50)
    assert found.between[End("leaf0", "36")] == Link(End("spine0", "1"), "8xHDR", 400)


def test_switches_of_one_name_are_told_apart_by_their_guids() -> None:
    found = Fabric.read(REAL.replace('"leaf0"', '"Quantum"').replace("MF0;spine0:MQM9700/U1", "Quantum"), {})
    assert sorted(found.names.values()) == ["S-0000000000200000", "S-0000000000200010"]


def move(net: Net) -> None:
    net.unplug(hca(6, 0))
    net.plug(hca(6, 0), ("leaf-1-3", 60))


OF_ONE_RAIL = "gpu-0 mlx5_1 and gpu-2 mlx5_1 are swapped: gpu-0 mlx5_1 is in leaf-0-1 port 3, "
OF_A_NODE = "gpu-1 mlx5_2 and gpu-1 mlx5_3 are swapped"
OF_TWO_GROUPS = "gpu-1 mlx5_2 and gpu-5 mlx5_2 are swapped"
OUT, BESIDE = "gpu-6 mlx5_0 has no link, expected leaf-1-0", "gpu-6 mlx5_0 is in leaf-1-3"
UPLINKS = "leaf-0-2 port 5 and leaf-1-2 port 6 are swapped"
# A change of the cables, and the one fault by a design, by one without ports, and by rail groups.
FAULTS: list[tuple[Callable[[Net], object], str, str, str]] = [
    (lambda net: None, "", "", ""),
    (lambda net: net.swap(hca(0, 1), hca(2, 1)), OF_ONE_RAIL, "", ""),
    (lambda net: net.swap(hca(1, 2), hca(1, 3)), OF_A_NODE, OF_A_NODE, OF_A_NODE),
    (lambda net: net.swap(hca(1, 2), hca(5, 2)), OF_TWO_GROUPS, OF_TWO_GROUPS, OF_TWO_GROUPS),
    (lambda net: net.unplug(hca(6, 0)), OUT, OUT, OUT),
    (move, f"{BESIDE} port 60, as gpu-6 mlx5_3, expected leaf-1-0", BESIDE, BESIDE),
    (lambda net: net.unplug(("leaf-0-2", 6)), "leaf-0-2 port 6 has no link, expected spine-1 port 3", "", ""),
    (lambda net: net.swap(("leaf-0-2", 5), ("leaf-1-2", 6)), UPLINKS, "", ""),
]


@pytest.mark.parametrize(("change", "design", "without_ports", "groups"), FAULTS)
def test_each_way_to_judge_names_the_one_fault_that_it_can_see(
    change: Callable[[Net], object], design: str, without_ports: str, groups: str
) -> None:
    fabric = built(change)
    for found, expected in (
        (by_design(fabric), design),
        (by_design(fabric, ports=False), without_ports),
        (by_groups(fabric), groups),
    ):
        assert [each.startswith(expected) for each in found] == [True] * bool(expected), found


def test_a_leaf_with_fewer_uplinks_than_its_peers_is_named() -> None:
    fabric = built(lambda net: net.unplug(("leaf-0-2", 6)))
    leaves = {each.end.at for each in fabric.links.values()}
    assert [*few_uplinks(fabric, leaves)] == ["leaf-0-2 has 1 uplinks, its peers have 2"]


def test_a_rail_of_which_no_leaf_has_most_nodes_has_no_expected_place() -> None:
    def spread(net: Net) -> None:
        net.swap(hca(0, 0), hca(0, 1))
        net.swap(hca(1, 0), hca(1, 2))

    _, open_ = of_groups(built(spread), GROUPS, HCAS)
    assert open_ == ["mlx5_0 of su-0"]


def test_a_design_may_name_a_switch_by_its_guid() -> None:
    fabric = built(lambda net: None)
    text = write_design(fabric)
    for each, name in fabric.names.items():
        text = text.replace(name, each)
    assert [*faults(fabric, of_design(fabric, read_design(text), HCAS)[0])] == []


def test_a_port_guid_is_the_last_half_of_a_gid() -> None:
    assert guid_of("b8ce:f603:00ab:12cd") == 0xB8CEF60300AB12CD
    assert guid_of("") is guid_of("b8ce:f603") is guid_of("zz:1:2:3") is None


HEAD = ",".join(COLUMNS) + "\n"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "the first line"),
        (HEAD, "no rows"),
        (HEAD + "gpu-0,mlx5_0,leaf\n", "line 2 of the design is not"),
        (HEAD + "gpu-0,mlx5_0,leaf,-1\n", "line 2 of the design is not"),
        (HEAD + "gpu-0,,leaf,1\n", "line 2 of the design is not"),
        (HEAD + "gpu-0,mlx5_0,leaf,1\ngpu-0,mlx5_0,leaf,2\n", "line 3 of the design has an end that"),
        (HEAD + "gpu-0,mlx5_0,leaf,1\ngpu-1,mlx5_0,leaf,1\n", "line 3 of the design has an end that"),
        (HEAD + "gpu-\0,mlx5_0,leaf,1\n", "line 2 of the design is not"),
        (HEAD + f'"{"x" * 200_000}"\n', "not CSV"),
    ],
)
def test_a_design_that_is_not_valid_is_refused_with_one_sentence(text: str, why: str) -> None:
    with pytest.raises(Untrusted, match=why) as refused:
        read_design(text)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("text", ["", "\x7fELF" * 1000, "[" * 100_000, "x\n" * 1_000_000, "x" * (17 << 20)])
def test_a_text_without_switches_is_refused_with_one_sentence(text: str) -> None:
    with pytest.raises(Untrusted, match="ibnetdiscover printed"):
        Fabric.read(text, {})

"""The heat map of a diagnosis: no script, every node and rail of 440, and what was not measured."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from busbar.config import load
from busbar.fabric.diagnosis import State
from busbar.fabric.diagnosis.kubernetes import scope_of
from busbar.fabric.diagnosis.page import cells_of, heat_map
from busbar.fabric.diagnosis.stages import STAGES, known_of
from busbar.fabric.localise import plan
from busbar.hosts.inventory import Inventory
from tests.support.clusters import all_operators, site
from tests.unit.fabric.localise.fabric import Fabric

SVG = "{http://www.w3.org/2000/svg}"


def page(fabric: Fabric, absent: dict[str, str]) -> str:
    """Of a whole diagnosis of the fabric."""
    config = site(workers={"h100": len(fabric.names)}, **all_operators(enabled=True))
    config["validation"] = {"profile": "h100-ib-8x400"}
    for worker, name in zip(config["hosts"]["workers"], fabric.names, strict=True):
        worker |= {"name": name, "topology": {"rail_group": fabric.places[name]}}
    scope = scope_of(Inventory.of(load(config)), "h100", fabric.names, Path())
    state = State(
        key="", began=0, nodes=fabric.names, hcas=tuple(f"mlx5_{n}" for n in range(8)), absent=absent
    )
    for stage in STAGES:
        found = plan(stage, state.present, fabric.places, known_of(state, scope, stage), rails=8)
        state.results += [(group, fabric.busbw(group), "") for group in found]
    return heat_map(cells_of(known_of(state, scope).shares()), state.nodes, absent, scope.places, 8)


@pytest.fixture(scope="module")
def of_440() -> str:
    fabric = Fabric.of(*[32] * 13, 24)
    fabric.rails[("su5-3", 2)] = 0.5
    return page(fabric, {"su0-7": "ImagePullBackOff: <none>"})


def cells(text: str) -> dict[str, str]:
    """Title of each cell -> its colour."""
    return {
        rect.findtext(f"{SVG}title") or "": rect.get("fill", "")
        for drawn in re.findall(r"<svg.*?</svg>", text, re.DOTALL)
        for rect in ElementTree.fromstring(drawn).iter(f"{SVG}rect")
    }


def test_every_node_of_440_has_a_cell_for_itself_its_pairs_and_each_rail(of_440: str) -> None:
    assert len(cells(of_440)) == 439 * (2 + 8) + 1


def test_a_slow_rail_has_the_colour_of_its_share_and_its_neighbours_that_of_a_good_one(of_440: str) -> None:
    found = cells(of_440)
    assert found["su5-3, rail 2: 50 % of the expected value"] == "#b3261e"
    assert found["su5-3, rail 3: 100 % of the expected value"] == "#2e9e5b"
    assert found["su5-4, rail 2: 100 % of the expected value (of its pairs)"] == "#2e9e5b"


def test_a_node_that_was_not_measured_is_an_empty_frame_with_its_reason(of_440: str) -> None:
    assert cells(of_440)["su0-7: not measured: ImagePullBackOff: <none>"] == ""


def test_the_page_loads_nothing_and_has_a_part_per_rail_group_that_fits_a_phone(of_440: str) -> None:
    assert not re.search(r"<script|(src|href|url)\s*[=(]", of_440)
    widths = [int(width) for width in re.findall(r'<svg[^>]*style="width:(\d+)px"', of_440)]
    assert max(widths) <= 360
    names = re.findall(r'class="h g"[^>]*>([^<]+)<', of_440)
    assert names == [f"su{number}" for number in range(14)], "in the order of their numbers"

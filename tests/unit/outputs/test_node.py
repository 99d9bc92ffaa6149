"""The text in which the output `nodes` carries the hosts of one role."""

from __future__ import annotations

import pytest

from busbar.outputs.node import Node, format_nodes, parse_nodes


def test_counts_of_zero_are_left_out_so_that_a_server_is_its_name_and_address() -> None:
    nodes = [Node("server-1", "server", "10.0.0.11", 0, 0), Node("gpu-1", "worker", "10.0.0.21", 8, 8)]
    assert format_nodes(nodes) == {"server": "server-1 10.0.0.11", "worker": "gpu-1 10.0.0.21 gpus=8 rails=8"}


@pytest.mark.parametrize("address", ["10.0.0.21", "fd00::21", "::1", "gpu-1.example.com"])
@pytest.mark.parametrize(("gpus", "rails"), [(8, 8), (0, 0), (0, 2), (16, 0)])
def test_what_was_written_is_read_back(address: str, gpus: int, rails: int) -> None:
    nodes = [Node(name, "worker", address, gpus, rails) for name in ("gpu-1", "gpu-2")]
    assert parse_nodes("worker", format_nodes(nodes)["worker"]) == nodes


@pytest.mark.parametrize(
    "text", ["", "gpu-1", "gpu-1 10.0.0.21 8", "gpu-1 10.0.0.21 gpus=eight", "gpu-1 10.0.0.21 hcas=8"]
)
def test_a_text_that_is_not_of_this_form_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="NAME ADDRESS"):
        parse_nodes("worker", text)

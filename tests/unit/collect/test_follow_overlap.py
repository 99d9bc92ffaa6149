"""A stream that is opened again may serve more than was asked for; no line is taken twice."""

from __future__ import annotations

from busbar.kube.client import ApiError
from tests.support.kube_cluster import Cluster
from tests.unit.collect.test_follower import LINES, Ends, follower, serving


def test_lines_of_the_last_three_seconds_are_recognised_when_they_come_again() -> None:
    api = Cluster()
    Ends(api, looks=1)
    # Two lines per second: the first connection ends in second 4, the second one begins in second 2.
    api.logs = [serving(*range(10), then=ApiError("GET", None, "connection reset")), serving(*range(4, 10))]
    reader = follower(api)
    assert list(reader.lines()) == LINES
    assert reader.gaps == 0

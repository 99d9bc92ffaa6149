"""Results of host scripts, after whatever a login shell prints."""

from __future__ import annotations

import pytest

from busbar.hosts.script_output import result

BANNER = "Welcome to node {gpu-1}!\n\tLast login: {never}\n"


@pytest.mark.parametrize("before", ["", BANNER, "loading modules... ", f"{BANNER}[ok] "])
def test_what_a_login_prints_before_the_result_is_left_out(before: str) -> None:
    assert result(f'{before}{{"node":"a","ready":true}}\n') == {"node": "a", "ready": True}


@pytest.mark.parametrize("stdout", ["", "\n", BANNER, "[]", '{"node":', '"a"'])
def test_an_output_without_a_result_is_refused(stdout: str) -> None:
    with pytest.raises(ValueError):
        result(stdout)

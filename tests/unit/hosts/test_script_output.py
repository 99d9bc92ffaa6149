"""Results of host scripts, after whatever a login shell prints."""

from __future__ import annotations

from pathlib import Path

import pytest

from busbar.hosts.scripts import script_result
from tests.unit.hosts.bash import output

BANNER = "Welcome to node {gpu-1}!\n\tLast login: {never}\n"


@pytest.mark.parametrize("before", ["", BANNER, "loading modules... ", f"{BANNER}[ok] "])
def test_what_a_login_prints_before_the_result_is_left_out(before: str) -> None:
    assert script_result(f'{before}{{"node":"a","ready":true}}\n') == {"node": "a", "ready": True}


@pytest.mark.parametrize("stdout", ["", "\n", BANNER, "[]", '{"node":', '"a"', "client-key-data: SECRET"])
def test_an_output_without_a_result_is_refused_and_not_shown(stdout: str) -> None:
    with pytest.raises(ValueError, match=r"^a script on a host exited 0 without a facts line$"):
        script_result(stdout)


def test_the_kubeconfig_is_read_behind_what_a_login_prints(tmp_path: Path) -> None:
    text = 'apiVersion: v1\nusers:\n- name: "default"\n'
    (tmp_path / "k3s.yaml").write_text(text)
    prelude = "begin() { :; }; ends_soon() { false; }; echo Welcome; "
    call = f"{prelude}KUBECONFIG_FILE={tmp_path}/k3s.yaml; main"
    assert script_result(output("kubeconfig", call)) == {"kubeconfig": text.rstrip()}

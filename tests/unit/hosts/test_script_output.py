"""Results of host scripts, after whatever a login shell prints; the facts line of a server."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from busbar.hosts.scripts import kubeconfig_text, script_result, server_facts
from tests.unit.hosts.bash import output

BANNER = "Welcome to node {gpu-1}!\n\tLast login: {never}\n"


@pytest.mark.parametrize("before", ["", BANNER, "loading modules... ", f"{BANNER}[ok] "])
def test_what_a_login_prints_before_the_result_is_left_out(before: str) -> None:
    assert script_result(f'{before}{{"node":"a","ready":true}}\n') == {"node": "a", "ready": True}


@pytest.mark.parametrize("stdout", ["", "\n", BANNER, "[]", '{"node":', '"a"'])
def test_an_output_without_a_result_is_refused(stdout: str) -> None:
    with pytest.raises(ValueError):
        script_result(stdout)


FACTS = {"node": "server-1", "version": "v1.35.6+k3s1", "ca_sha256": "ab" * 32, "ca_pem": "-----BEGIN"}


def test_the_facts_of_a_server_are_its_version_and_the_ca_that_tokens_pin() -> None:
    assert server_facts(json.dumps(FACTS)) == FACTS


@pytest.mark.parametrize("stdout", ["", "Welcome to host 1!", "[]"])
def test_anything_else_is_refused_with_what_came(stdout: str) -> None:
    with pytest.raises(ValueError, match=r"without a facts line"):
        server_facts(stdout)


def test_the_kubeconfig_is_read_behind_what_a_login_prints(tmp_path: Path) -> None:
    text = 'apiVersion: v1\nusers:\n- name: "default"\n'
    (tmp_path / "k3s.yaml").write_text(text)
    prelude = "begin() { :; }; ends_soon() { false; }; echo Welcome; "
    call = f"{prelude}KUBECONFIG_FILE={tmp_path}/k3s.yaml; main"
    assert kubeconfig_text(output("kubeconfig", call)) == text.rstrip()


def test_a_kubeconfig_that_does_not_arrive_is_not_shown() -> None:
    with pytest.raises(ValueError, match="without a kubeconfig line") as caught:
        kubeconfig_text("client-key-data: SECRET")
    assert "SECRET" not in str(caught.value)

"""The proxy of a site in the program: every step that downloads or installs has it, and no other."""

from __future__ import annotations

from typing import Any

from tests.program.answers import performed
from tests.program.harness import COMMAND, Run
from tests.support.clusters import host, site
from tests.support.host_commands import files_of, values_of

URL = "http://proxy.example.com:3128"
STEPS = {
    "busbar-control-plane@server-1", "busbar-control-plane@server-2", "busbar-control-plane@server-3",
    "busbar-worker@gpu-1", "busbar-worker@gpu-2", "busbar-nfs-server@nfs-1",
    "busbar-load-balancer@lb-1",
}  # fmt: skip


def with_nfs(**sections: Any) -> Run:
    cluster: dict[str, Any] = site(nfs_server={"folder": "/srv/busbar"}, **sections)
    cluster["hosts"]["nfs_server"] = host("nfs-1", "192.0.2.30")
    return performed(cluster)


def test_downloads_packages_and_the_units_of_k3s_have_the_proxy() -> None:
    run = with_nfs(http_proxy={"url": URL})
    commands = {each.name: each.inputs for each in run.custom if each.type == COMMAND}
    given = {name: values_of(each["create"]) for name, each in commands.items()}
    assert {name for name, values in given.items() if values.get("https_proxy") == URL} == STEPS
    payloads = {name: files_of(each["stdin"]) for name, each in commands.items()}
    assert {name for name, payload in payloads.items() if "proxy" in payload} == {
        name for name in STEPS if name.startswith(("busbar-control-plane", "busbar-worker"))
    }
    of_a_server = payloads["busbar-control-plane@server-2"]["proxy"]
    assert f"Environment=HTTPS_PROXY={URL}" in of_a_server and "198.18.0.2" in of_a_server
    assert "198.18.0.2" not in payloads["busbar-worker@gpu-1"]["proxy"]


def test_without_the_key_no_step_knows_a_proxy() -> None:
    run = with_nfs()
    for each in run.custom:
        assert "_proxy" not in str(each.inputs.get("create", ""))
        if each.type == COMMAND:
            assert "proxy" not in files_of(each.inputs["stdin"])

"""What each step on a host, and each removal, is given: values, and the files that travel on stdin."""

from pathlib import Path

import pytest

from busbar.names import removal_of
from tests.program.answers import healthy, performed
from tests.program.harness import COMMAND, ROOT, Run, run_program
from tests.support.clusters import site

ISSUER = {
    "issuer": {"url": "https://login.example.com", "audiences": ["kubernetes"]},
    "claimMappings": {"username": {"claim": "sub", "prefix": "oidc:"}},
}
PROXY_URL = "http://proxy.example.com:3128"
MARK = {"OWNER", "INSTALL_ID"}
# Of every step that downloads or installs.
INSTALLS = MARK | {"http_proxy", "https_proxy", "no_proxy"}
DOWNLOADS = {"VERSION", "URL_AMD64", "SHA256_AMD64", "IMAGES"}
ROTATIONS = {"ROTATE_CERTIFICATES", "ROTATE_SERVER_TOKEN", "ROTATE_AGENT_TOKEN"}
RESTARTS = {"RUNNING_JOBS", "JOBS_SECONDS", "DRAIN", "PAUSE_SECONDS"}
NFS = {"FOLDER", "SQUASH", "ALLOW_SYSTEM_DISK"}
SERVER = INSTALLS | DOWNLOADS | ROTATIONS | {"NODE_NAME", "NODE_ADDRESS", "API_ADDRESS", "FIRST", "PEERS"}
STEPS: dict[str, tuple[set[str], set[str]]] = {
    "busbar-load-balancer@lb-2": (
        INSTALLS | {"NODE_NAME", "VIRTUAL_IP", "API_PORT", "CA_FILE"},
        {"haproxy_cfg", "keepalived_conf", "ca_pem"},
    ),
    "busbar-nfs-server@lb-1": (INSTALLS | NFS | {"NODE_NAME", "FORMER"}, {"exports", "nfs_conf"}),
    "busbar-nfs-server-exports@lb-1": (INSTALLS | NFS | {"NODE_NAME"}, {"exports", "nfs_conf"}),
    "busbar-control-plane-rejoin": (MARK | {"NODE_NAME"}, {"machines", "servers"}),
    "busbar-control-plane-nodes": (MARK | {"NODE_NAME", "AFTER"}, {"machines", "servers"}),
    "busbar-control-plane-kubeconfig": ({"NODE_NAME", "RENEWAL", "ROTATE_CERTIFICATES"}, set()),
    "busbar-control-plane@server-1": (
        SERVER,
        {"config", "registries", "jwt", "first_values", "proxy", "peer_ca"},
    ),
    "busbar-control-plane@server-2": (SERVER, {"config", "registries", "jwt", "first_values", "proxy"}),
    "busbar-worker@gpu-1": (
        INSTALLS | DOWNLOADS | RESTARTS | {"NODE_NAME", "NODE_ADDRESS", "ROTATE_CERTIFICATES"},
        {"config", "registries", "proxy"},
    ),
}
REMOVALS = {
    "busbar-load-balancer@lb-2": {"CA_FILE"},
    "busbar-nfs-server@lb-1": NFS,
    "busbar-control-plane@server-1": {"PEERS"},
    "busbar-worker@gpu-1": set(),
}


@pytest.fixture(scope="module")
def run() -> Run:
    """A site with everything that adds something to a step."""
    k3s = {
        "sha256": {"amd64": "ab" * 32},
        "images": [{"url": "http://mirror/a.tar", "sha256": "cd" * 32}],
        "authentication": {"jwt": [ISSUER]},
        "rotate": {"certificates": 1, "server_token": 1, "agent_token": 1},
        "registries": {"mirrors": {"*": {"endpoint": ["https://registry.example.com"]}}},
    }
    return performed(
        site(
            load_balancers=2,
            k3s=k3s,
            http_proxy={"url": PROXY_URL},
            nfs_server={"host": "lb-1", "folder": "/srv/busbar", "squash": "none", "allow_system_disk": True},
        )
    )


def test_the_table_has_every_kind_of_step(run: Run) -> None:
    alike = {"busbar-load-balancer@lb-1", "busbar-control-plane@server-3", "busbar-worker@gpu-2"}
    assert {each.name for each in run.of_type(COMMAND)} == STEPS.keys() | alike


@pytest.mark.parametrize("name", STEPS)
def test_a_step_is_given_the_values_and_files_that_its_script_reads(run: Run, name: str) -> None:
    values, files = run.values(name), run.files(name)
    assert (values.keys() - {"VERB", "BUSBAR_SCRIPT"}, {*files}) == STEPS[name]
    assert values.get("https_proxy", PROXY_URL) == PROXY_URL
    assert [key for key, text in {**values, **files}.items() if not text] == [], "this site fills all of them"


@pytest.mark.parametrize("name", REMOVALS)
def test_a_removal_is_given_the_values_that_its_script_reads(run: Run, name: str) -> None:
    assert run.request(removal_of(name))["values"].keys() == MARK | REMOVALS[name]


def test_k3s_has_the_proxy_but_for_the_workers_that_a_server_reaches(run: Run) -> None:
    steps = ("busbar-control-plane@server-2", "busbar-worker@gpu-1")
    server, worker = (run.files(name)["proxy"] for name in steps)
    assert f"Environment=HTTPS_PROXY={PROXY_URL}" in server and "198.18.0.2" in server
    assert "198.18.0.2" not in worker


def test_without_the_key_no_step_knows_a_proxy() -> None:
    run = performed(site(nfs_server={"host": "lb-1", "folder": "/srv/busbar"}))
    assert [each.name for each in run.custom if "_proxy" in str(each.inputs.get("create"))] == []
    assert [each.name for each in run.of_type(COMMAND) if "proxy" in run.files(each.name)] == []


@pytest.mark.parametrize("number", [1, 2, 3])
def test_a_server_is_told_whether_it_is_the_first_and_where_the_others_are(run: Run, number: int) -> None:
    name, others = f"busbar-control-plane@server-{number}", [f"192.0.2.1{n}" for n in {1, 2, 3} - {number}]
    given, removal = run.values(name), run.request(removal_of(name))["values"]
    assert given["FIRST"] == ("true" if number == 1 else "false")
    assert given["PEERS"].split() == removal["PEERS"].split() == others


def test_a_file_that_the_stack_names_is_looked_for_beside_the_program(tmp_path: Path) -> None:
    (tmp_path / "sums.txt").write_text(f"{'ef' * 32}  k3s\n")
    program = tmp_path / "__main__.py"
    program.write_text((ROOT / "__main__.py").read_text())
    cluster = site(k3s={"checksums_file": "sums.txt"})
    run = run_program(cluster, healthy(cluster), program=program)
    assert run.error is None
    for name in ("busbar-control-plane@server-2", "busbar-worker@gpu-1"):
        assert run.values(name)["SHA256_AMD64"] == "ef" * 32

"""The whole scripts of load balancers and of the key of Secrets."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.hosts.recorded import Host, changes, in_order
from tests.unit.hosts.test_quorum import members

pytestmark = pytest.mark.slow

OWNED = "write /var/lib/busbar/owner"


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


# ---- A load balancer ---------------------------------------------------------------------------------------

OWNER = {"OWNER": "busbar/dev/lb-1", "INSTALL_ID": "11", "NODE_NAME": "lb-1"}
HAPROXY = "# Written by busbar\ngood\n  option httpchk GET /readyz\n"
KEEPALIVED = "# Written by busbar\ngood\n"


def balanced(
    host: Host, virtual_ip: str = "", *, script: str = "haproxy", haproxy: str = HAPROXY
) -> list[str]:
    """The steps of an installation or an update."""
    payload = {"haproxy_cfg": haproxy, "keepalived_conf": KEEPALIVED, "ca_pem": "the CA"}
    values = {
        "API_PORT": "8443",
        "CA_FILE": f"{host.root}/etc/haproxy/busbar-ca.pem",
        "VIRTUAL_IP": virtual_ip,
    }
    facts = host.facts(script, payload, VERB="install", **OWNER, **values)
    if script == "haproxy":
        assert facts == {"node": "lb-1", "haproxy": "2.8", "keepalived": "2.8" if virtual_ip else ""}
    return host.steps


def installed(package: str) -> list[str]:
    return [
        f"touch /var/lib/busbar/{package}.installed",
        "apt-get update",
        f"apt-get install -y --no-install-recommends {package}",
    ]


CONFIG, CA = "/etc/haproxy/haproxy.cfg", "/etc/haproxy/busbar-ca.pem"
KEEPALIVED_CONFIG = "/etc/keepalived/keepalived.conf"


def is_loaded(steps: list[str], unit: str, file: str, note: str) -> None:
    """The program has checked a configuration before it gets its name, and it counts when it is loaded."""
    checks = [f"write {file}.busbar-new", f"{unit} checks {file}.busbar-new"]
    in_order(steps, *installed(unit), *checks, f"write {file}", f"systemctl reload-or-restart {unit}")
    in_order(steps, f"systemctl enable -q {unit}")
    in_order(steps, f"systemctl reload-or-restart {unit}", f"write /var/lib/busbar/{note}.loaded", HEALTHY)


HEALTHY = "is https://127.0.0.1:8443 healthy?"
SHARED = "is https://10.0.0.9:8443 healthy?"
RECORDED = "write /var/lib/busbar/applied.sha256"


def test_a_load_balancer_is_marked_first_and_recorded_when_it_is_healthy(host: Host) -> None:
    steps = balanced(host)
    is_loaded(steps, "haproxy", CONFIG, "haproxy-ca")
    was = [f"/var/lib/busbar/haproxy.{name}" for name in ("enabled", "active", "cfg.original")]
    in_order(steps, OWNED, installed("haproxy"), [f"write {CA}", *was_noted(was)], f"write {CONFIG}")
    in_order(steps, HEALTHY, RECORDED)
    assert host.files()[CA] == host.files()[CONFIG] == "644"


def was_noted(paths: list[str]) -> list[str]:
    """How a host was before busbar, for its removal."""
    return [f"{'write' if path.endswith('original') else 'touch'} {path}" for path in paths]


def test_two_load_balancers_share_an_address_once_haproxy_runs(host: Host) -> None:
    steps = balanced(host, "10.0.0.9")
    is_loaded(steps, "haproxy", CONFIG, "haproxy-ca")
    is_loaded(steps, "keepalived", KEEPALIVED_CONFIG, "keepalived")
    in_order(steps, "systemctl reload-or-restart haproxy", "systemctl reload-or-restart keepalived")
    in_order(steps, [HEALTHY, SHARED], RECORDED)
    assert host.files()[KEEPALIVED_CONFIG] == "644"
    recorded = (host.root / "var/lib/busbar/applied.sha256").read_text().split()[1::2]
    assert {*recorded} == {f"{host.root}{path}" for path in (CONFIG, CA, KEEPALIVED_CONFIG)}


def test_a_shared_ipv6_address_is_asked_in_brackets(host: Host) -> None:
    in_order(balanced(host, "2001:db8::9"), "is https://[2001:db8::9]:8443 healthy?", RECORDED)


def test_a_load_balancer_with_the_same_configuration_loads_nothing(host: Host) -> None:
    balanced(host, "10.0.0.9")
    before = host.files()
    steps = balanced(host, "10.0.0.9")
    assert not [step for step in changes(steps) if ".busbar-new" not in step]
    in_order(steps, [HEALTHY, SHARED])
    assert host.files() == before


def test_packages_of_a_load_balancer_are_installed_ahead_of_its_configuration(host: Host) -> None:
    in_order(balanced(host, "10.0.0.9", script="haproxy-packages"), OWNED, installed("haproxy"))
    in_order(host.steps, OWNED, installed("keepalived"))
    assert changes(balanced(host, "10.0.0.9", script="haproxy-packages")) == []


def test_a_load_balancer_that_is_alone_gets_no_keepalived(host: Host) -> None:
    assert not [step for step in balanced(host, script="haproxy-packages") if "keepalived" in step]


def test_a_removed_load_balancer_gives_up_its_address_before_haproxy_ends(host: Host) -> None:
    balanced(host, "10.0.0.9")
    facts = host.facts("haproxy", {}, VERB="remove", CA_FILE=f"{host.root}{CA}", **OWNER)
    assert facts == {"node": "lb-1", "removed": True}
    in_order(host.steps, "systemctl disable --now keepalived", "systemctl disable --now haproxy")
    for package in ("keepalived", "haproxy"):
        in_order(host.steps, f"systemctl disable --now {package}", f"apt-get purge -y {package}")
    assert host.steps[-2:] == ["write /var/lib/busbar.removed", "rm /var/lib/busbar.removed"]
    assert host.files() == {}


def test_a_load_balancer_of_another_stack_is_left_alone(host: Host) -> None:
    balanced(host)
    facts = host.facts("haproxy", {}, VERB="remove", CA_FILE="x", **{**OWNER, "INSTALL_ID": "22"})
    assert (facts["removed"], host.steps) == (False, [])
    done = host.run("haproxy", {}, VERB="begin", VIRTUAL_IP="", **OWNER)
    assert (done.returncode, host.steps) == (1, [])
    assert "VERB=begin is unknown. Fix: use install or remove" in done.stderr


# ---- The key of Secrets ------------------------------------------------------------------------------------


@pytest.fixture
def server(host: Host) -> Host:
    """A server on which K3s runs, beside two others."""
    release = host.release("v1.35.6+k3s1")
    binary = host.root / "usr/local/bin/k3s"
    binary.write_text((host.root / "state/mirror" / release["URL_AMD64"].rpartition("/")[2]).read_text())
    binary.chmod(0o755)
    host.state("active.k3s", "")
    host.state("kubelet", "v1.35.6+k3s1")
    host.write("etc/rancher/k3s/config.yaml", "node-name: server-1\n")
    host.state("members", members("server-1", "server-2", "server-3"))
    return host


QUORUM = ["who votes?", "is https://10.0.0.2 ready?", "is https://10.0.0.3 ready?"]
RESTARTED = "systemctl --no-block restart k3s"
BACK = ["is the Node Ready?", "does this server vote?"]
SNAPSHOT = "k3s etcd-snapshot save --name busbar-before-key-"


def staged(server: Host, found: str, stage: str) -> list[str]:
    """What `done` finds of a stage on server 1, whose key is in the stage FOUND."""
    server.state("stage", found)
    facts = server.facts("k3s-key", {}, VERB="stage", STAGE=stage, NODE_NAME="server-1")
    assert facts == {"node": "server-1"}
    return done(server)


def done(server: Host) -> list[str]:
    """Commands of K3s and its restarts; each while the others answer, and until the server is back."""
    steps = server.steps
    found = [
        SNAPSHOT if step.startswith(SNAPSHOT) else step
        for step in steps
        if step.startswith("k3s ") or step == RESTARTED
    ]
    in_order(steps, *[phase for _ in range(found.count(RESTARTED)) for phase in (QUORUM, RESTARTED, BACK)])
    return found


@pytest.mark.parametrize("found", ["start", "reencrypt_finished"])
def test_the_rotation_of_the_key_begins_with_a_snapshot(server: Host, found: str) -> None:
    assert staged(server, found, "prepare") == [SNAPSHOT, "k3s secrets-encrypt prepare", RESTARTED]


def test_the_next_stage_of_the_key_takes_no_snapshot(server: Host) -> None:
    assert staged(server, "prepare", "rotate") == ["k3s secrets-encrypt rotate", RESTARTED]


@pytest.mark.parametrize("stage", ["prepare", "rotate"])
def test_a_stage_that_was_interrupted_before_its_restart_only_restarts(server: Host, stage: str) -> None:
    assert staged(server, stage, stage) == [RESTARTED]


def test_secrets_that_are_all_written_again_end_the_rotation(server: Host) -> None:
    assert staged(server, "rotate", "reencrypt") == ["k3s secrets-encrypt reencrypt", RESTARTED]
    assert staged(server, "reencrypt_finished", "reencrypt") == [RESTARTED]


def test_where_k3s_gave_up_writing_secrets_a_restart_begins_it_again(server: Host) -> None:
    server.state("gives_up", "once\n")
    again = ["k3s secrets-encrypt reencrypt", RESTARTED]
    assert staged(server, "rotate", "reencrypt") == [*again, *again]
    server.state("log", "SecretsUpdateError' secret is gone\n")
    assert staged(server, "reencrypt_active", "reencrypt") == [RESTARTED, *again], "of an interrupted update"


def test_where_k3s_restarted_while_it_wrote_secrets_it_is_asked_again(server: Host) -> None:
    server.state("crashes", "")
    asked = "k3s secrets-encrypt reencrypt"
    assert staged(server, "rotate", "reencrypt") == [asked, RESTARTED]
    assert (server.root / "record").read_text().count(asked) == 2
    assert "K3s restarted while it wrote the Secrets with the new key" in server.said


def refused(server: Host, says: str, **values: str) -> list[str]:
    done = server.run("k3s-key", {}, **{"VERB": "stage", "NODE_NAME": "server-1", **values})
    assert done.returncode == 1
    assert says in done.stderr
    return server.steps


def test_secrets_that_k3s_cannot_write_end_with_its_reason(server: Host) -> None:
    server.state("gives_up", "1\n2\n3\n")
    server.state("stage", "rotate")
    says = "K3s gave up writing the Secrets with the new key 3 times, or restarted: secret is gone"
    steps = refused(server, says, STAGE="reencrypt")
    assert steps.count("k3s secrets-encrypt reencrypt") == 3
    assert steps[-1] == "k3s secrets-encrypt reencrypt", "the server keeps its log"


@pytest.mark.parametrize(
    ("found", "stage"), [("start", "rotate"), ("rotate", "prepare"), ("prepare", "reencrypt")]
)
def test_a_stage_out_of_order_changes_nothing(server: Host, found: str, stage: str) -> None:
    server.state("stage", found)
    assert refused(server, f"in stage '{found}', from which '{stage}' cannot begin", STAGE=stage) == []


def test_no_stage_begins_while_the_servers_have_different_keys(server: Host) -> None:
    server.state("stage", "prepare")
    server.state("keys_differ", "")
    values = {"VERB": "stage", "STAGE": "rotate", "NODE_NAME": "server-1"}
    assert "the servers do not have the same keys" in server.error("k3s-key", {}, fails="nothing", **values)
    assert server.steps == []


def test_the_key_is_left_alone_while_a_restore_is_not_finished_or_k3s_does_not_run(server: Host) -> None:
    server.write("var/lib/busbar/restoring", "")
    assert refused(server, "an earlier restore of etcd is not finished on this host", STAGE="prepare") == []
    (server.root / "var/lib/busbar/restoring").unlink()
    assert refused(server, "VERB=begin is unknown. Fix: use status, stage or follow", VERB="begin") == []


def follow(server: Host) -> list[str]:
    assert server.facts("k3s-key", {}, VERB="follow", LEADER="leader", NODE_NAME="server-1") == {
        "node": "server-1"
    }
    return done(server)


def test_another_server_takes_the_keys_of_server_1_with_a_restart_if_it_lacks_them(server: Host) -> None:
    server.state("hash.leader", "rotate-1")
    server.state("hash.server-1", "prepare-0")
    assert follow(server) == [RESTARTED]
    assert follow(server) == []
    assert server.steps == []


def test_the_stage_of_a_server_is_that_in_etcd_and_that_of_its_own_process(server: Host) -> None:
    server.state("stage", "rotate")
    server.state("hash.server-1", "prepare-0123")
    facts = server.facts("k3s-key", {}, VERB="status", NODE_NAME="server-1")
    assert facts == {
        "node": "server-1", "enabled": True, "stage": "rotate", "applied": "prepare", "hashes_match": True,
    }  # fmt: skip

"""Nodes and etcd members: which are deleted for a replaced machine or at a removal, and which are kept."""

import subprocess

import pytest

from tests.support.bash import Box

# The API of the scripts: the file `nodes` has lines "name|machine|ready|etcd|created"; changes are logged.
# The servers DEAD do not answer.
API = r"""
applied() { # KEY: its lines in the manifest
  awk -v key="  $1: |-" '/^  [^ ]/ { on = $0 == key; next } on { sub(/^ +/, ""); print }' \
    "$ROOT/applied" 2>/dev/null || true
}
api() {
  shift
  local name
  case "$*" in
    "get nodes -o jsonpath={range .items[*]}{.metadata.name}|"*)
      awk -F'|' '{ print $1 "|" $2 "|" ($4 ? "true" : "") "|" $5 }' "$ROOT/nodes" ;;
    "get nodes -l node-role"*"type=="*) awk -F'|' '$4 { print $1, $3 }' "$ROOT/nodes" ;;
    "apply -f -") cat >"$ROOT/applied" ;;
    "get configmap "*data.servers*) applied servers ;;
    "get pv -o "*) cat "$ROOT/claims" 2>/dev/null || true ;;
    "get --raw /readyz") [[ " ${DEAD:-} " != *" ${API_SERVER:-this server} "* ]] ;;
    "get node "*)
      name=$3
      case "$*" in
        *removed-node-name*) grep -s "^$name removed" "$ROOT/log" || true ;;
        *"type=="*) awk -F'|' -v name="$name" '$1 == name { print $3 }' "$ROOT/nodes" ;;
        *node-role*) awk -F'|' -v name="$name" '$1 == name && $4 { print "true" }' "$ROOT/nodes" ;;
        *metadata.name*) awk -F'|' -v name="$name" '$1 == name { print $1 }' "$ROOT/nodes" ;;
      esac ;;
    "annotate node "*) echo "$3 removed by ${API_SERVER:-this server}" >>"$ROOT/log" ;;
    "delete node "*)
      echo "$3 deleted" >>"$ROOT/log"
      sed -i "/^$3|/d" "$ROOT/nodes" ;;
    "-n kube-system delete secret "*" --ignore-not-found "*) echo "$5" >>"$ROOT/secrets" ;;
    *) echo "unexpected: $*" >&2; return 1 ;;
  esac
}
systemctl() {
  case $* in "is-active k3s") echo "${STATE:-}" ;; is-active* | daemon-reload) ;; *) return 1 ;; esac
}
sleep() { :; }
NOT_READY_DEADLINE=0 MEMBER_DEADLINE=0 START_DEADLINE=0
"""
NO_K3S = "systemctl() { return 3; }; "


class Cluster:
    """A cluster with the Nodes of its API."""

    def __init__(self, box: Box) -> None:
        self.box = box
        self.has()

    def has(self, *nodes: str) -> None:
        """These are its Nodes, and nothing was changed yet."""
        self.box.write("nodes", "".join(f"{node}\n" for node in nodes))
        self.box.write("log")

    @property
    def log(self) -> list[str]:
        return self.box.read("log").splitlines()

    def run(
        self,
        node: str,
        verb: str,
        prelude: str = "",
        payload: dict[str, str] | None = None,
        /,
        *,
        script: str = "k3s-nodes",
        call: str = "main",
        **values: str,
    ) -> subprocess.CompletedProcess[str]:
        given = f"begin_verb() {{ :; }}; {API}{prelude}\n{call}"
        return self.box.run(script, given, payload, NODE_NAME=node, VERB=verb, **values)

    def prepare(
        self, machines: str = "", servers: str = "", prelude: str = "", node: str = "s-1", **values: str
    ) -> subprocess.CompletedProcess[str]:
        """Prepare the cluster for these machines and servers."""
        payload = {"machines": machines, "servers": servers}
        return self.run(node, "install", prelude, payload, **values)

    def leave(self, prelude: str = "", **values: str) -> subprocess.CompletedProcess[str]:
        """The server s-3 leaves the cluster."""
        self.box.write("data/server/db/etcd/member/snap")
        self.box.program("bin/k3s", "exit 1")
        given = {"PEERS": "10.0.0.1 10.0.0.2", **values}
        return self.run("s-3", "remove", prelude, script="k3s-server", call="leave_cluster", **given)


@pytest.fixture
def cluster(box: Box) -> Cluster:
    return Cluster(box)


# A Node of 2026-11-01, and a preflight a second before and after it.
CREATED, EARLIER, LATER = "2026-11-01T00:00:00Z", 1793491199, 1793491201


@pytest.mark.parametrize(
    ("nodes", "machines", "log"),
    [
        # Another machine: a server leaves etcd before its Node is deleted.
        (["w-1|a|Unknown|", "w-2|b|True|"], "w-1 c\nw-2 b", ["w-1 deleted"]),
        (["s-2|a|Unknown|yes"], "s-2 c", ["s-2 removed by this server", "s-2 deleted"]),
        # The same machine, which is only off.
        (["w-1|a|Unknown|", "s-2|b|Unknown|yes"], "w-1 a\ns-2 b", []),
        # It was installed anew under its old machine-id.
        (
            [f"w-1|a|Unknown||{CREATED}", f"s-2|b|Unknown|yes|{CREATED}"],
            f"w-1 a {LATER}\ns-2 b {LATER}",
            ["w-1 deleted", "s-2 removed by this server", "s-2 deleted"],
        ),
        ([f"w-1||Unknown||{CREATED}"], f"w-1 a {LATER}", ["w-1 deleted"]),
        # The Node was made after preflight found its host empty.
        ([f"w-1|a|Unknown||{CREATED}"], f"w-1 a {EARLIER}\nw-9 d {LATER}", []),
        # Its machine is unknown.
        (["w-1||Unknown|"], "w-1 c\nw-9 d", []),
    ],
)
def test_the_node_of_a_replaced_machine_is_deleted(
    cluster: Cluster, nodes: list[str], machines: str, log: list[str]
) -> None:
    cluster.has(*nodes)
    done = cluster.prepare(machines)
    assert (done.returncode, cluster.log) == (0, log), done.stderr


def test_the_password_of_a_replaced_machine_is_gone_before_the_new_one_joins(cluster: Cluster) -> None:
    cluster.has("W-1|a|Unknown|")
    cluster.prepare("W-1 c")
    assert cluster.box.read("secrets") == "w-1.node-password.k3s\n"


def test_a_node_that_is_or_may_be_ready_on_another_machine_stops_the_update(cluster: Cluster) -> None:
    cluster.has("w-1|a|True|")
    done = cluster.prepare("w-1 c")
    assert (done.returncode, cluster.log) == (1, [])
    assert "Node w-1 is Ready on another machine than the one that is configured. Fix: " in done.stderr
    assert "with another machine-id: k3s kubectl annotate node w-1 busbar/machine-" in done.stderr
    cluster.has("w-1|a|Unknown|")
    done = cluster.prepare("w-1 c", prelude="node_field() { return 1; }; ")
    assert (done.returncode, cluster.log) == (1, [])


def test_a_server_tells_the_ca_of_its_cluster_if_there_is_one(cluster: Cluster) -> None:
    done = cluster.prepare("w-1 a", prelude=NO_K3S)
    assert done.stdout == '{"node":"s-1","ca_sha256":""}\n', done.stderr
    assert cluster.prepare().stdout == '{"node":"s-1","ca_sha256":""}\n'
    cluster.box.write("data/server/token", f"K10{'b' * 64}::server:secret\n")
    assert cluster.prepare().stdout == f'{{"node":"s-1","ca_sha256":"{"b" * 64}"}}\n'


@pytest.mark.parametrize(
    ("files", "after", "status", "says"),
    [
        # The engine would not run the step again, and the list of an earlier update would stay.
        ([], "true", 1, "so the cluster does not know its configured hosts. Fix: busbar verify STACK; "),
        # A replaced server 1 waits for it.
        (["member"], "", 1, "K3s is installed here and not running, so server 1 cannot join its cluster"),
        (["tombstone"], "", 0, "etcd has removed this server, so nothing is prepared here"),
        (["tombstone"], "true", 1, "its Node was deleted. Fix: busbar up STACK --converge s-2\n"),
    ],
)
def test_a_server_whose_k3s_does_not_run_prepares_nothing(
    cluster: Cluster, files: list[str], after: str, status: int, says: str
) -> None:
    cluster.has("s-1|a|Unknown|yes")
    for name in files:
        cluster.box.write(f"data/server/db/etcd/{name}")
    done = cluster.prepare("s-1 c", prelude=NO_K3S, node="s-2", AFTER=after)
    assert (done.returncode, cluster.log) == (status, [])
    assert says in done.stderr


@pytest.mark.parametrize(
    ("state", "enabled", "starts"),
    [("inactive", 0, True), ("inactive", 1, False), ("failed", 0, False), ("active", 0, False)],
)
def test_k3s_that_was_stopped_starts_unless_by_a_restore(
    cluster: Cluster, state: str, enabled: int, starts: bool
) -> None:
    cluster.box.write("data/server/db/etcd/member")
    unit = f"""
    systemctl() {{
      case $* in
        "is-enabled --quiet k3s") return {enabled} ;;
        "is-active k3s") echo {state}; [[ {state} == active ]] ;;
        *start*) echo "systemctl $*" >>$ROOT/log ;;
        *) return 3 ;;
      esac
    }}"""
    cluster.prepare("s-1 a", prelude=unit, node="s-2")
    assert cluster.log == (["systemctl --no-block start k3s"] if starts else [])


def test_a_lost_server_that_is_not_configured_any_more_leaves_before_anything_else(cluster: Cluster) -> None:
    cluster.has("s-1|a|Unknown|yes", "s-2|b|True|yes", "s-3|c|True|yes", "w-1|d|Unknown|")
    done = cluster.prepare(servers="s-2\ns-3\ns-10")
    assert cluster.log == ["s-1 removed by this server", "s-1 deleted"], done.stderr
    assert "server s-1 is no longer configured, and not Ready" in done.stderr


@pytest.mark.parametrize("before", ["s-1\ns-2", "s-2"])
def test_a_lost_server_leaves_only_if_busbar_has_made_it(cluster: Cluster, before: str) -> None:
    """Without the note of its machine: it has never been Ready, or somebody else has joined it."""
    cluster.prepare(servers=before, AFTER="true")
    cluster.has("s-1||Unknown|yes", "s-2|b|True|yes")
    done = cluster.prepare(servers="s-2")
    is_ours = "s-1" in before
    assert (done.returncode, cluster.log) == (
        0,
        ["s-1 removed by this server", "s-1 deleted"] if is_ours else [],
    )


@pytest.mark.parametrize(("state", "listed"), [("True", "s-2"), ("Unknown", "s-1\ns-2")])
def test_a_server_that_runs_or_is_listed_stays_a_member(cluster: Cluster, state: str, listed: str) -> None:
    cluster.has(f"s-1|a|{state}|yes", "s-2|b|True|yes")
    cluster.prepare(servers=listed)
    assert cluster.log == []


@pytest.mark.parametrize(
    ("servers", "log", "says"),
    [
        # It was lost after the step that would have removed it.
        ("s-1", ["s-3 removed by this server", "s-3 deleted"], ""),
        ("s-1\ns-3", [], "the configuration contains server s-3; its Node stays"),
        (None, [], "no list of its configured servers"),
    ],
)
def test_a_lost_server_leaves_etcd_unless_it_may_be_configured(
    cluster: Cluster, servers: str | None, log: list[str], says: str
) -> None:
    if servers:
        cluster.prepare(servers=servers, AFTER="true")
    cluster.has("s-1|a|True|yes", "s-3|c|Unknown|yes")
    done = cluster.run("s-3", "remove")
    assert (done.stdout, cluster.log) == ('{"node":"s-3","cluster":true}\n', log), done.stderr
    assert says in done.stderr


@pytest.mark.parametrize("state", [NO_K3S, "touch $TEARDOWN; "])
def test_a_server_without_a_cluster_that_stays_says_so(cluster: Cluster, state: str) -> None:
    cluster.prepare(servers="s-1", AFTER="true")
    done = cluster.run("s-9", "remove", state)
    assert (done.stdout, cluster.log) == ('{"node":"s-9","cluster":false}\n', [])


@pytest.mark.parametrize(
    ("verb", "owner", "status"),
    [
        ("install", "22", 1),
        *((verb, owner, 0) for verb in ("remove", "teardown", "keep") for owner in ("22", "")),
    ],
)
def test_nothing_changes_on_a_server_that_another_cluster_has_by_now(
    cluster: Cluster, verb: str, owner: str, status: int
) -> None:
    cluster.box.write("state/owner", f"role=server\nowner=b/c/d\ninstall_id={owner}\n")
    cluster.prepare(servers="s-1", AFTER="true")
    cluster.has("s-1|a|True|yes", "s-3|c|Unknown|yes")
    if verb == "keep":
        cluster.box.write("teardown")
    done = cluster.run("s-3", verb, "", {"servers": "s-1"}, INSTALL_ID="11")
    assert (done.returncode, cluster.log, cluster.box.has("teardown")) == (status, [], verb == "keep")
    assert done.stdout == ("" if status else '{"node":"s-3","cluster":false}\n')
    assert "this host belongs to another cluster (b/c/d)" in done.stderr


THREE = ["s-1|a|True|yes", "s-2|b|True|yes", "s-3|c|True|yes"]
LEFT = ["s-3 removed by https://10.0.0.1:6443", "s-3 deleted"]
DEAD = "https://10.0.0.1:6443 https://10.0.0.2:6443"


@pytest.mark.parametrize("verb", ["keep", "an hour later"])
def test_the_announcement_of_a_removal_ends(cluster: Cluster, verb: str) -> None:
    cluster.has(*THREE)
    cluster.run("s-1", "teardown")
    later = "touch -d '61 minutes ago' $TEARDOWN"
    cluster.run("s-3", verb, call="main" if verb == "keep" else later)
    cluster.leave(STATE="inactive")
    assert cluster.log == LEFT


@pytest.mark.parametrize(
    ("others", "state", "leaves"),
    [
        (["s-1|a|True|yes", "s-2|b|True|yes"], "active", True),
        # The quorum does not count on one that is stopped.
        (["s-1|a|True|yes", "s-2|b|Unknown|yes"], "inactive", True),
        (["s-1|a|True|yes", "s-2|b|Unknown|yes"], "active", False),
        (["s-1|a|True|yes"], "active", True),
        (["s-1|a|False|yes"], "active", False),
    ],
)
def test_no_server_leaves_a_quorum_that_needs_it(
    cluster: Cluster, others: list[str], state: str, leaves: bool
) -> None:
    cluster.has(*others, "s-3|c|True|yes")
    done = cluster.leave("stop_unit() { :; }; ", STATE=state)
    assert cluster.log == (LEFT if leaves else []), done.stderr
    ready = sum("|True|" in other for other in others)
    refused = f"but only {ready} of the others are Ready: it needs s-3; no changes made"
    assert (refused in done.stderr) is not leaves


def test_a_server_with_data_of_a_claim_on_its_disk_does_not_leave(cluster: Cluster) -> None:
    cluster.has(*THREE)
    cluster.box.write("claims", "site/prometheus-0 s-3\nsite/other s-2\nsite/nfs\n/ s-3\n")
    done = cluster.leave(STATE="inactive")
    assert (done.returncode, cluster.log) == (1, [])
    assert (
        "claims have their data on the disk of this server: site/prometheus-0; no changes made" in done.stderr
    )


@pytest.mark.parametrize(("owner", "status"), [("", 0), ("busbar/dev/busbar-control-plane@s-3", 1)])
def test_the_last_server_goes_by_hand_or_with_the_cluster(cluster: Cluster, owner: str, status: int) -> None:
    cluster.has("s-3|c|True|yes")
    done = cluster.leave(DEAD=DEAD, OWNER=owner)
    assert (done.returncode, cluster.log) == (status, [])
    said = "s-3 is the last server of its cluster, whose data would be deleted; no changes made. Fix: keep a"
    assert (said in done.stderr) is bool(status)
    assert cluster.leave("api() { return 1; }; ", STATE="inactive", OWNER=owner).returncode == 0
    cluster.run("s-3", "teardown")
    assert cluster.leave(DEAD=DEAD, OWNER=owner).returncode == 0


@pytest.mark.parametrize(
    ("state", "status"), [("active", 1), ("activating", 1), ("inactive", 0), ("failed", 0)]
)
def test_without_answers_only_a_stopped_server_is_removed(cluster: Cluster, state: str, status: int) -> None:
    done = cluster.leave("api() { return 1; }; ", STATE=state)
    assert done.returncode == status, done.stderr
    assert ("systemctl stop k3s, and retry" in done.stderr) is (status == 1)


@pytest.mark.parametrize(
    ("fails", "says"),
    [
        (f"DEAD='{DEAD}'", "etcd has 3 members, but none of the other servers answers (10.0.0.1 10.0.0.2)"),
        ("etcd_nodes() { return 1; }", "https://10.0.0.1:6443 no longer answers. Fix: retry"),
        ("leave_etcd() { return 1; }", "s-3 is still a member of etcd after 0 s. Fix: see on another server"),
        ("delete_node() { return 1; }", "deleting Node s-3 failed. Fix: run on another server"),
        ("is_stopped() { return 1; }", "k3s did not stop. Fix: see: systemctl status k3s"),
    ],
)
def test_a_server_whose_leaving_fails_says_why(cluster: Cluster, fails: str, says: str) -> None:
    cluster.has(*THREE)
    done = cluster.leave(f"{fails}; ", STATE="inactive")
    assert done.returncode == 1
    assert says in done.stderr


def test_one_of_two_servers_that_stays_in_etcd_restarts_after_a_crash(cluster: Cluster) -> None:
    cluster.has("s-1|a|True|yes", "s-3|c|True|yes")
    done = cluster.leave("leave_etcd() { cat $LEAVING; return 1; }; ", STATE="active")
    assert (done.returncode, done.stdout) == (1, "[Service]\nRestart=no\n")
    assert not cluster.box.has("leaving")

"""An update replaces slurmd pods one by one, kills no job, and keeps the drains that others have set."""

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from busbar.exits import Failed
from busbar.kube.client import ApiError, JsonObject
from busbar.kube.wait import TimedOut
from stacks.slurm_k8s.package.rest import UPDATE
from stacks.slurm_k8s.package.roll import KEPT, RollSpec, roll
from stacks.slurm_k8s.package.steps import before_change
from stacks.slurm_k8s.tests.support import (
    NODES,
    NODESETS,
    PODS,
    REST,
    RESTD,
    REVISIONS,
    SlurmCluster,
    node,
    pod,
    pools,
    slurm,
)
from tests.support.kube_cluster import Clock, not_found

DIAG = f"{REST}/diag/"
OPERATORS = "/api/v1/namespaces/slinky/pods"
HASH = "controller.kubernetes.io/hash"
NODESET = "slurm-worker-h100"
CONFIG = "/api/v1/namespaces/slurm/configmaps/slurm-config-extra"
SLURM_CONF = "/api/v1/namespaces/slurm/configmaps/slurm-config"
NEWER = f"{REST[:-1]}5/partitions/"
FLAGS = ("ROOT_ONLY", "REQ_RESV")
BACK_SECONDS = 8
READY = {"conditions": [{"type": "Ready", "status": "True"}]}


def _older(partition: JsonObject) -> JsonObject:
    return {name: each for name, each in partition.items() if name != "flags"}


class Killed(Exception):
    """The update ends without a word, as by a signal."""


def revision(name: str, image: str, *nodes: str) -> JsonObject:
    affinity = {"nodeAffinity": list(nodes), "podAntiAffinity": "one per node"}
    data = {"spec": {"slurmd": {"image": image}, "template": {"spec": {"affinity": affinity}}}}
    return {"metadata": {"name": f"{NODESET}-{name}", "labels": {HASH: name}}, "data": data}


def of_nodeset(uid: str, revision: str) -> JsonObject:
    """Return the metadata of a pod as the operator writes it."""
    return {"uid": uid, "labels": {HASH: revision}, "ownerReferences": [{"name": NODESET}]}


def limits(minutes: int = 0, accounts: str = "", *flags: str) -> JsonObject:
    """The limits of a partition as slurmrestd prints them; without one for no minutes."""
    time, nodes = ({"set": bool(each), "infinite": not each, "number": each} for each in (minutes, 0))
    return {
        "accounts": {"allowed": accounts, "deny": ""}, "groups": {"allowed": ""},
        "qos": {"allowed": "", "deny": "", "assigned": ""}, "nodes": {"allowed_allocation": ""},
        "maximums": {"nodes": nodes, "time": time}, "flags": [*flags],
    }  # fmt: skip


class Rolling(SlurmCluster):
    """Slurm on gpu-1, gpu-2, ... whose operator makes a deleted pod anew, of the newest template.

    `kill_at`: the number of the change at which the update is killed. `places`: the Node of a deleted pod ->
    that of the new one, where that is another, or None: there is none. `then`: what follows a new pod.
    """

    def __init__(self, *nodes: JsonObject, image: str = "2", clock: Clock | None = None) -> None:
        super().__init__(*nodes)
        self.clock, self.kill_at, self.changes = clock or Clock(), 0, 0
        self.workers = [f"gpu-{number}" for number, _ in enumerate(nodes, 1)]
        self.nodes: dict[str, JsonObject] = {each["name"]: each for each in nodes}
        self.limits: dict[str, JsonObject] = {"h100": limits()}
        self.is_slurm_25 = False
        self.places: dict[str, str | None] = {}
        self.then: Callable[[str], None] = lambda host: None
        self.away: list[int] = []
        self.order: list[str] = []
        self.killed_jobs: list[str] = []
        for each in self.objects[PODS]:
            each["metadata"] |= of_nodeset(f"old-{each['metadata']['name']}", "a")
            each["status"] = READY
        metadata, status = {"name": NODESET, "generation": 2}, {"observedGeneration": 2, "nodeSetHash": "b"}
        self.objects |= {
            NODESETS: [{"metadata": metadata, "spec": {"replicas": len(nodes)}, "status": status}],
            REVISIONS: [revision("a", "1", *self.workers), revision("b", image, *self.workers)],
            NODES: [{"metadata": {"name": name, "annotations": {}}, "spec": {}} for name in self.workers],
            RESTD: {"status": {"readyReplicas": 2}},
            DIAG: {"statistics": {"req_time_start": {"set": True, "number": 1000}}},
        }

    def get(self, path: str, **query: str) -> JsonObject:
        if path == f"{REST}/nodes/":
            return {"nodes": list(self.nodes.values())}
        if path == f"{REST}/partitions/" or (path == NEWER and not self.is_slurm_25):
            found = [{"name": name, **each} for name, each in self.limits.items()]
            return {"partitions": found if path == NEWER else [_older(each) for each in found]}
        return super().get(path, **query)

    def create(self, path: str, body: Mapping[str, Any]) -> JsonObject:
        if path == NEWER:
            if self.is_slurm_25:
                raise not_found(path)
            [changed] = body["partitions"]
            for part, values in changed.items():
                if part == "flags":
                    flags = {*self.limits[changed["name"]][part], *values}
                    flags -= {
                        f"{each}{end}"
                        for each in FLAGS
                        if f"{each}_CLEAR" in values
                        for end in ("", "_CLEAR")
                    }
                    self.limits[changed["name"]][part] = sorted(flags)
                elif part != "name":
                    self.limits[changed["name"]][part] |= values
            return {}
        name = path.removeprefix(f"{REST}/node/")
        if name == path:
            return super().create(path, body)
        self._change()
        found, [word] = self.nodes[name], body["state"]
        states = {*found["state"]} - {"DRAIN"} | ({word} if word != "UNDRAIN" else set())
        states -= {"IDLE"} if word == "DOWN" else set()
        by = "slurm" if word != "UNDRAIN" else ""
        self.nodes[name] = {
            **found, "state": sorted(states), "reason": body["reason"], "reason_set_by_user": by
        }  # fmt: skip
        return {}

    def merge(self, path: str, body: Mapping[str, Any]) -> JsonObject:
        self._change()
        kind, _, name = path.rpartition("/")
        listed = self.objects.get(kind, [])
        found = next((each for each in listed if each["metadata"]["name"] == name), self.objects.get(path))
        assert found is not None, path
        annotations = found["metadata"].setdefault("annotations", {})
        for key, text in ((body.get("metadata") or {}).get("annotations") or {}).items():
            annotations.pop(key, None)
            if text is not None:
                annotations[key] = text
        found.get("data", {}).update(body.get("data") or {})
        return dict(super().merge(path, body)) and found

    def delete(self, path: str, **preconditions: str) -> JsonObject:
        self._change()
        name = path.rpartition("/")[2]
        if path.startswith((f"{REST}/node/", OPERATORS)):
            self.nodes.pop(name, None)
            self.deleted.append((path, preconditions))
            return {}
        [gone] = [each for each in self.objects[PODS] if each["metadata"]["name"] == name]
        assert gone["metadata"]["uid"] == preconditions["uid"]
        host, on = gone["spec"]["hostname"], gone["spec"]["nodeName"]
        if {"ALLOCATED", "MIXED"} & {*self.nodes.pop(host, node(host))["state"]}:
            self.killed_jobs.append(host)
        self.objects[PODS].remove(gone)
        self.order.append(host)
        self.away.append(sum(self._is_out(each) for each in self.nodes.values()) + self._missing())
        self.clock.at(self.clock.time + BACK_SECONDS, lambda: self._back(host, on))
        return {}

    def _back(self, host: str, on: str) -> None:
        if (place := self.places.get(on, on)) is None:
            return
        made = pod(host, place)
        made["metadata"] |= of_nodeset(f"new-{host}", "b")
        made["status"] = READY
        self.objects[PODS].append(made)
        self.nodes[host] = node(host)
        self.then(host)

    @staticmethod
    def _is_out(each: JsonObject) -> bool:
        return "DRAIN" in each["state"] and each["reason"] == UPDATE

    def _missing(self) -> int:
        return len(self.workers) - len(self.nodes)

    def _change(self) -> None:
        self.changes += 1
        if self.changes == self.kill_at:
            raise Killed

    def state(self) -> dict[str, tuple[str, str]]:
        return {name: ("+".join(each["state"]), each["reason"]) for name, each in sorted(self.nodes.items())}

    def hashes(self) -> set[str]:
        return {each["metadata"]["labels"][HASH] for each in self.objects[PODS]}


def step(
    cluster: Rolling, name: str = "roll", workers: Any = None, said: list[str] | None = None, **more: Any
) -> list[str]:
    """Run one of both steps; `more` changes its request."""
    chosen = tuple(cluster.workers if workers is None else workers)
    asked = {
        "namespace": "slurm", "workers": {"h100": chosen}, "partitions": ["h100"], "gres_conf": ""
    }  # fmt: skip
    limits = {"max_unavailable": 1, "job_seconds": 600, "timeout_seconds": 60}
    act = {"roll": roll, "before-change": before_change}[name]
    spec = RollSpec.model_validate({**asked, **limits, **more})
    return act(cluster, spec, cluster.clock, ([] if said is None else said).append)


def idle(count: int) -> list[JsonObject]:
    return [node(f"h100-{number}") for number in range(count)]


def ends(cluster: Rolling, host: str, at: float) -> None:
    def end() -> None:
        states = {*cluster.nodes[host]["state"]} - {"ALLOCATED", "MIXED"}
        cluster.nodes[host]["state"] = sorted(states | {"IDLE"})

    cluster.clock.at(at, end)


def with_config(cluster: Rolling, partition: str = "") -> Rolling:
    """The same, with the ConfigMap in which limits are kept, and these words for the partition."""
    cluster.objects[CONFIG] = {"metadata": {}, "data": {"gres.conf": ""}}
    cluster.objects[NODESETS][0]["spec"]["partition"] = {"config": partition}
    return cluster


@pytest.mark.parametrize(
    ("before", "then", "after"),
    [
        ("Default=YES State=UP", "Default=YES State=UP", limits(60, "lab")),
        ("MaxTime=7-00:00:00 State=UP", "State=UP MaxTime=7-00:00:00", limits(60, "lab")),
        ("MaxTime=7-00:00:00 State=UP", "State=UP", limits(accounts="lab")),
        ("State=UP", "State=UP AllowAccounts=ops", limits(60, "ops")),
        ("MaxTime=7-00:00:00", "MaxTime=7-00:00:00", limits()),
    ],
)
def test_a_limit_that_somebody_has_set_stays_unless_the_stack_file_has_another_one(
    before: str, then: str, after: JsonObject
) -> None:
    cluster = with_config(Rolling(*idle(1), image="1"), before)
    cluster.limits["h100"] = limits(60, "lab") if after != limits() else limits()
    step(cluster, "before-change")
    cluster.objects[NODESETS][0]["spec"]["partition"] = {"config": then}
    written = limits(0 if "MaxTime" not in then else 10080, "ops" if "ops" in then else "")
    cluster.clock.at(cluster.clock.time + 6, lambda: cluster.limits.update(h100=written))
    step(cluster)
    cluster.clock.pause(10)
    assert cluster.limits == {"h100": after}
    assert cluster.objects[CONFIG]["metadata"]["annotations"] == {}


@pytest.mark.parametrize(
    ("line", "set_by_hand", "read"),
    [("State=UP", ["LLN", *FLAGS], ["LLN"]), ("RootOnly=YES", ["LLN"], ["LLN", "ROOT_ONLY"])],
    ids=["closed", "opened"],
)
def test_a_partition_stays_for_root_or_reservations_alone_or_open_as_somebody_has_set_it(
    line: str, set_by_hand: list[str], read: list[str]
) -> None:
    cluster = with_config(Rolling(*idle(1), image="1"), line)
    cluster.limits["h100"] = limits(0, "", *set_by_hand)
    step(cluster, "before-change")
    cluster.clock.at(cluster.clock.time + 6, lambda: cluster.limits.update(h100=limits(0, "", *read)))
    step(cluster)
    cluster.clock.pause(10)
    assert sorted(cluster.limits["h100"]["flags"]) == sorted(set_by_hand)


def test_a_limit_that_slurm_cannot_be_told_is_named() -> None:
    cluster, said = with_config(Rolling(*idle(1), image="1")), list[str]()
    cluster.limits["h100"], cluster.is_slurm_25 = limits(60, "lab"), True
    step(cluster, "before-change")
    cluster.limits["h100"] = limits()
    step(cluster, said=said)
    [warning] = [each for each in said if "warning" in each]
    assert "Fix: scontrol update partitionname=h100 AllowAccounts=lab MaxTime=60; with" in warning


@pytest.mark.parametrize(("read_at", "after"), [(1000, 120), (2000, 60)], ids=["new one", "forgotten one"])
def test_an_update_that_is_tried_again_notes_limits_unless_slurmctld_has_forgotten_them(
    read_at: int, after: int
) -> None:
    cluster = with_config(Rolling(*idle(1), image="1"))
    for minutes in (60, 120):
        cluster.limits["h100"] = limits(minutes)
        step(cluster, "before-change")
        cluster.objects[DIAG]["statistics"]["req_time_start"]["number"] = read_at
    cluster.limits["h100"] = limits()
    step(cluster)
    assert cluster.limits == {"h100": limits(after)}


@pytest.mark.parametrize("at_once", [1, 2])
def test_pods_are_replaced_with_no_more_than_max_unavailable_out_of_service(at_once: int) -> None:
    cluster = Rolling(*idle(5))
    step(cluster, max_unavailable=at_once)
    assert sorted(cluster.order) == [each["name"] for each in idle(5)]
    assert max(cluster.away) == at_once
    assert set(cluster.state().values()) == {("IDLE", "")}
    assert cluster.hashes() == {"b"}


def test_the_jobs_of_a_node_end_before_its_pod_is_deleted_and_idle_nodes_go_first() -> None:
    cluster = Rolling(node("h100-0", "ALLOCATED"), *idle(3)[1:])
    ends(cluster, "h100-0", 300)
    step(cluster)
    assert cluster.killed_jobs == []
    assert cluster.order[-1] == "h100-0"
    assert cluster.clock.time >= 300


def test_the_pod_of_a_suspended_job_is_not_deleted() -> None:
    cluster = Rolling(*idle(2))
    suspended = {"job_id": 9, "job_state": ["SUSPENDED"], "nodes": "h100-0"}
    cluster.objects[f"{REST}/jobs/"] = {"jobs": [suspended]}
    with pytest.raises(Failed, match="remaining jobs: squeue -w h100-0"):
        step(cluster)
    assert "h100-0" not in cluster.order


OURS, OF_OPERATOR = "busbar: update", "slurm-operator: Pod is terminating"
GRES = "gres/gpu count reported lower"
BIOS, QUARANTINE = "busbar: update of the BIOS", "busbar: quarantine: fan 3"


@pytest.mark.parametrize(
    ("states", "reason", "by", "after"),
    [
        ("DOWN", "smoke", "root", ("DOWN", "smoke")),
        # An administrator in slurmctld's pod is the user slurm.
        ("DOWN", "smoke", "slurm", ("DOWN", "smoke")),
        ("FAIL IDLE", "fan 3", "root", ("FAIL+IDLE", "fan 3")),
        ("DRAIN IDLE", "ticket 12", "slurm", ("DRAIN+IDLE", "ticket 12")),
        ("DRAIN IDLE", "gres/gpu 3 is slow", "slurm", ("DRAIN+IDLE", "gres/gpu 3 is slow")),
        ("DRAIN IDLE", BIOS, "slurm", ("DRAIN+IDLE", BIOS)),
        ("DRAIN IDLE", OURS, "root", ("DRAIN+IDLE", f"{OURS} (root)")),
        ("DRAIN IDLE", "fan 3 : Not responding", "slurm", ("DRAIN+IDLE", "fan 3")),
        # Wrong GRES hide no drain of others.
        ("IDLE DRAIN INVALID_REG", "ticket 12", "slurm", ("DRAIN+IDLE", "ticket 12")),
        ("IDLE DRAIN INVALID_REG", QUARANTINE, "slurm", ("DRAIN+IDLE", QUARANTINE)),
        ("IDLE DRAIN INVALID_REG", f"{GRES} than configured (0 < 8)", "slurm", ("IDLE", "")),
        ("DOWN", OF_OPERATOR, "slurm", ("IDLE", "")),
        ("DOWN", "Not responding", "slurm", ("IDLE", "")),
        ("DRAIN IDLE", OURS, "slurm", ("IDLE", "")),
    ],
)
def test_what_a_person_has_set_is_set_again_on_the_new_pod_and_leaves_no_note(
    states: str, reason: str, by: str, after: tuple[str, str]
) -> None:
    cluster = Rolling(node("h100-0", *states.split(), reason=reason, by=by), *idle(2)[1:])
    step(cluster)
    assert cluster.state() == {"h100-0": after, "h100-1": ("IDLE", "")}
    assert cluster.hashes() == {"b"}
    assert not [each for each in cluster.objects[NODES] if KEPT in each["metadata"]["annotations"]]


def test_an_update_that_was_killed_anywhere_ends_with_the_next_one() -> None:
    def made() -> Rolling:
        return Rolling(node("h100-0", "IDLE", "DRAIN", reason="ticket 12"), *idle(3)[1:])

    whole = made()
    step(whole)
    for kill_at in range(1, whole.changes + 1):
        cluster = made()
        cluster.kill_at = kill_at
        with pytest.raises(Killed):
            step(cluster)
        cluster.kill_at = 0
        cluster.clock.pause(BACK_SECONDS)
        step(cluster)
        assert cluster.state() == whole.state(), kill_at
        assert sorted(cluster.order) == sorted(whole.order), kill_at


def unchanged(*nodes: JsonObject) -> Rolling:
    cluster = Rolling(*nodes)
    for each in cluster.objects[PODS]:
        each["metadata"]["labels"][HASH] = "b"
    return cluster


def of_more_workers() -> Rolling:
    """A new template that differs in its list of workers only."""
    cluster = Rolling(*idle(2), image="1")
    cluster.objects[REVISIONS][1] = revision("b", "1", "gpu-1", "gpu-2", "gpu-3")
    return cluster


@pytest.mark.parametrize(
    ("cluster", "name", "workers"),
    [
        (unchanged(*idle(2)), "roll", None),
        (unchanged(node("h100-0", "IDLE", "DRAIN", reason="ticket 12")), "roll", None),
        (of_more_workers(), "roll", None),
        (Rolling(*idle(2)), "before-change", ["gpu-1", "gpu-2", "gpu-3"]),
    ],
    ids=["no change", "a drain of a person", "another list", "more workers"],
)
def test_where_every_pod_stays_nothing_is_touched(
    cluster: Rolling, name: str, workers: list[str] | None
) -> None:
    assert step(cluster, name, workers) == []
    assert cluster.changes == 0


def test_a_pod_on_a_worker_that_is_not_one_any_more_is_replaced() -> None:
    cluster = Rolling(*idle(2), image="1")
    cluster.workers, cluster.places = ["gpu-1", "gpu-3"], {"gpu-2": "gpu-3"}
    assert step(cluster) == ["slurm-worker-h100-1"]


def test_jobs_are_refused_where_they_may_not_be_waited_for_and_nothing_is_touched() -> None:
    cluster = Rolling(node("h100-0", "MIXED"), *idle(2)[1:])
    with pytest.raises(Failed, match=r"jobs of Slurm run on h100-0.*update\.job_seconds"):
        step(cluster, job_seconds=0)
    assert cluster.changes == 0
    interrupted = Rolling(node("h100-0", "DRAIN", "MIXED", reason=UPDATE))
    with pytest.raises(Failed, match="jobs of Slurm run on h100-0"):
        step(interrupted, job_seconds=0)
    assert interrupted.state() == {"h100-0": ("MIXED", "")}, "the drain of an earlier update ends"


def test_jobs_on_nodes_that_stay_are_no_reason_to_refuse() -> None:
    cluster = Rolling(node("h100-0", "MIXED"), *idle(2)[1:])
    cluster.objects[PODS][0]["metadata"]["labels"][HASH] = "b"
    assert step(cluster, job_seconds=0) == ["slurm-worker-h100-1"]


@pytest.mark.parametrize("states", [["DOWN", "NOT_RESPONDING"], None])
def test_a_new_pod_is_back_when_slurm_has_its_node_and_not_before(states: list[str] | None) -> None:
    cluster = Rolling(*idle(2))

    def late(host: str) -> None:
        if host == "h100-0":
            del cluster.nodes[host]
            if states:
                cluster.nodes[host] = node(host, *states)
            cluster.clock.at(cluster.clock.time + 20, lambda: cluster.nodes.update({host: node(host)}))

    cluster.then = late
    step(cluster)
    assert cluster.order == ["h100-0", "h100-1"]
    assert cluster.clock.time >= 20 + 2 * BACK_SECONDS


def test_a_job_that_does_not_end_keeps_its_node_which_is_in_service_again() -> None:
    cluster = Rolling(node("h100-0", "ALLOCATED"), *idle(2)[1:])
    with pytest.raises(Failed, match=r"remaining jobs: squeue -w h100-0;.*update\.job_seconds"):
        step(cluster, job_seconds=60)
    assert cluster.state() == {"h100-0": ("ALLOCATED", ""), "h100-1": ("IDLE", "")}
    assert cluster.order == ["h100-1"]


def test_a_new_pod_whose_node_does_not_come_back_ends_the_update_before_the_next_one() -> None:
    cluster = Rolling(*idle(3))
    cluster.places = {"gpu-1": None}
    with pytest.raises(Failed, match=r"timed out after 60 s: pod slurm-worker-h100-0 is being replaced"):
        step(cluster)
    assert cluster.order == ["h100-0"]
    assert [each for each in cluster.state().values() if each[1] == UPDATE] == []


def test_a_dead_host_keeps_no_other_pod_from_the_update() -> None:
    cluster = Rolling(node("h100-0", "DOWN", "NOT_RESPONDING"), *idle(3)[1:])
    cluster.places = {"gpu-1": None}
    with pytest.raises(Failed, match="pod slurm-worker-h100-0 is being replaced"):
        step(cluster)
    assert cluster.order == ["h100-1", "h100-2", "h100-0"]


def test_a_pod_on_a_cordoned_node_or_unknown_to_slurm_is_replaced_without_a_wait_for_it() -> None:
    cluster = Rolling(node("h100-0", "IDLE", "DRAIN", reason="slurm-operator: fan"), *idle(3)[1:])
    cluster.objects[NODES][0]["spec"] = {"unschedulable": True}
    cluster.places = {"gpu-1": ""}
    del cluster.nodes["h100-1"]
    step(cluster)
    assert cluster.hashes() == {"b"}
    assert KEPT not in cluster.objects[NODES][0]["metadata"]["annotations"]


def test_slurmdbd_is_started_again_with_another_password_which_the_operator_does_not_watch() -> None:
    accounting = "/apis/slinky.slurm.net/v1beta1/namespaces/slurm/accountings/slurm"
    secret = "/api/v1/namespaces/slurm/secrets/busbar-slurm-database"
    cluster = Rolling(*idle(1))
    cluster.objects |= {secret: {"metadata": {"resourceVersion": "7"}}, accounting: {"metadata": {}}}
    step(cluster)
    # The operator copies these annotations to the pod template of slurmdbd.
    assert [*cluster.objects[accounting]["metadata"]["annotations"].values()] == ["7"]


def test_the_cordon_that_the_operator_has_left_on_a_pod_is_taken_away() -> None:
    cluster = Rolling(*idle(2))
    mark = {"nodeset.slinky.slurm.net/pod-cordon": "true"}
    for number, each in enumerate(cluster.objects[PODS]):
        each["metadata"] |= {"labels": {HASH: "b"}, "annotations": dict(mark)}
        cluster.objects[NODES][number]["spec"] = {"unschedulable": number == 1}
    step(cluster)
    assert [each["metadata"]["annotations"] for each in cluster.objects[PODS]] == [{}, mark]


@pytest.mark.parametrize(
    ("section", "change", "said"),
    [
        ("metadata", {"generation": 3}, f"has not read NodeSet {NODESET} yet"),
        ("spec", {"replicas": 3}, f"NodeSet {NODESET} has 2 pods, expected 3"),
    ],
)
def test_an_operator_that_has_not_read_a_nodeset_or_made_its_pods_is_waited_for(
    section: str, change: dict[str, int], said: str
) -> None:
    cluster = Rolling(*idle(2))
    cluster.objects[NODESETS][0][section].update(change)
    with pytest.raises(TimedOut, match=said):
        step(cluster)
    assert cluster.changes == 0


def test_fewer_workers_are_drained_before_the_nodeset_changes_and_marked_for_the_operator() -> None:
    cluster = Rolling(*idle(2), node("h100-2", "ALLOCATED"))
    ends(cluster, "h100-2", 100)
    assert step(cluster, "before-change", ["gpu-1", "gpu-2"]) == ["slurm-worker-h100-2"]
    assert cluster.clock.time >= 100
    assert cluster.state()["h100-2"] == ("DRAIN+IDLE", UPDATE)
    marked = [each["metadata"].get("annotations") for each in cluster.objects[PODS]]
    assert marked == [None, None, {"nodeset.slinky.slurm.net/pod-deletion-cost": "-1"}]
    assert cluster.order == []
    # So is a pool that leaves, before its NodeSet is removed.
    step(cluster, "before-change", [])
    assert {reason for _, reason in cluster.state().values()} == {UPDATE}


def test_workers_that_stay_after_all_are_put_back() -> None:
    cluster = Rolling(*idle(2), image="1")
    step(cluster, "before-change", ["gpu-1"])
    step(cluster)
    assert set(cluster.state().values()) == {("IDLE", "")}
    assert [each["metadata"].get("annotations") or {} for each in cluster.objects[PODS]] == [{}, {}]


def without_pods(cluster: Rolling) -> list[JsonObject]:
    """The operator makes no pod of slurmd; these would be the pods."""
    pods, cluster.objects[PODS] = cluster.objects[PODS], []
    cluster.objects[OPERATORS] = [{"metadata": {"name": "slurm-operator-0", "uid": "1"}}]
    return pods


def test_an_operator_that_makes_no_pod_is_restarted_once_after_slurmrestd_is_ready() -> None:
    cluster = Rolling(*idle(2), image="1")
    pods = without_pods(cluster)
    ready = cluster.objects.pop(DIAG)
    cluster.clock.at(100, lambda: cluster.objects.update({DIAG: ready}))
    cluster.clock.at(170, lambda: cluster.objects.update({PODS: pods}))
    step(cluster, timeout_seconds=300)
    assert cluster.deleted == [(f"{OPERATORS}/slurm-operator-0", {"uid": "1"})]
    assert cluster.clock.time >= 170


def test_an_operator_that_makes_its_pods_in_time_is_not_restarted() -> None:
    cluster = Rolling(*idle(2), image="1")
    pods = without_pods(cluster)
    cluster.clock.at(40, lambda: cluster.objects.update({PODS: pods}))
    step(cluster)
    assert cluster.deleted == []


def test_the_record_of_a_removed_node_is_deleted_when_its_pod_is_gone_and_no_other_record_is() -> None:
    cluster = Rolling(*idle(3), image="1")
    cluster.objects[NODESETS][0]["spec"]["replicas"] = 2
    leaving = cluster.objects[PODS][2]
    leaving["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    cluster.nodes["login-0"] = {**node("login-0"), "comment": "ours"}
    cluster.clock.at(20, lambda: cluster.objects[PODS].remove(leaving))
    step(cluster)
    assert cluster.deleted == [(f"{REST}/node/h100-2", {})]
    assert set(cluster.nodes) == {"h100-0", "h100-1", "login-0"}


def test_the_records_of_a_removed_pool_are_deleted() -> None:
    cluster = Rolling(*idle(2), image="1")
    cluster.objects[NODESETS] = []
    cluster.clock.at(20, cluster.objects[PODS].clear)
    step(cluster, workers=[])
    assert cluster.nodes == {}


def test_a_pod_of_a_dead_host_that_does_not_end_keeps_its_record_and_ends_no_update() -> None:
    cluster = Rolling(*idle(2), image="1")
    cluster.objects[NODESETS][0]["spec"]["replicas"] = 1
    cluster.objects[PODS][1]["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    step(cluster)
    assert set(cluster.nodes) == {"h100-0", "h100-1"}


def test_a_drain_that_the_operator_has_left_for_the_end_of_a_pod_is_taken_away() -> None:
    cluster = Rolling(*idle(1))
    cluster.then = lambda host: cluster.nodes.update({host: node(host, "IDLE", "DRAIN", reason=OF_OPERATOR)})
    step(cluster)
    assert cluster.state() == {"h100-0": ("IDLE", "")}


def test_the_reason_of_a_pod_that_waits_is_in_the_error() -> None:
    cluster = Rolling(*idle(1))
    waiting = {"waiting": {"reason": "ErrImagePull", "message": "not found"}}
    status = {"initContainerStatuses": [{"name": "logfile", "state": waiting}]}
    cluster.then = lambda _: cluster.objects[PODS][0].update(status=status)
    with pytest.raises(Failed, match="is not ready yet: ErrImagePull: container logfile: not found"):
        step(cluster)


class Configured(Rolling):
    """Slurm whose slurmctld reads a changed gres.conf after some seconds."""

    def __init__(self, *, reads: bool = True) -> None:
        super().__init__(*idle(1))
        self.read_at, self.reads = 1000, reads
        metadata = {"managedFields": [{"time": "1970-01-01T00:10:00Z"}], "resourceVersion": "7"}
        self.objects[CONFIG] = {"metadata": metadata, "data": {"gres.conf": "Name=gpu File=/dev/nvidia0\n"}}
        self.objects[SLURM_CONF] = {"metadata": {**metadata}, "data": {"slurm.conf": "a"}}

    def get(self, path: str, **query: str) -> JsonObject:
        if path == f"{REST}/diag/":
            return {"statistics": {"req_time_start": {"set": True, "number": self.read_at}}}
        return super().get(path, **query)

    def merge(self, path: str, body: Mapping[str, Any]) -> JsonObject:
        if body.get("data"):
            fields = self.objects[CONFIG]["metadata"]["managedFields"]
            fields.append({"time": "1970-01-01T01:00:00Z"})
            if self.reads:
                self.clock.at(self.clock.time + 20, self._read)
        return super().merge(path, body)

    def _read(self) -> None:
        self.read_at, self.limits = 3605, {"h100": limits()}

    def write_conf(self, text: str) -> None:
        metadata = {"managedFields": [{"time": "1970-01-01T01:00:00Z"}], "resourceVersion": "8"}
        self.objects[SLURM_CONF] = {"metadata": metadata, "data": {"slurm.conf": text}}


def test_gres_conf_is_written_first_and_slurmctld_must_have_it_unless_it_is_unchanged() -> None:
    cluster, same = Configured(), Configured()
    step(cluster, "before-change", gres_conf="Name=gpu File=/dev/nvidia[0-1]\n")
    assert cluster.clock.time >= 20
    assert cluster.objects[CONFIG]["data"]["gres.conf"] == "Name=gpu File=/dev/nvidia[0-1]\n"
    step(same, "before-change", gres_conf="Name=gpu File=/dev/nvidia0")
    assert not [path for path, body in same.patched if "data" in body]
    assert same.clock.time == 0


def test_a_time_limit_that_somebody_has_set_holds_while_jobs_of_leaving_nodes_are_waited_for() -> None:
    cluster = Configured()
    cluster.limits["h100"] = limits(60)
    step(cluster, "before-change", gres_conf="Name=gpu File=/dev/nvidia[0-1]\n")
    assert (cluster.read_at, cluster.limits) == (3605, {"h100": limits(60)})


def test_pods_are_replaced_after_slurmctld_has_read_a_changed_slurm_conf() -> None:
    cluster = Configured()
    step(cluster, "before-change", gres_conf="Name=gpu File=/dev/nvidia0")
    cluster.write_conf("b")
    cluster.clock.at(20, cluster._read)
    step(cluster)
    assert cluster.order and cluster.clock.time >= 20
    assert cluster.objects[CONFIG]["metadata"]["annotations"] == {}


def test_a_slurm_conf_that_slurmctld_does_not_read_fails_the_update_until_it_is_corrected() -> None:
    cluster = Configured()
    for _ in range(2):
        step(cluster, "before-change", gres_conf="Name=gpu File=/dev/nvidia0")
        cluster.write_conf("SchedulerType=sched/nope")
        with pytest.raises(Failed, match=r"has not read the new slurm\.conf yet.* correct slurm_conf"):
            step(cluster)
    cluster.write_conf("a")
    step(cluster)
    assert cluster.hashes() == {"b"}


def test_without_the_new_gres_conf_in_slurmctld_nothing_changes_also_when_tried_again() -> None:
    cluster = Configured(reads=False)
    for _ in range(2):
        with pytest.raises(Failed, match=r"slurmctld has not read the new gres\.conf yet; no NodeSet was"):
            step(cluster, "before-change", gres_conf="Name=gpu Type=b200")
    cluster.read_at = 3600
    step(cluster, "before-change", gres_conf="Name=gpu Type=b200")


def test_slurmrestd_that_is_away_for_a_moment_ends_no_update() -> None:
    cluster = Rolling(*idle(2))
    cluster.failures = [None, None, ApiError("GET", 503, "no endpoints"), ApiError("GET", 404, "not found")]
    step(cluster)
    assert cluster.hashes() == {"b"}


def leaving(
    jobs: list[JsonObject], reserved: str = "", conf: str = "PartitionName=h100 Nodes=h100\n"
) -> Rolling:
    """The pool of a partition with these jobs and this reservation, which leaves; `conf`: slurm.conf."""
    cluster = Rolling(*idle(1), image="1")
    cluster.objects[f"{REST}/jobs/"] = {"jobs": jobs}
    found = [{"name": "course", "partition": reserved}] if reserved else []
    cluster.objects[f"{REST}/reservations/"] = {"reservations": found}
    cluster.objects[SLURM_CONF] = {"metadata": {}, "data": {"slurm.conf": conf}}
    return cluster


def job(number: int, partition: str, *states: str, leader: int = 0) -> JsonObject:
    return {
        "job_id": number,
        "partition": partition,
        "job_state": [*states],
        "het_job_id": {"number": leader},
    }


@pytest.mark.parametrize(
    ("cluster", "said"),
    [
        (
            leaving([job(7, "h100", "PENDING"), job(9, "l40,h100", "PENDING")]),
            r"end its jobs 7 9; .*scancel 7 9",
        ),
        (
            leaving([job(8, "h100", "PENDING", leader=7), job(9, "h100", "COMPLETED")]),
            r"its jobs 7; .*scancel 7;",
        ),
        (leaving([], reserved="h100"), r"delete the reservation course; .*reservationname=course"),
        (leaving([], conf=""), r"would forget it; it stays.* scontrol delete partitionname=h100"),
        (leaving([job(7, "l40", "PENDING")], reserved="l40"), ""),
    ],
    ids=["waiting jobs", "heterogeneous job", "reservation", "by hand", "none of it"],
)
def test_a_partition_leaves_without_jobs_and_reservations_only(cluster: Rolling, said: str) -> None:
    if not said:
        step(cluster, "before-change", [], partitions=[])
        return
    with pytest.raises(Failed, match=f"partition h100 is not configured.* {said}"):
        step(cluster, "before-change", [], partitions=[])
    assert cluster.changes == 0


def test_slurmctld_is_told_of_no_file_beside_a_partition_that_it_would_forget() -> None:
    cluster = Configured()
    cluster.limits["mine"] = limits()
    with pytest.raises(Failed, match=r"partition mine is .* scontrol delete partitionname=mine"):
        step(cluster, "before-change", gres_conf="Name=gpu File=/dev/nvidia[0-1]")
    assert cluster.changes == 0


def test_a_job_that_comes_while_the_nodes_of_a_pool_are_drained_keeps_them_and_its_partition() -> None:
    cluster = leaving([job(7, "h100", "RUNNING")])
    cluster.nodes["h100-0"] = node("h100-0", "ALLOCATED")
    ends(cluster, "h100-0", 100)
    jobs = {"jobs": [job(8, "h100", "PENDING")]}
    cluster.clock.at(100, lambda: cluster.objects.update({f"{REST}/jobs/": jobs}))
    with pytest.raises(Failed, match="end its jobs 8; it stays"):
        step(cluster, "before-change", [], partitions=[])
    assert (cluster.clock.time >= 100, cluster.state()) == (True, {"h100-0": ("IDLE", "")})


def test_the_partitions_of_pools_and_those_that_the_site_enables_are_configured() -> None:
    given = slurm(
        values={"partitions": {"all": {"enabled": True, "nodesets": ["ALL"]}, "off": {}, "no": None}}
    )
    assert RollSpec.of(given, pools(given)).partitions == ("h100", "all")

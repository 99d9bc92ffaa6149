"""Jobs and objects that a destroy refuses, ends, or finds to be gone."""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from busbar.cli import charts
from busbar.cli.stack import Target, guard
from busbar.cli.stack.engine import Snapshot
from busbar.cli.stack.guard import Guard, check_removed, check_upgrades, guard_of
from busbar.cli.stackfile import SecretError
from busbar.config import ConfigError
from busbar.exits import Failed, NoVerdict
from busbar.kube.client import ApiError
from busbar.kube.gpus import Workload
from busbar.operations.verify import UnknownState
from tests.support.clusters import site, stack_file
from tests.support.kube_cluster import Clock

pytestmark = pytest.mark.usefixtures("stack_dev")

KUBECONFIG = {"kubeconfig": "text"}
SWITCH = r"set removal\.cancel_jobs: true in Pulumi\.prod\.yaml, which ends them"


def workload(namespace: str, name: str, kind: str = "MPIJob") -> Workload:
    return Workload(kind, namespace, name, f"/{name}", "")


def raising(error: Exception) -> Any:
    """A function that fails with this error, whatever it is given."""

    def fails(*_: Any) -> None:
        raise error

    return fails


LLAMA, SILENT = workload("ml", "llama"), ApiError("GET /api/v1/pods", None, "connection refused")


class Site:
    """A project folder with the stack `prod`, and the cluster that its guard asks."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        self.workloads: list[Workload] = []
        self.releases: dict[tuple[str, str], str] = {}
        self.owners: dict[str, str] = {}
        self.ended: list[str] = []
        self.running: list[str] = []
        self.of_cluster: dict[str, Any] = {"cluster_id": "11", **KUBECONFIG}
        monkeypatch.setattr(guard, "connect", lambda *_: self)
        monkeypatch.setattr(charts, "RestApi", lambda _: self)
        monkeypatch.setattr(guard, "workloads", lambda _: self.workloads)
        monkeypatch.setattr(guard, "owners", lambda _: self.owners)
        monkeypatch.setattr(guard, "statuses", lambda _: self.releases)
        self.others: dict[str, list[str]] = {}
        monkeypatch.setattr(guard, "of_others", lambda _, space, __: self.others.get(space, []))
        monkeypatch.setattr(guard, "running", lambda *_: self.running)
        monkeypatch.setattr(guard, "end", self.end)
        monkeypatch.setattr(charts, "read_outputs", lambda *_: json.dumps(self.of_cluster))

    def end(self, _: Any, look: Any, *__: Any) -> None:
        self.ended = [each.name for each in look()]
        self.workloads = []

    def guard(self, project: str, section: Mapping[str, Any], **state: Any) -> Guard:
        (self.folder / "Pulumi.yaml").write_text(f"name: {project}\n")
        key = "cluster" if project == "busbar" else project.removeprefix("busbar-")
        content = {"config": {f"{project}:{key}": dict(section)}}
        (self.folder / "Pulumi.prod.yaml").write_text(yaml.safe_dump(content))
        self.state = json.dumps({"deployment": {"resources": state.get("resources", [])}})
        snapshot = Snapshot((), (), self.state)
        return guard_of(Target(self.folder, "prod"), snapshot, lambda: state.get("outputs", {}))

    def cluster(self, *resources: dict[str, Any], **section: Any) -> Guard:
        given = {**site(servers=1, workers={"h100": 1}), **section}
        return self.guard("busbar", given, outputs=KUBECONFIG, resources=resources)

    def consumer(self, project: str = "busbar-training", *more: dict[str, Any], **section: Any) -> Guard:
        resources = [
            *more,
            {"urn": "urn::a", "type": "pulumi:pulumi:StackReference", "id": "o/busbar/site"},
            {"urn": "urn::cluster-id", "type": "pulumi:index:Stash", "inputs": {"input": {"id": "11"}}},
        ]
        return self.guard(project, {"cluster": "o/busbar/site", **section}, resources=resources)


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    return Site(tmp_path, monkeypatch)


def test_a_cluster_with_jobs_is_not_destroyed_also_if_they_start_after_the_first_question(made: Site) -> None:
    found = made.cluster()
    found.check()
    made.workloads = [LLAMA]
    for ends in (False, True):
        with pytest.raises(Failed, match=rf"MPIJob ml/llama; nothing was removed\. Fix: .*{SWITCH}"):
            found.check(ends=ends)
    assert made.ended == []


def test_with_the_switch_jobs_are_ended_after_the_answer_and_not_before(made: Site) -> None:
    made.workloads = [LLAMA]
    found = made.cluster(removal={"cancel_jobs": True})
    found.check()
    assert made.ended == []
    found.check(ends=True)
    assert made.ended == ["llama"]


def test_the_releases_of_another_stack_keep_a_cluster_whatever_the_switch_says(made: Site) -> None:
    made.owners = {"slinky": "busbar-slurm_k8s/dev", "slurm": "busbar-slurm_k8s/dev", "gpu": "busbar/prod"}
    names = [("slinky", "slurm-operator"), ("slurm", "slurm"), ("gpu", "gpu-operator"), ("site", "grafana")]
    made.releases = dict.fromkeys(names, "deployed")
    found = made.cluster(removal={"cancel_jobs": True})
    folder = "Fix: `busbar destroy dev` in the folder of busbar-slurm_k8s; without its state: .*"
    with pytest.raises(Failed, match=f"slurm-operator, slurm of busbar-slurm_k8s/dev. {folder}$"):
        found.check()


def namespace(name: str, **more: Any) -> dict[str, Any]:
    """As a state has it."""
    made = {"urn": "urn::n", "type": "kubernetes:core/v1:Namespace", "inputs": {"metadata": {"name": name}}}
    return {**made, **more}


RELEASE: dict[str, Any] = {
    "urn": "urn::r",
    "type": charts.RELEASE,
    "inputs": {"name": "multus", "namespace": "multus"},
}
THEIRS = (
    r"namespace %s would be deleted, with secrets/mine of others\. Fix: .* delete secrets/mine, and retry"
)


def test_a_destroy_deletes_no_namespace_with_objects_of_others(made: Site) -> None:
    """Charts leave objects of their own in the namespaces that they have to themselves."""
    made.others = {name: ["secrets/mine"] for name in ("multus", "kept", "training")}
    kept = namespace("kept", retainOnDelete=True)
    made.consumer("busbar-training", namespace("multus"), RELEASE, kept, namespace("empty")).check()
    with pytest.raises(Failed, match=THEIRS % "training"):
        made.consumer("busbar-training", namespace("training")).check()
    made.cluster(namespace("training")).check()


def test_an_object_of_the_state_is_not_of_others(made: Site) -> None:
    """The provider sets no label: a program has only its place in the state."""
    made.others = {name: ["configmaps/program"] for name in ("training", "other")}
    program = {
        "urn": "urn::c",
        "type": "kubernetes:core/v1:ConfigMap",
        "inputs": {"metadata": {"name": "program", "namespace": "training"}},
    }
    made.consumer("busbar-training", namespace("training"), program).check()
    with pytest.raises(Failed, match="namespace other would be deleted, with configmaps/program of others"):
        made.consumer("busbar-training", namespace("other"), program).check()


@pytest.mark.parametrize("project", ["busbar", "busbar-training"])
def test_an_update_deletes_no_namespace_with_objects_of_others(made: Site, project: str) -> None:
    made.others, resources = {"multus": ["secrets/mine"]}, (namespace("multus"), RELEASE)
    made.cluster(*resources) if project == "busbar" else made.consumer(project, *resources)
    urns = tuple(f"urn:pulumi:prod::p::{kind}::{name}" for kind, name in ((charts.RELEASE, "r"), ("x", "n")))
    target, snapshot = Target(made.folder, "prod"), Snapshot(urns, (), made.state)
    check_removed(target, snapshot, ({"r"}, set()), lambda: KUBECONFIG)
    with pytest.raises(Failed, match=THEIRS % "multus"):
        check_removed(target, snapshot, ({"r", "n"}, set()), lambda: KUBECONFIG)


def test_after_a_rename_what_a_stack_has_made_is_its_own(made: Site) -> None:
    made.owners = {"gpu-operator": "busbar/former", "training": "busbar-training/former"}
    made.releases = {("gpu-operator", "gpu-operator"): "deployed"}
    made.cluster(namespace("gpu-operator")).check()
    made.workloads = [workload("training", "own", "Pod")]
    with pytest.raises(Failed, match="pending: Pod training/own; nothing"):
        made.consumer("busbar-training", namespace("training")).check()


def test_pods_of_the_cluster_s_own_stack_are_no_jobs(made: Site) -> None:
    made.workloads = [workload("busbar-validation", "nccl")]
    made.owners = {"busbar-validation": "busbar/prod"}
    made.cluster().check()


@pytest.mark.parametrize(
    ("step", "error", "says"),
    [("connect", UnknownState("refused"), "refused"), ("workloads", SILENT, "timed out after 30 s")],
    ids=["no API", "no quorum"],
)
def test_a_cluster_whose_api_is_gone_can_be_destroyed(
    made: Site, monkeypatch: Any, capsys: Any, step: str, error: Exception, says: str
) -> None:
    monkeypatch.setattr(guard, step, raising(error))
    replace(made.cluster(), clock=Clock()).check()
    warning = f"warning: it is not known whether jobs run: the API is not responding: {says}"
    assert warning in capsys.readouterr().err


def test_an_api_that_stops_responding_is_no_evidence(made: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard, "workloads", raising(SILENT))
    with pytest.raises(Failed, match=r"it is unknown whether jobs run: timed out after 30 s: .*refused"):
        replace(made.consumer(), clock=Clock()).check()


def test_a_stack_asks_for_jobs_in_its_namespaces_and_for_those_of_its_kinds(made: Site) -> None:
    made.owners = {"training": "busbar-training/prod", "slurm": "busbar-slurm_k8s/prod"}
    made.workloads = [workload("training", "own", "Pod"), workload("ml", "of-trainer", "TrainJob")]
    made.workloads += [workload("ml", "other"), workload("slurm", "pod", "Pod")]
    with pytest.raises(Failed, match="pending: Pod training/own, TrainJob ml/of-trainer; nothing"):
        made.consumer().check()


@pytest.mark.parametrize(
    ("outputs", "says"), [({}, "has no cluster now"), ({"cluster_id": "22"}, "has another cluster now")]
)
def test_a_stack_whose_cluster_is_gone_has_nothing_left(made: Site, outputs: Any, says: str) -> None:
    made.of_cluster = outputs
    assert says in made.consumer().gone


@pytest.mark.parametrize(
    ("said", "says"),
    [
        ("no stack named 'site' found", r"may still be there\. Fix: .* name it .*; .* --all --stack prod"),
        ("passphrase must be set", "passphrase"),
    ],
    ids=["renamed, in another backend, or of others", "no login"],
)
def test_a_stack_of_a_cluster_that_cannot_be_read_is_no_evidence_that_nothing_is_left(
    made: Site, monkeypatch: pytest.MonkeyPatch, said: str, says: str
) -> None:
    monkeypatch.setenv("BUSBAR_STACK", "prod")
    monkeypatch.setattr(charts, "read_outputs", raising(SecretError(said)))
    with pytest.raises(SecretError, match=says):
        made.consumer()


def test_hosts_of_a_capability_are_asked_by_its_function(made: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    def jobs(path: Path, ends: bool) -> list[str]:
        asked.append((path.name, ends))
        return [] if ends else ["job 7"]

    monkeypatch.setattr("stacks.slurm.package.operations.running_jobs", jobs)
    with pytest.raises(Failed, match=r"pending: job 7; nothing was removed"):
        made.guard("busbar-slurm", {}).check()
    made.guard("busbar-slurm", {"removal": {"cancel_jobs": True}}).check(ends=True)
    assert asked == [("Pulumi.prod.yaml", False), ("Pulumi.prod.yaml", True)]


def test_without_an_answer_about_jobs_a_destroy_begins_only_where_their_end_is_configured(
    made: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stacks.slurm.package.operations.running_jobs", raising(NoVerdict("unknown")))
    made.guard("busbar-slurm", {"removal": {"cancel_jobs": True}}).check()
    for ends, given in ((False, {}), (True, {"removal": {"cancel_jobs": True}})):
        with pytest.raises(Failed, match="unknown"):
            made.guard("busbar-slurm", given).check(ends=ends)


def test_other_programs_are_not_asked_and_a_broken_file_of_busbar_s_is_an_error(made: Site) -> None:
    assert made.guard("tiny", {}).find(True) == ()
    (made.folder / "Pulumi.yaml").write_text("name: busbar\n")
    (made.folder / "Pulumi.prod.yaml").write_text("config: [\n")
    with pytest.raises(ConfigError):
        guard_of(Target(made.folder, "prod"), Snapshot((), ()), dict)


def test_a_state_is_emptied_and_keeps_its_secrets_provider() -> None:
    kept = {"version": 3, "deployment": {"secrets_providers": {"type": "passphrase"}, "resources": [1]}}
    emptied = json.loads(Snapshot((), (), json.dumps(kept)).emptied)["deployment"]
    assert emptied == {"secrets_providers": {"type": "passphrase"}, "resources": [], "pending_operations": []}


def replace_servers(folder: Path, *former: str) -> None:
    """Ask about an update of a stack with server-1 to server-3, whose state has the FORMER ones."""
    (folder / "Pulumi.yaml").write_text("name: busbar\n")
    stack_file(folder, site(servers=3))
    names = [f"busbar-control-plane{part}@{name}" for name in former for part in ("", "-removal")]
    names += ["busbar-worker@gpu-1", "busbar-worker-removal@gpu-1", "busbar-control-plane-removal@broken"]
    urns = tuple(f"urn:pulumi:prod::busbar::type::{name}" for name in names)
    check_upgrades(Target(folder, "prod"), Snapshot(urns, (), json.dumps({"deployment": {}})))


def test_servers_that_are_all_replaced_at_once_are_refused(tmp_path: Path) -> None:
    """They would begin another cluster, and the removal of the last former one would delete the data."""
    for former in ((), ("server-3",), ("server-1", "old-2", "old-3")):
        replace_servers(tmp_path, *former)
    told = r"^no changes made: no server of the cluster stays \(old-1, old-2\).* Fix: replace them one after"
    with pytest.raises(Failed, match=told):
        replace_servers(tmp_path, "old-1", "old-2")


def upgrade(folder: Path, network: Mapping[str, Any], in_state: str | None, **more: Any) -> None:
    """Ask about an update of a stack whose state has this version of the Network Operator."""
    (folder / "Pulumi.yaml").write_text("name: busbar\n")
    stack_file(folder, site(network_operator=network, **more))
    release = {
        "type": "kubernetes:helm.sh/v3:Release",
        "inputs": {"name": "network-operator"},
        "outputs": {"status": {"version": in_state}},
    }
    state = json.dumps({"deployment": {"resources": [release] if in_state else []}})
    check_upgrades(Target(folder, "prod"), Snapshot((), (), state))


def test_an_upgrade_over_a_major_release_is_refused_with_those_between(tmp_path: Path) -> None:
    refused = r"^no changes made:\nnetwork_operator\.version: '26\.10\.0' cannot"
    with pytest.raises(Failed, match=refused) as told:
        upgrade(tmp_path, {"version": "26.10.0"}, "26.1.2")
    assert "to 26.4.2, then to 26.7.0 first, each with: busbar up dev\nIf Helm has" in str(told.value)


@pytest.mark.parametrize(
    ("network", "in_state"),
    [
        ({"version": "26.7.0"}, "26.7.0"),
        ({"version": "26.4.2"}, "26.1.2"),
        ({"version": "26.10.0"}, None),
        ({"version": "26.10.0", "enabled": False}, None),
    ],
)
def test_upgrades_of_one_step_pass(tmp_path: Path, network: Mapping[str, Any], in_state: str | None) -> None:
    upgrade(tmp_path, network, in_state)


def test_a_local_chart_has_its_own_version(tmp_path: Path) -> None:
    (tmp_path / "chart").mkdir()
    about = tmp_path / "chart" / "Chart.yaml"
    about.write_text("name: network-operator\nversion: 26.4.2\n")
    upgrade(tmp_path, {"chart": "./chart"}, "26.1.2")
    about.write_text("name: network-operator\nversion: 26.7.0\n")
    with pytest.raises(Failed, match=r"'26\.7\.0' cannot follow 26\.1\.2"):
        upgrade(tmp_path, {"chart": "./chart"}, "26.1.2")


def test_an_operator_is_not_switched_off_after_a_measurement_with_it(tmp_path: Path) -> None:
    off = {"version": "26.10.0", "enabled": False}
    text = (
        r"made: network_operator\.enabled: false would remove .* Fix: set validation\.enabled: false for this"
    )
    with pytest.raises(Failed, match=text):
        upgrade(tmp_path, off, "26.1.2")
    upgrade(tmp_path, off, "26.1.2", validation={"enabled": False})


@pytest.mark.parametrize("project", ["busbar", "busbar-training"])
def test_an_update_deletes_no_release_while_jobs_run(made: Site, project: str) -> None:
    kind = "TrainJob" if project == "busbar-training" else "MPIJob"
    made.workloads, made.owners = [workload("ml", "llama", kind)], {"slurm": "busbar-slurm_k8s/dev"}
    made.releases = {("slurm", "slurm"): "deployed"}
    made.consumer() if kind == "TrainJob" else made.cluster(removal={"cancel_jobs": True})
    urns = (
        "urn:pulumi:prod::p::a$kubernetes:helm.sh/v3:Release::x-release",
        "urn:pulumi:prod::p::T::y-release",
        "urn:pulumi:prod::p::kubernetes:core/v1:Namespace::space",
    )
    target, snapshot = Target(made.folder, "prod"), Snapshot(urns, (), made.state)
    refused = rf"x-release would be deleted, and jobs are .*: {kind} ml/llama\. Fix: wait"
    with pytest.raises(Failed, match=refused):
        check_removed(target, snapshot, ({"x-release"}, set()), lambda: KUBECONFIG)
    check_removed(target, snapshot, ({"y"}, set()), lambda: KUBECONFIG)
    # A namespace of another name takes the former one away, and a release that is replaced its CRDs.
    for renamed in ("space", "x-release"):
        with pytest.raises(Failed, match=rf"{renamed} would be deleted, and jobs are .*: {kind} ml/llama"):
            check_removed(target, snapshot, (set(), {renamed}), lambda: KUBECONFIG)
    check_removed(target, snapshot, ({"space"}, {"y"}), lambda: KUBECONFIG)
    made.workloads = []
    check_removed(target, snapshot, ({"x-release"}, set()), lambda: KUBECONFIG)


def test_a_preview_asks_for_claims_on_workers_that_leave(made: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[list[str]] = []
    monkeypatch.setattr(guard, "leaving", lambda _, workers: asked.append(workers))
    made.cluster()
    urns = tuple(f"urn:pulumi:prod::p::T::busbar-worker@{name}" for name in ("gpu-1", "gpu-2"))
    for deleted in ("busbar-worker@gpu-2", "x"):
        check_removed(
            Target(made.folder, "prod"),
            Snapshot(urns, (), made.state),
            ({deleted}, set()),
            lambda: KUBECONFIG,
        )
    assert asked == [["gpu-1"]]


@pytest.mark.parametrize(
    ("servers", "running", "refused"),
    [(1, ["server-1"], True), (3, ["server-1", "server-3"], True), (3, ["server-2"], False), (1, [], False)],
)
def test_a_cluster_whose_api_only_this_machine_does_not_reach_is_not_destroyed(
    made: Site, monkeypatch: pytest.MonkeyPatch, servers: int, running: list[str], refused: bool
) -> None:
    monkeypatch.setattr(guard, "connect", raising(UnknownState("refused", "open TCP port 6443")))
    made.running = running
    given = {**site(servers=servers, workers={"h100": 1}), "ssh": {"agent": True}}
    try:
        made.guard("busbar", given, outputs=KUBECONFIG).check()
        said = ""
    except Failed as error:
        said = str(error)
    assert (f"K3s runs on {', '.join(running)}: jobs may run; nothing was removed" in said) is refused
    assert (
        "Fix: open TCP port 6443; or, to remove it all the same, systemctl stop k3s there" in said
    ) is refused


def test_a_cluster_whose_stack_was_renamed_is_found_by_the_name_in_the_file(
    made: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    identifier = "11"

    def read_outputs(stack: str, _: Path) -> str:
        if stack == "o/busbar/site":
            raise SecretError("no stack named 'site' found")
        return json.dumps({"cluster_id": identifier, **KUBECONFIG})

    monkeypatch.setattr(charts, "read_outputs", read_outputs)
    made.owners, made.workloads = {"training": "busbar-training/prod"}, [workload("training", "own", "Pod")]
    assert [*made.consumer(cluster="o/busbar/renamed").find(False)] == ["Pod training/own"]
    # The file names the cluster to move to.
    identifier = "22"
    with pytest.raises(SecretError, match="no stack o/busbar/site: its"):
        made.consumer(cluster="o/busbar/renamed")

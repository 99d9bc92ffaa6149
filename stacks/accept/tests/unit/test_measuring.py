"""The stages that run programs on hosts or in pods, and the proof of a training run."""

import base64
import gzip
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from busbar.exits import NoVerdict
from busbar.fabric.paths import Found
from busbar.kube.client import ApiError, JsonObject
from stacks.accept.package import commands
from stacks.accept.package.criteria import default
from stacks.accept.package.evidence import Evidence, Inventory, Printed
from stacks.accept.package.running import Running, run_stage
from stacks.accept.package.subjects import cabling, optional, stress
from stacks.accept.package.subjects.cabling import read_design
from stacks.accept.package.subjects.stress import DCGM_IMAGE
from stacks.accept.tests.net import Net
from stacks.accept.tests.unit import made
from tests.support import bash
from tests.support.bash import output
from tests.support.cli import busbar
from tests.unit.collect import launcher_log
from tests.unit.fabric.measure.foreign import HCA, Foreign, gpu_node, holder

FIRST = made.WORKERS[:1]


class Hosts:
    """Workers that print what they are told to: host, or `all` -> verb -> output, or why there is none."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.answers, self.asked = dict[str, dict[str, Any]](), list[tuple[str, tuple[str, ...]]]()
        monkeypatch.setattr(Running, "on_hosts", lambda on, *words, **values: self.ask(on, *words))

    def ask(self, on: Running, names: Sequence[str], verb: str, _: int) -> Printed:
        self.asked.append((verb, tuple(names)))
        found = {name: self.answers.get(name, self.answers.get("all", {})).get(verb, {}) for name in names}
        failed = {name: each for name, each in found.items() if isinstance(each, str)}
        hosts = {name: each for name, each in found.items() if name not in failed}
        return Printed(run=on.begun.run, hosts=hosts, failed=failed)


@pytest.fixture
def hosts(monkeypatch: pytest.MonkeyPatch) -> Hosts:
    return Hosts(monkeypatch)


@pytest.fixture
def on(stack: Path) -> Running:
    return made.running(stack, storage="/mnt/data", cabling=made.design(made.cabling()))


def packed(text: str) -> dict[str, str]:
    return {"simulated": "", "error": "", "text": base64.b64encode(gzip.compress(text.encode())).decode()}


FABRIC = packed(made.cabling().text())


@pytest.mark.parametrize(
    ("first", "asked"), [(FABRIC, ["worker-1"]), ("worker-1: no route to host", ["worker-1", "worker-2"])]
)
def test_one_host_sees_all_cables(on: Running, hosts: Hosts, first: Any, asked: list[str]) -> None:
    hosts.answers = {"worker-1": {"fabric": first}, "worker-2": {"fabric": FABRIC}}
    made.inventory(on.folder)
    run_stage(cabling.STAGE, on)
    assert made.result(on.folder, "cabling.h100.rails").result == "pass"
    assert hosts.asked == [("fabric", (name,)) for name in asked]


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        ({"error": "ibnetdiscover is not installed (package infiniband-diags)"}, "infiniband-diags"),
        ({"error": "ibnetdiscover ended with exit code 1: ibwarn: mad_rpc failed"}, "mad_rpc failed"),
        ("no route to host", "no route"),
        (packed("#\n" * (20 << 20)), "more than 8 MiB"),
        ({"text": "not base64!"}, "cannot be unpacked"),
        ({"text": base64.b64encode(b"no gzip").decode()}, "cannot be unpacked"),
    ],
)
def test_where_no_host_sees_the_fabric_rows_say_why(on: Running, hosts: Hosts, answer: Any, why: str) -> None:
    hosts.answers = {"all": {"fabric": answer}}
    run_stage(cabling.STAGE, on)
    made.judged(on.folder, "cabling.h100.rails", "not run", why)


def test_a_pool_without_infiniband_has_no_cabling_and_does_not_need_one(on: Running) -> None:
    pool = on.pools["h100"]
    required = pool.required.model_copy(update={"link_layer": "ethernet"})
    pools = {"h100": pool.model_copy(update={"required": required})}
    site = on.begun.site.model_copy(update={"pools": pools})
    begun = on.begun.model_copy(update={"site": site})
    assert cabling.cabling(replace(on, begun=begun)) == {"h100": "the pool has no InfiniBand"}
    rows = {row.id: row.required for row in default(site).rows}
    assert (rows["cabling.h100.rails"], rows["inventory.h100.hcas"]) == (False, True)


@pytest.mark.parametrize(
    ("answer", "code", "why"),
    [
        (FABRIC, 0, ""),
        ("no route to host", 2, "no route to host"),
        (packed("#\n"), 2, "worker-1: ibnetdiscover printed no switch"),
        (
            packed(Net.of({"other": {"mlx5_0": 7}}).text()), 2,
            "no rail of a worker is in the fabric that worker-1 sees",
        ),
    ],
)  # fmt: skip
def test_the_cabling_as_built_is_printed_as_a_design_or_the_command_says_why_not(
    stack: Path, hosts: Hosts, monkeypatch: pytest.MonkeyPatch, answer: Any, code: int, why: str
) -> None:
    hosts.answers = {"all": {"fabric": answer}}
    reports: Any = {f"worker-{number}": made.host(number) for number in (1, 2)}
    monkeypatch.setattr(cabling, "ask_workers", lambda on: Inventory(run=on.begun.run, hosts=reports))
    done = busbar("accept", "cabling", "prod")
    assert (done.exit_code, why in " ".join(done.stderr.split())) == (code, True)
    assert done.stdout == ("" if code else made.design(made.cabling()))


@pytest.mark.parametrize(
    ("option", "value", "why"),
    [
        ("--cabling", "missing.csv", "No such file"),
        ("--cabling", b"\x7fELF\x80\xff", "can't decode byte"),
        ("--cabling", b"node,hca\n", "is not node,hca,switch,port. Fix: busbar accept cabling STACK"),
        *(("--storage", path, "the path of a folder") for path in ("mnt/data", "/", "//", "/mnt/\ndata")),
        ("--dcgm-image", "bad image!", "--dcgm-image 'bad image!' is not a container image"),
    ],
)
def test_a_bad_option_is_refused_before_a_run(stack: Path, option: str, value: str | bytes, why: str) -> None:
    if isinstance(value, bytes):
        (stack / "given").write_bytes(value)
    done = busbar("accept", "run", "prod", option, value if isinstance(value, str) else str(stack / "given"))
    assert (done.exit_code, why in " ".join(done.stderr.split())) == (64, True), done.stderr


def test_a_design_may_come_from_a_spreadsheet(tmp_path: Path) -> None:
    text = made.design(made.cabling())
    (tmp_path / "cabling.csv").write_bytes(b"\xef\xbb\xbf" + text.replace("\n", "\r\n").encode())
    found = commands._options(tmp_path / "cabling.csv", None, None)["cabling"]
    assert read_design(found) == read_design(text)


def test_a_node_with_a_pod_has_no_result(on: Running, hosts: Hosts, monkeypatch: pytest.MonkeyPatch) -> None:
    hosts.answers = {"all": {"stress": made.stressed()}}
    later = made.WORKERS
    monkeypatch.setattr(Running, "free_nodes", lambda on, pool, wait=True: made.WORKERS if wait else later)
    run_stage(stress.STAGE, on)
    assert hosts.asked == [("stress", made.WORKERS)]
    assert made.result(on.folder, "stress.h100.diag").result == "pass"
    later = FIRST
    run_stage(stress.STAGE, on)
    found = made.result(on.folder, "stress.h100.diag")
    assert (found.result, found.reason) == ("not run", "worker-2: a pod took GPUs of the node meanwhile")


@pytest.mark.parametrize(("freed", "idle"), [(100, False), (None, False), (None, True)])
def test_the_paths_wait_for_devices_that_pods_hold_and_an_idle_run_takes_the_free_nodes(
    stack: Path, monkeypatch: pytest.MonkeyPatch, freed: int | None, idle: bool
) -> None:
    measured: list[list[str]] = []

    def measure(spec: object, names: list[str], places: object, held: Any, *more: Any, **image: str) -> Found:
        assert not held
        measured.append(names)
        return Found()

    cluster = Foreign(*(gpu_node(name) for name in (*made.WORKERS, "worker-3")))
    on = made.running(stack, api=cluster, more={"idle": idle})
    pool = on.begun.site.pools["h100"].model_copy(update={"workers": (*made.WORKERS, "worker-3")})
    site = on.begun.site.model_copy(update={"pools": {"h100": pool}})
    on = replace(on, begun=on.begun.model_copy(update={"site": site}))
    on.__dict__["api"] = cluster
    on.__dict__["spec"] = None
    monkeypatch.setattr(optional, "measure_paths", measure)
    cluster.hold(holder("worker-2", "train", 1, HCA))
    if freed:
        clock: Any = on.clock
        clock.at(freed, lambda: cluster.objects.pop("/api/v1/namespaces/ml/pods/train"))
    if freed or idle:
        run_stage(optional.PATHS, on)
        assert measured == [["worker-1", "worker-3"] if idle else ["worker-1", "worker-2", "worker-3"]]
    else:
        with pytest.raises(NoVerdict, match=r"timed out after 180 s: .*in use: ml/train on worker-2"):
            run_stage(optional.PATHS, on)
        assert (measured, Evidence(on.folder).stage("paths")) == ([], None)


CLEARED = [("clear", FIRST), ("mounted", FIRST), ("mounted", made.WORKERS), ("clear", FIRST)]


@pytest.mark.parametrize(
    ("second", "asked", "result", "reason"),
    [
        (
            made.stored(), [*CLEARED[:3], ("storage", FIRST), ("storage", made.WORKERS), CLEARED[3]],
            "pass", "/mnt/data 10.0.0.5:/data nfs4 on 2 nodes",
        ),
        (
            {"mount": "", "free_bytes": 0, "seen": ""}, CLEARED, "fail", "worker-2: the folder is not there"
        ),
        ("worker-2: no route to host", CLEARED, "unknown", "worker-2: no route to host"),
    ],
)  # fmt: skip
def test_storage_is_measured_on_one_node_and_on_all_where_the_folder_is_the_same(
    on: Running, hosts: Hosts, second: Any, asked: list[Any], result: str, reason: str
) -> None:
    hosts.answers = {"all": {"mounted": made.stored(), "storage": made.fio()}}
    hosts.answers["worker-2"] = {"mounted": second, "storage": made.fio()}
    run_stage(optional.STORAGE, on)
    assert hosts.asked == asked
    found = made.result(on.folder, "storage.h100.mount")
    assert (found.result, found.reason) == (result, reason)
    assert made.result(on.folder, "storage.h100.read").value == (4.0 if result == "pass" else None)


PROOF = "training.h100.proof"


@pytest.mark.parametrize(("stage", "row"), [("STORAGE", "storage.h100.read"), ("TRAINING", PROOF)])
def test_a_stage_without_its_option_is_not_run(tmp_path: Path, stage: str, row: str) -> None:
    run_stage(getattr(optional, stage), made.running(tmp_path))
    made.judged(tmp_path / "run", row, "not run", f"no --{stage.lower()} is given")


def test_the_proof_of_a_training_run_is_copied_and_judged_again(tmp_path: Path) -> None:
    run_stage(optional.TRAINING, made.running(tmp_path, training=str(made.training(tmp_path / "proof"))))
    found = made.result(tmp_path / "run", PROOF)
    reason = "0.02 s per step on 2 nodes, all-reduce of gradients 390.2 GB/s, expected at least 70 % of 390"
    assert (found.result, found.reason) == ("pass", reason)
    nodes = made.result(tmp_path / "run", "training.h100.nodes")
    assert (nodes.result, nodes.value) == ("pass", 2)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"measured_at": "2026-11-23T00:59:00Z"}, "before this run"),
        ({"measured_at": None}, "no proof of a training run"),
        ({"expectation": {"nodes": ["gpu-77"]}}, "no pool: gpu-77"),
        (None, "has no proof of a training run"),
    ],
)
def test_a_proof_of_another_run_ends_the_stage(
    tmp_path: Path, change: dict[str, Any] | None, why: str
) -> None:
    if change:
        made.training(tmp_path / "proof", lambda source: source.update(change))
    with pytest.raises(NoVerdict, match=why):
        run_stage(optional.TRAINING, made.running(tmp_path, training=str(tmp_path / "proof")))
    assert Evidence(tmp_path / "run").stage("training") is None


def script(call: str, folder: Path, *, programs: dict[str, str] | None = None, **values: str) -> Any:
    """The output of the script of the hosts, with these programs in FOLDER."""
    if programs:
        bash.programs(folder, programs)
        call = f"PATH={folder}:$PATH {call}"
    return json.loads(output("accept/measure", call, FOLDER=str(folder), RUN="accept-1", **values))


def test_the_script_tells_why_a_tool_failed_and_names_the_package_of_a_missing_one(tmp_path: Path) -> None:
    programs = {"ibnetdiscover": 'echo "ibwarn: \\"mad_rpc\\" failed" >&2; exit 1'}
    found = script("; fabric", tmp_path, programs=programs)
    assert found["error"] == 'ibnetdiscover ended with exit code 1: ibwarn: "mad_rpc" failed'
    found = script("PATH=/usr/bin:/bin; fabric", tmp_path)
    assert found["error"] == "ibnetdiscover is not installed (package infiniband-diags)"


def test_a_folder_that_is_not_there_is_not_made(tmp_path: Path) -> None:
    missing = tmp_path / "missing"
    assert script("mounted", missing, LEAVE="true") == {"mount": "", "free_bytes": 0, "seen": ""}
    assert not missing.exists()


def test_while_dcgm_runs_the_connection_is_not_silent_and_nothing_is_left_running(tmp_path: Path) -> None:
    bash.programs(tmp_path, {"dcgmi": '[[ $* == --version ]] || { sleep 1; echo "{}"; exit 226; }'})
    done = bash.run("accept/measure", f"PATH={tmp_path}:$PATH PULSE_SECONDS=0.1; stress")
    found = json.loads(done.stdout)
    assert (found["diag"], found["error"]) == ("{}", "dcgmi ended with exit code 226: ")
    assert done.stderr.count("\n") > 2


def test_gpus_that_a_process_outside_of_pods_uses_are_not_stressed(tmp_path: Path) -> None:
    apps = "[[ $1 == --query-compute-apps=pid ]] && printf '4711\\n4712\\n'"
    bash.programs(tmp_path, {"nvidia-smi": apps, "dcgmi": f"touch {tmp_path}/begun"})
    done = bash.run("accept/measure", f"PATH={tmp_path}:$PATH; stress")
    named = "processes outside of pods use its GPUs: 4711 4712. Fix: wait for their end" in done.stderr
    assert (done.returncode != 0, named, (tmp_path / "begun").exists()) == (True, True, False), done.stderr


IMAGE, DIGEST = "registry.example.com/dcgm:4.6", "registry.example.com/dcgm@sha256:5d2c"
DIAG = "stress.h100.diag"


def ended(printed: dict[str, Any], code: int = 0) -> JsonObject:
    state = {"terminated": {"exitCode": code, "reason": "Error" if code else "Completed"}}
    status = {"name": "dcgm", "imageID": DIGEST, "state": state}
    return {"phase": "Failed" if code else "Succeeded", "containerStatuses": [status], "printed": printed}


def waiting(reason: str, message: str) -> JsonObject:
    state = {"waiting": {"reason": reason, "message": message}}
    return {"phase": "Pending", "containerStatuses": [{"name": "dcgm", "imageID": "", "state": state}]}


class Nodes(Foreign):
    """Two workers with eight GPUs; STATUS: node -> what becomes of its pod, None if it is deleted."""

    def __init__(self) -> None:
        super().__init__(*(gpu_node(name) for name in made.WORKERS))
        self.status: dict[str, JsonObject | None] = {}

    def create(self, path: str, body: Any) -> JsonObject:
        found = super().create(path, body)
        if body["kind"] != "Pod" or path.endswith("?dryRun=All"):
            return found
        affinity = body["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
        [node] = affinity["nodeSelectorTerms"][0]["matchExpressions"][0]["values"]
        status = self.status.get(node, ended(made.stressed()))
        if status is None:
            del self.objects[f"{path}/{body['metadata']['name']}"]
        else:
            found["status"] = status
        if status and "printed" in status:
            # The script prints empty lines, so that no connection is silent.
            text = f"\n\n{json.dumps(status['printed'])}\n"
            self.logs.append(lambda query: iter([launcher_log.stamped(text)]))
        return found


@pytest.fixture
def nodes() -> Nodes:
    return Nodes()


@pytest.fixture
def in_pods(nodes: Nodes, tmp_path: Path) -> Running:
    return made.running(tmp_path, api=nodes, more={"logs_in": False}, **{DCGM_IMAGE: IMAGE})


def test_without_a_login_each_node_runs_one_pod_with_all_of_its_gpus(in_pods: Running, nodes: Nodes) -> None:
    run_stage(stress.STAGE, in_pods)
    found = made.result(in_pods.folder, DIAG)
    assert (found.result, found.reason) == ("pass", f"good on 2 nodes; image {DIGEST}")
    pods = [body for _, body in nodes.created if body["kind"] == "Pod"]
    [limits] = {str(pod["spec"]["containers"][0]["resources"]["limits"]) for pod in pods}
    assert (len(pods), limits) == (2, "{'nvidia.com/gpu': 8}")
    assert nodes.left == []


# What the script prints where there is no dcgmi.
MISSING = json.loads(output("accept/measure", "ENGINE=start PATH=/usr/bin:/bin; stress"))


def fail(tests: Any) -> None:
    tests["memory"][3] |= {"status": "Fail", "warnings": [{"warning": "row remap", "error_severity": 2}]}


UNSCHEDULABLE = {
    "type": "PodScheduled", "status": "False", "reason": "Unschedulable",
    "message": "0/2 nodes are available: 1 Insufficient nvidia.com/gpu",
}  # fmt: skip


@pytest.mark.parametrize(
    ("status", "result", "named"),
    [
        (ended(made.stressed(diag=made.diag(fail))), "fail", "worker-2: memory fails: row remap (GPU 3)"),
        (waiting("ImagePullBackOff", "Back-off pulling image"), "not run", "ImagePullBackOff"),
        (waiting("InvalidImageName", "couldn't parse image"), "not run", "InvalidImageName"),
        ({"phase": "Pending", "conditions": [UNSCHEDULABLE]}, "not run", "Unschedulable: 0/2 nodes are"),
        (ended({}, 128) | {"printed": "exec: /bin/bash: no such file"}, "not run", "exit code 128"),
        (None, "not run", "worker-2: its pod was deleted"),
        (ended(MISSING), "not run", "worker-2: dcgmi is not installed (package"),
    ],
)  # fmt: skip
def test_what_a_pod_has_not_shown_is_named_with_its_node(
    in_pods: Running, nodes: Nodes, status: JsonObject | None, result: str, named: str
) -> None:
    nodes.status["worker-2"] = status
    run_stage(stress.STAGE, in_pods)
    made.judged(in_pods.folder, DIAG, result, named)
    assert nodes.left == []


@pytest.mark.parametrize(
    ("refused", "named"), [("create", "forbidden"), ("stream", "its pod is Succeeded, with no output")]
)
def test_a_pod_or_a_log_that_the_cluster_refuses_is_not_run(
    in_pods: Running, nodes: Nodes, monkeypatch: pytest.MonkeyPatch, refused: str, named: str
) -> None:
    def refuse(path: str, *body: Any, **query: str) -> Any:
        raise ApiError(path, 403, "forbidden")

    if refused == "create":
        error = ApiError("POST pods", 403, "forbidden")
        nodes.refuse = lambda path, body: error if body["kind"] == "Pod" else None
    else:
        monkeypatch.setattr(nodes, refused, refuse)
    run_stage(stress.STAGE, in_pods)
    found = made.result(in_pods.folder, DIAG)
    assert (found.result, named in found.reason, nodes.left) == ("not run", True, []), found.reason


def test_idle_pods_that_made_room_run_again_at_the_next_call(in_pods: Running, nodes: Nodes) -> None:
    idle = replace(in_pods, idle=True)
    idle.__dict__["api"] = nodes
    nodes.status["worker-1"] = None
    with pytest.raises(NoVerdict, match="pods on worker-1 made room for other pods"):
        run_stage(stress.STAGE, idle)
    [first, *_] = [body for _, body in nodes.created if body["kind"] == "PriorityClass"]
    assert (first["preemptionPolicy"], nodes.left) == ("Never", [])
    nodes.status.clear()
    run_stage(stress.STAGE, idle)
    assert made.result(in_pods.folder, DIAG).result == "pass"


def test_what_a_killed_run_has_left_is_removed_first(in_pods: Running, nodes: Nodes) -> None:
    run = f"{made.RUN_NAME}-stress0-ab12"
    metadata = {"name": f"busbar-{run}", "labels": {"busbar/nccl-run": run}}
    nodes.add(f"/api/v1/namespaces/busbar-{run}", {"kind": "Namespace", "metadata": metadata})
    run_stage(stress.STAGE, in_pods)
    assert (made.result(in_pods.folder, DIAG).result, nodes.left) == ("pass", [])


@pytest.mark.parametrize(("answers", "named"), [("true", "{}"), ("false", "nv-hostengine is not responding")])
def test_the_script_of_a_pod_starts_the_host_engine(tmp_path: Path, answers: str, named: str) -> None:
    programs = {
        "nv-hostengine": f"touch {tmp_path}/started",
        "dcgmi": f"[[ $1 == discovery ]] || exec echo '{{}}'; [[ -e {tmp_path}/started ]] && {answers}",
    }
    bash.programs(tmp_path, programs)
    done = bash.run("accept/measure", f"PATH={tmp_path}:$PATH ENGINE=start ENGINE_SECONDS=0; stress")
    assert named in done.stdout + done.stderr

"""The Helm values: the same Slurm by the charts of 1.2 and by those that the lab makes of 1.0."""

import json
import re
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from busbar.kube.gpus import MEASURED_BY
from lab.build.go import module_folder
from lab.steps import LabError
from stacks.slurm_k8s.lab import prepare
from stacks.slurm_k8s.lab.tools import MODULE, OPERATOR, VARIABLE, checkout
from stacks.slurm_k8s.package import values
from stacks.slurm_k8s.package.config import REFUSED, _matching
from stacks.slurm_k8s.package.pools import gres_conf, refusals
from stacks.slurm_k8s.package.steps import SERVICE
from stacks.slurm_k8s.tests.support import cluster, pools, slurm, values_of
from tests.support.shared import CHARTS
from tests.unit.charts.published import helm

VERSIONS = ("1.0.0", "1.2.1")
# The chart of 1.0 without the lab's changes: its template of the Controller is at hand everywhere.
AS_PUBLISHED = "1.0.0 as published"
TEMPORARY = tempfile.TemporaryDirectory()
TAINT = {"key": "gpu", "value": "h100", "effect": "NoSchedule"}


@cache
def charts(version: str) -> Path:
    """The folder with the charts of a version; skips the test where they are not at hand."""
    target = Path(TEMPORARY.name) / version
    folder = CHARTS / "slurm-operator" / f"v{version}" / "helm"
    if version != "1.2.1":
        try:
            folder = module_folder(OPERATOR.module, MODULE) / "helm"
        except (LabError, OSError) as error:
            pytest.skip(f"the Go module of slurm-operator cannot be had: {error}")
    if not folder.is_dir():
        pytest.skip(f"{folder} is missing")
    prepare.copy_charts(folder, target)
    if version == "1.0.0":
        prepare.take_values_of_1_2(target / "slurm")
    if version == AS_PUBLISHED:
        prepare.add_left_out(target / "slurm")
    return target


def rendered(version: str, chart: str, given: dict[str, Any]) -> list[dict[str, Any]]:
    words = [helm(), "template", chart, str(charts(version) / chart), "-n", "slurm", "-f", "-"]
    done = subprocess.run(
        [*words, "--kube-version", "1.35.6"],
        input=json.dumps(given), capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return [each for each in yaml.safe_load_all(done.stdout) if each]


def of_slurm(version: str, pool: dict[str, Any] | None = None, **config: Any) -> list[dict[str, Any]]:
    given = slurm(**config)
    return rendered(version, "slurm", values_of(given, of=pools(given, pool=pool)))


def kind(objects: list[dict[str, Any]], name: str) -> list[dict[str, Any]]:
    return [each for each in objects if each["kind"] == name]


def files(objects: list[dict[str, Any]]) -> dict[str, str]:
    """The files of all ConfigMaps."""
    return {key: text.strip() for each in kind(objects, "ConfigMap") for key, text in each["data"].items()}


@pytest.mark.parametrize("version", VERSIONS)
def test_a_pool_is_one_nodeset_that_holds_every_gpu_and_hca_of_its_workers(version: str) -> None:
    [nodeset] = kind(of_slurm(version, {"taints": [TAINT]}), "NodeSet")
    spec, pod = nodeset["spec"], nodeset["spec"]["template"]["spec"]
    assert (nodeset["metadata"]["name"], spec["replicas"]) == ("slurm-worker-h100", 2)
    assert spec["updateStrategy"]["type"] == "OnDelete"
    assert "busbar measure" in spec["template"]["metadata"]["annotations"][MEASURED_BY]
    assert spec["extraConf"] == "Gres=gpu:h100:8" and spec["partition"]["enabled"] is True
    assert spec["slurmd"]["resources"]["limits"] == {"nvidia.com/gpu": 8, "nvidia.com/hostdev": "8"}
    assert {**TAINT, "operator": "Equal"} in pod["tolerations"]
    assert values.workers_of(nodeset) == ["gpu-1", "gpu-2"]
    assert {"name": "shm", "mountPath": "/dev/shm"} in spec["slurmd"]["volumeMounts"]
    assert spec.get("taintKubeNodes") in (None, False)


@pytest.mark.parametrize("version", VERSIONS)
def test_slurmctld_and_two_slurmrestd_run_on_servers_with_busbar_s_own_keys(version: str) -> None:
    objects = of_slurm(version)
    [rest], [controller] = kind(objects, "RestApi"), kind(objects, "Controller")
    assert rest["spec"]["replicas"] == 2
    for each in (rest, controller):
        assert each["spec"]["template"]["spec"]["nodeSelector"]["node-role.kubernetes.io/control-plane"]
    text = json.dumps(controller["spec"])
    assert values.SLURM_KEY in text and values.JWT_KEY in text
    # The lab's chart makes Secrets of its own nevertheless, which nothing names.
    assert [each for each in kind(objects, "Secret") if each["metadata"]["name"] in text] == []


@pytest.mark.parametrize("version", VERSIONS)
def test_no_image_but_those_of_the_configured_registry_is_named(version: str) -> None:
    registry = "registry.local/slurm"
    given = of_slurm(version, images=registry, image_tag="7", sidecar_image="registry.local/sh:1")
    named = set(re.findall(r"(?m)^ *-? *image: (\S+)$", yaml.safe_dump_all(given)))
    programs = {f"{registry}/{name}:7" for name in ("slurmctld", "slurmd", "slurmrestd", "login")}
    assert named == programs | {"registry.local/sh:1"}


def slurm_conf(objects: list[dict[str, Any]]) -> set[str]:
    """The parameters that the rendered Controller adds to those of the operator."""
    [controller] = kind(objects, "Controller")
    lines = controller["spec"]["extraConf"].splitlines()
    return {line for line in lines if not line.startswith("PartitionName=")}


RELIED_ON = {"GresTypes=gpu", "ReturnToService=2", "PrologFlags=Contain", "ReconfigFlags=KeepPartState"}
OF_ACCOUNTING = {"AccountingStorageTRES=gres/gpu", "JobAcctGatherType=jobacct_gather/cgroup"}


@pytest.mark.parametrize("version", [AS_PUBLISHED, "1.2.1"])
def test_every_parameter_that_busbar_relies_on_is_in_the_rendered_controller(version: str) -> None:
    usual = slurm_conf(of_slurm(version))
    assert usual > RELIED_ON
    assert slurm_conf(of_slurm(version, accounting={"host": "db"})) == usual | OF_ACCOUNTING
    own = {"DefMemPerCPU": "100", "ProctrackType": "proctrack/linuxproc"}
    found = slurm_conf(of_slurm(version, slurm_conf=own))
    assert usual - found == {"ProctrackType=proctrack/cgroup"}
    assert found - usual == {"DefMemPerCPU=100", "ProctrackType=proctrack/linuxproc"}


def test_slurmctld_reads_changed_files_in_place_and_keeps_its_state_in_the_named_class() -> None:
    [controller] = kind(of_slurm("1.2.1", state={"storage_class": "fast"}), "Controller")
    assert controller["spec"]["inplaceReconfigure"] is True
    assert controller["spec"]["persistence"]["storageClassName"] == "fast"


@pytest.mark.parametrize("version", VERSIONS)
def test_gres_and_memlock_are_in_the_files_of_slurm(version: str) -> None:
    found = files(of_slurm(version))
    assert found["gres.conf"] == "AutoDetect=nvidia"
    assert "--memlock=unlimited:unlimited" in found["prolog-10-memlock.sh"]


@pytest.mark.parametrize("version", VERSIONS)
def test_login_is_a_service_inside_the_cluster_with_the_given_keys(version: str) -> None:
    [login] = kind(of_slurm(version, login={"root_ssh_keys": ["ssh-ed25519 AAAA one"]}), "LoginSet")
    assert login["metadata"]["name"] == values.LOGIN_SERVICE
    assert login["spec"]["service"]["spec"]["type"] == "ClusterIP"
    assert login["spec"]["rootSshAuthorizedKeys"].strip() == "ssh-ed25519 AAAA one"


@pytest.mark.parametrize("version", VERSIONS)
def test_the_operator_runs_on_servers_and_does_not_own_the_crds(version: str) -> None:
    given = values_of(slurm(images="registry.local/slurm"), "slurm-operator")
    objects = rendered(version, "slurm-operator", given)
    assert not kind(objects, "CustomResourceDefinition")
    assert SERVICE in {each["metadata"]["name"] for each in kind(objects, "Service")}
    deployments = kind(objects, "Deployment")
    assert len(deployments) == 2
    for each in deployments:
        pod = each["spec"]["template"]["spec"]
        assert "node-role.kubernetes.io/control-plane" in json.dumps(pod["affinity"])
        assert pod["tolerations"] == [{"key": "node-role.kubernetes.io/control-plane", "operator": "Exists"}]
        image = rf"registry\.local/slurm/slurm-operator(-webhook)?:{re.escape(version)}"
        assert re.fullmatch(image, pod["containers"][0]["image"])


@pytest.mark.parametrize("version", VERSIONS)
def test_the_values_of_the_stack_are_merged_over_all(version: str) -> None:
    given = {"configFiles": {"cgroup.conf": "CgroupPlugin=disabled"}, "restapi": {"replicas": 3}}
    objects = of_slurm(version, values=given)
    assert kind(objects, "RestApi")[0]["spec"]["replicas"] == 3
    assert files(objects)["cgroup.conf"] == "CgroupPlugin=disabled"


def leaves(values: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    if not isinstance(values, dict) or not values:
        yield path
        return
    for key, value in values.items():
        yield from leaves(value, (*path, key))


# A site may have its own images, places and volumes, more slurmrestd, and another topology.
LEFT_TO_SITES = re.compile(
    r".*/(image|metadata|volumes|volumeMounts|nodeSelector|affinity)(/.*)?|restapi/replicas|"
    r"configFiles/topology.yaml|loginsets/slinky/(enabled|replicas|podSpec/tolerations)|certManager/enabled"
)


@pytest.mark.parametrize("name", ["values", "operator_values"])
def test_every_value_that_busbar_sets_is_refused_or_left_to_sites(name: str) -> None:
    given = slurm(accounting={"host": "db"}, tolerate=[TAINT])
    set_values = values_of(given, "slurm" if name == "values" else "slurm-operator")
    taken = [path for pattern in REFUSED[name] for path in _matching(set_values, pattern.split("/"))]
    others = (path for path in leaves(set_values) if not any(path[: len(each)] == each for each in taken))
    assert [path for path in others if not LEFT_TO_SITES.fullmatch("/".join(path))] == []


@pytest.mark.parametrize(("name", "chart"), [("values", "slurm"), ("operator_values", "slurm-operator")])
def test_the_refused_values_are_those_of_the_chart(name: str, chart: str) -> None:
    text = (charts("1.2.1") / chart / "values.yaml").read_text()
    known = yaml.safe_load(text)
    unknown = []
    for pattern in REFUSED[name]:
        of_defaults = re.sub(r"^(nodeset|loginset)s/[^/]*/", r"\1Defaults/", pattern)
        # Names of files and of parameters, ports, and what the chart of 1.0 has.
        free = re.search(
            r"^(configFiles|prologScripts)/|onfMap/|configMap/|service/|KeyRef$|runtimeClassName$", pattern
        )
        if not free and not [*_matching(known, of_defaults.split("/"))]:
            unknown.append(pattern)
    assert unknown == []


@pytest.mark.parametrize(
    ("config", "text"),
    [
        ({"values": {"nodesets": {"a100": {}}}}, "has no pool a100, which values.nodesets names"),
        ({"values": {"partitions": {"h100": {}}}}, "has a pool h100, which makes the partition h100"),
        ({"pools": {"a100": {}}}, "has no pool a100 with measured workers. Fix: pools of h100"),
    ],
    ids=["nodeset", "partition", "pool"],
)
def test_what_does_not_fit_the_pools_of_the_cluster_is_refused(config: dict[str, Any], text: str) -> None:
    [found] = refusals(cluster(), slurm(**config))
    assert found.startswith(text)


def test_device_files_replace_the_detection_and_pools_have_lines_of_their_own() -> None:
    config = slurm(pools={"a": {"gpu_files": "/dev/nvidia[0-7]"}, "b": {}})
    text = gres_conf(pools(config, workers={"a": 2, "b": 1}))
    assert text.splitlines() == [
        "NodeName=a-[0-1] Name=gpu Type=h100 File=/dev/nvidia[0-7]",
        "NodeName=b-[0-0] Name=gpu Type=h100 AutoDetect=nvidia",
    ]
    assert pools(pool={"gpu_model": None})["h100"].gres == "gpu:8"


def test_only_the_first_pool_is_the_default_partition() -> None:
    given = slurm()
    found = values_of(given, of=pools(given, workers={"a": 1, "b": 1}))["nodesets"]
    assert [found[name]["partition"]["configMap"]["Default"] for name in ("a", "b")] == ["YES", "NO"]


def test_sources_of_the_lab_without_the_operator_s_programs_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "VERSION").write_text("1.2.1\n")
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    with pytest.raises(LabError, match=r"bin/slurm-operator, .* missing\. Fix: name the sources"):
        checkout()


SITE_TAINT = {"key": "site", "value": "slurm", "effect": "NoExecute"}


@pytest.mark.parametrize("version", VERSIONS)
def test_every_pod_tolerates_the_taints_of_the_site(version: str) -> None:
    config: dict[str, Any] = {"tolerate": [SITE_TAINT], "accounting": {"host": "db"}}
    objects = of_slurm(version, **config)
    operator = values_of(slurm(**config), "slurm-operator")
    objects += kind(rendered(version, "slurm-operator", operator), "Deployment")
    pods = [each for each in objects if (each.get("spec") or {}).get("template")]
    assert {"Accounting", "Controller", "Deployment", "LoginSet", "NodeSet"} < {each["kind"] for each in pods}
    for each in pods:
        assert {**SITE_TAINT, "operator": "Equal"} in each["spec"]["template"]["spec"]["tolerations"]


@pytest.mark.parametrize("version", VERSIONS)
def test_slurmdbd_uses_the_database_of_the_site_and_its_password_is_in_a_secret(version: str) -> None:
    assert not kind(of_slurm(version), "Accounting")
    objects = of_slurm(version, accounting={"host": "db.example.com", "username": "acct"})
    [accounting], [controller] = kind(objects, "Accounting"), kind(objects, "Controller")
    storage = accounting["spec"]["storageConfig"]
    assert (storage["host"], storage["username"]) == ("db.example.com", "acct")
    assert storage["passwordKeyRef"] == {"name": values.DATABASE_KEY, "key": "password"}
    assert values.SLURM_KEY in json.dumps(accounting["spec"])
    assert controller["spec"]["accountingRef"]["name"] == accounting["metadata"]["name"]


def placed(*labels: str, **config: Any) -> tuple[Any, Any]:
    """The levels of the workers, and the values, where they have these labels."""
    given = slurm(**config)
    launch = pools(given)["h100"].launch.model_copy(update={"topology": labels or None})
    found = {"h100": replace(pools(given)["h100"], launch=launch)}
    return values.levels(found), values_of(given, of=found)


DOMAIN = "accelerator.topograph.run/domain"


def test_the_switches_of_the_workers_are_a_tree_whose_root_is_in_topology_yaml() -> None:
    labels = ("fabric.topograph.run/tier-1", "fabric.topograph.run/tier-0")
    levels, made = placed(*labels, DOMAIN)
    assert levels == {"gpu-1": labels, "gpu-2": labels}
    [topology] = yaml.safe_load(made["configFiles"]["topology.yaml"])
    assert topology["tree"] == {"switches": [{"switch": "root"}]}
    assert (topology["topology"], topology["cluster_default"]) == ("fabric", True)
    for without in ([], [DOMAIN]):
        levels, made = placed(*without)
        assert levels == {} and "topology.yaml" not in made["configFiles"]

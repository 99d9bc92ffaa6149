"""What a stack downloads: complete where its charts are on this machine, else said to be incomplete."""

import shutil
import tarfile
from pathlib import Path
from typing import Any

import pytest
import yaml

from busbar import versions
from busbar.config import load
from busbar.manifests.artifacts import Needs, needs
from tests.support.clusters import OWN_NFD, all_operators, host, site

ROOT = Path(__file__).resolve().parents[3]
RELEASE = "https://github.com/k3s-io/k3s/releases/download/v1.35.6%2Bk3s1"
DIGEST = "sha256:" + "5" * 64
VALUES = {
    "operator": {"repository": "nvcr.io/nvidia", "image": "gpu-operator"},
    "toolkit": {"repository": "nvcr.io/nvidia/k8s", "image": "container-toolkit", "version": "v1"},
    "dcgm": {"enabled": False, "repository": "nvcr.io/nvidia", "image": "dcgm", "version": "4"},
    "driver": {"enabled": True, "repository": "nvcr.io/nvidia", "image": "driver", "version": "595"},
    "pinned": {"repository": "quay.io/a", "image": "b", "version": DIGEST},
    "vgpuManager": {"repository": "", "image": "vgpu-manager", "version": ""},
    "images": {
        "webhook": "nvcr.io/nvidia/webhook:v2",
        "exporter": "ghcr.io/g/exporter",
        "socket": "unix:///run/x.sock",
        "url": "https://a.b/c:1",
    },
    "more": [{"image": {"repository": "quay.io/c/d", "tag": "e"}}],
    "named": {"image": {"repository": "quay.io/c", "name": "f", "tag": "g"}},
    "nfd": {"enabled": True},
    "off": {"enabled": False},
}
# A chart of the GPU Operator's form, with one subchart that is installed and one that is not.
DISCOVERY, UNUSED = "charts/node-feature-discovery", "charts/unused"
FILES: dict[str, Any] = {
    "Chart.yaml": {
        **{"name": "gpu-operator", "version": "26", "appVersion": "v26.7.0"},
        "dependencies": [
            {"name": "node-feature-discovery", "condition": "nfd.enabled"},
            {"name": "unused", "alias": "other", "condition": "off.enabled"},
        ],
    },
    "values.yaml": VALUES,
    "templates/a.yaml": "{{ no yaml",
    f"{DISCOVERY}/Chart.yaml": {"name": "node-feature-discovery", "appVersion": "v0.18"},
    f"{DISCOVERY}/values.yaml": {"image": {"repository": "registry.k8s.io/nfd/node-feature-discovery"}},
    f"{UNUSED}/Chart.yaml": {"name": "unused", "version": "1"},
    f"{UNUSED}/values.yaml": {"image": "quay.io/not/used:1"},
}
IN_THE_CHART = [
    "ghcr.io/g/exporter:latest",
    "nvcr.io/nvidia/gpu-operator:v26.7.0",
    "nvcr.io/nvidia/k8s/container-toolkit:v1",
    "nvcr.io/nvidia/webhook:v2",
    f"quay.io/a/b@{DIGEST}",
    "quay.io/c/d:e",
    "quay.io/c/f:g",
    "registry.k8s.io/nfd/node-feature-discovery:v0.18",
]


def packed(folder: Path) -> str:
    """Put an archive in the place of a folder."""
    with tarfile.open(folder.with_suffix(".tgz"), "w:gz") as archive:
        archive.add(folder, folder.name)
    shutil.rmtree(folder)
    return f"{folder.name}.tgz"


@pytest.fixture(params=["folder", "archive", "subchart as archive"])
def chart(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    top = tmp_path / "gpu-operator"
    for name, content in FILES.items():
        (top / name).parent.mkdir(parents=True, exist_ok=True)
        (top / name).write_text(content if isinstance(content, str) else yaml.safe_dump(content))
    if request.param == "subchart as archive":
        for subchart in (DISCOVERY, UNUSED):
            packed(top / subchart)
    return "./gpu-operator" if request.param == "folder" else packed(top)


def of(project: Path, **sections: Any) -> Needs:
    return needs(load(site(**{**all_operators(enabled=False), **sections})), project, ROOT / "helm_values")


def names(found: Needs, kind: str) -> list[str]:
    return [each.name for each in found.artifacts if each.kind == kind]


def test_images_of_a_local_chart_are_those_of_its_values_and_subcharts(chart: str, tmp_path: Path) -> None:
    found = of(tmp_path, gpu_operator={"chart": chart}, validation={"enabled": False})
    # The driver is switched off by helm_values/gpu-operator.yaml.
    assert (names(found, "image"), found.unknown) == (IN_THE_CHART, [])


def test_what_the_stack_sets_decides_about_the_images(chart: str, tmp_path: Path) -> None:
    values = {"toolkit": {"version": "v9"}, "nfd": {"enabled": False}, "driver": {"enabled": True}}
    found = of(tmp_path, gpu_operator={"chart": chart, "values": values}, validation={"enabled": False})
    images = names(found, "image")
    assert "nvcr.io/nvidia/k8s/container-toolkit:v9" in images
    assert not any("node-feature-discovery" in image for image in images)
    assert [each[:26] for each in found.unknown] == ["the tag of the driver's im"]


def test_the_images_of_a_chart_that_is_elsewhere_are_not_known_and_the_fix_is_named(tmp_path: Path) -> None:
    found = of(tmp_path, **all_operators(enabled=True))
    pull = f"gpu-operator --repo {versions.NVIDIA_CHARTS} --version {versions.GPU_OPERATOR}"
    assert pull in names(found, "chart")
    assert f"helm pull {pull}, set gpu_operator.chart to the archive" in found.unknown[0]
    assert len(found.unknown) == 2


def test_a_file_that_is_no_chart_is_not_known(tmp_path: Path) -> None:
    (tmp_path / "chart.tgz").write_bytes(b"no archive")
    [unknown] = of(tmp_path, gpu_operator={"chart": "chart.tgz"}).unknown
    assert "gpu_operator.chart 'chart.tgz' is not a chart archive" in unknown


@pytest.mark.parametrize("registry", ["registry.example.com", "registry:5000", "localhost"])
def test_a_registry_that_is_named_stays(tmp_path: Path, registry: str) -> None:
    image = f"{registry}/nccl-tests:1"
    found = of(tmp_path, validation={"image": image}).artifacts
    assert image in {each.name for each in found if each.kind == "image"}


def test_images_that_busbar_names_itself_are_known_with_their_registry(tmp_path: Path) -> None:
    mirrors = {"docker.io": {"endpoint": ["https://m"]}, "*": {"endpoint": ["https://n"]}}
    found = of(
        tmp_path,
        mpi_operator={"enabled": True},
        network_operator={**OWN_NFD, "chart": str(ROOT / "lab/charts/network-operator")},
        validation={"image": "busbar-lab/nccl-tests:1"},
        k3s={"sha256": {"amd64": "ab" * 32}, "registries": {"mirrors": mirrors}},
    )
    images = {each.name: list(each.mirrors) for each in found.artifacts if each.kind == "image"}
    assert images[f"docker.io/{versions.MPI_OPERATOR_IMAGE}"] == ["https://m"]
    assert images["docker.io/busbar-lab/nccl-tests:1"] == ["https://m"]
    plugin = "nvcr.io/nvidia/mellanox/sriov-network-device-plugin"
    assert images[f"{plugin}:network-operator-v{versions.NETWORK_OPERATOR}"] == ["https://n"]


def test_k3s_is_a_binary_and_the_archive_of_its_images_per_known_architecture(tmp_path: Path) -> None:
    archive = "k3s-airgap-images-arm64.tar.zst"
    (tmp_path / "sums").write_text(f"{'1' * 64}  k3s-arm64\n{'2' * 64}  {archive}\n")
    found = of(tmp_path, k3s={"checksums_file": "sums"})
    assert [(each.kind, each.name, each.sha256) for each in found.artifacts[:2]] == [
        ("binary", f"{RELEASE}/k3s-arm64", "1" * 64),
        ("archive", f"{RELEASE}/{archive}", "2" * 64),
    ]
    own = {"url": f"https://mirror/{archive}", "sha256": "cd" * 32, "roles": ["server"]}
    found = of(tmp_path, k3s={"checksums_file": "sums", "images": [own]})
    assert names(found, "archive") == [own["url"]], "in place of the released one"


def test_packages_are_those_of_the_hosts_that_are_configured(tmp_path: Path) -> None:
    def packages(nfs: bool = False, shared: bool = False, **sections: Any) -> list[str]:
        given = site(**sections)
        if nfs:
            given["hosts"]["nfs_server"] = host("nfs-1", "192.0.2.30")
        if shared:
            given["hosts"]["virtual_ip"] = {"address": "192.0.2.200", "interface": "eth0"}
        return names(needs(load(given), tmp_path, ROOT / "helm_values"), "package")

    assert packages() == ["haproxy"]
    assert packages(load_balancers=0, api_endpoint={"address": "192.0.2.9"}) == []
    both = packages(nfs=True, load_balancers=2, nfs_server={"folder": "/srv/busbar"})
    assert both == ["haproxy", "keepalived", "nfs-kernel-server"]
    assert packages(shared=True, load_balancers=0) == ["keepalived"]


def test_an_image_is_listed_once(tmp_path: Path) -> None:
    given = site(workers={"a": 2, "b": 2})
    found = of(tmp_path, **all_operators(enabled=True), pools=given["pools"], hosts=given["hosts"])
    assert len(names(found, "image")) == len({*names(found, "image")})

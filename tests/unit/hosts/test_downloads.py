"""Nothing is downloaded without a checksum."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from busbar.config import ConfigError, K3s, files, load
from busbar.hosts.k3s import download_values
from tests.support.clusters import site

BINARY, ARM, ARCHIVE = "1" * 64, "2" * 64, "c" * 64
SUMS = f"""\
# published with the release
{BINARY}  k3s
{ARM} *k3s-arm64

{ARCHIVE.upper()}  ./dist/system.tar.zst
"""
IMAGES = [
    {"url": "http://mirror/images/system.tar.zst", "roles": ["server", "worker"]},
    {"url": "http://mirror/images/nccl.tar", "roles": ["worker"], "sha256": "4" * 64},
]


def k3s(**settings: Any) -> K3s:
    return K3s.model_validate(settings)


def test_a_checksum_in_the_configuration_comes_before_the_file(tmp_path: Path) -> None:
    (tmp_path / "sums.txt").write_text(SUMS)
    settings = k3s(checksums_file="sums.txt", sha256={"amd64": "F" * 64})
    assert download_values(settings, "server", tmp_path)["SHA256_AMD64"] == "f" * 64
    listed = {"url": "http://mirror/system.tar.zst", "roles": ["server"], "sha256": "E" * 64}
    archives = download_values(k3s(checksums_file="sums.txt", images=[listed]), "server", tmp_path)["IMAGES"]
    assert archives == f"{'e' * 64} http://mirror/system.tar.zst"


def test_archives_go_to_the_roles_that_they_are_for(tmp_path: Path) -> None:
    (tmp_path / "sums.txt").write_text(SUMS)
    settings = k3s(checksums_file="sums.txt", images=IMAGES)
    values = download_values(settings, "server", tmp_path)
    assert values["IMAGES"] == f"{ARCHIVE} http://mirror/images/system.tar.zst"


def test_an_archive_is_found_by_the_name_that_its_url_stands_for(tmp_path: Path) -> None:
    (tmp_path / "sums.txt").write_text(f"{BINARY}  k3s\n{ARCHIVE}  cuda+12.tar\n")
    images = [{"url": "http://mirror/cuda%2B12.tar", "roles": ["worker"]}]
    values = download_values(k3s(checksums_file="sums.txt", images=images), "worker", tmp_path)
    assert values["IMAGES"] == f"{ARCHIVE} http://mirror/cuda%2B12.tar"


def test_an_archive_that_the_checksums_file_does_not_name_is_refused(tmp_path: Path) -> None:
    (tmp_path / "sums.txt").write_text(f"{BINARY}  k3s\n")
    settings = k3s(checksums_file="sums.txt", images=IMAGES)
    with pytest.raises(ConfigError, match=r"k3s.images\[0\]: the checksum of '.*/system.tar.zst' is unknown"):
        download_values(settings, "server", tmp_path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"<html>404</html>\n", "line 1 of 'sums.txt' is not in the format of sha256sum"),
        (f"{BINARY} k3s\n".encode(), "line 1 of 'sums.txt' is not in the format of sha256sum"),
        (b"\xff\xfe\x00", "cannot be read: it is not a text file"),
        (None, "cannot be read: No such file or directory"),
    ],
)
def test_an_unusable_checksums_file_is_a_finding(tmp_path: Path, content: bytes | None, message: str) -> None:
    if content is not None:
        (tmp_path / "sums.txt").write_bytes(content)
    with pytest.raises(ConfigError, match=message):
        files.read_checksums(k3s(checksums_file="sums.txt"), tmp_path)


def test_the_files_beside_the_stack_are_looked_at_when_the_project_folder_is_given(tmp_path: Path) -> None:
    (tmp_path / "id.pub").write_text("ssh-ed25519 AAAA me\n")
    data = site(
        ssh={"key_file": "id.pub"},
        gpu_operator={"chart": "./charts/gpu-operator"},
        validation={"topology_file": "topo.xml"},
        k3s={"checksums_file": "sums.txt"},
    )
    with pytest.raises(ConfigError) as caught:
        load(data, root=tmp_path)
    assert [finding.split(": ")[0] for finding in map(str, caught.value.findings)] == [
        "ssh.key_file",
        "validation.topology_file",
        "gpu_operator.chart",
        "k3s.checksums_file",
    ]


@pytest.mark.parametrize(
    ("name", "content", "fault"),
    [
        ("topo (1).xml", "<system/>", "is not a file name for a ConfigMap"),
        ("topo.xml", "<system>" + "x" * 1_000_000, "a ConfigMap holds at most 1000000"),
        ("topo.xml", "<html>not found</html>", "is not an NCCL topology"),
    ],
)
def test_a_topology_file_that_cannot_reach_the_pods_is_a_finding(
    tmp_path: Path, name: str, content: str, fault: str
) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(ConfigError, match=fault):
        load(site(validation={"topology_file": name}), root=tmp_path)


def test_complete_files_beside_the_stack_are_no_finding(tmp_path: Path) -> None:
    (tmp_path / "id").write_text("-----BEGIN OPENSSH PRIVATE KEY-----\n")
    (tmp_path / "sums.txt").write_text(SUMS)
    data = site(ssh={"key_file": "id"}, k3s={"checksums_file": "sums.txt", "images": IMAGES})
    assert load(data, root=tmp_path).k3s.checksums_file == "sums.txt"


def test_the_values_of_a_host_script_name_the_binary_of_each_architecture_and_the_archives(
    tmp_path: Path,
) -> None:
    (tmp_path / "sums.txt").write_text(SUMS)
    settings = k3s(base_url="http://mirror/k3s", checksums_file="sums.txt", images=IMAGES)
    assert download_values(settings, "worker", tmp_path) == {
        "VERSION": "v1.35.6+k3s1",
        "URL_AMD64": "http://mirror/k3s/v1.35.6%2Bk3s1/k3s",
        "SHA256_AMD64": BINARY,
        "URL_ARM64": "http://mirror/k3s/v1.35.6%2Bk3s1/k3s-arm64",
        "SHA256_ARM64": ARM,
        "IMAGES": f"{ARCHIVE} http://mirror/images/system.tar.zst\n{'4' * 64} http://mirror/images/nccl.tar",
    }


def test_an_architecture_without_a_checksum_is_left_out_of_the_values(tmp_path: Path) -> None:
    values = download_values(k3s(sha256={"arm64": ARM}), "server", tmp_path)
    assert sorted(values) == ["IMAGES", "SHA256_ARM64", "URL_ARM64", "VERSION"]


def test_values_without_any_checksum_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is unknown"):
        download_values(k3s(), "server", tmp_path)


def test_an_unreadable_checksums_file_is_not_taken_for_a_missing_checksum(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"k3s\.checksums_file: 'sums.txt' cannot be read"):
        download_values(k3s(checksums_file="sums.txt"), "server", tmp_path)

"""Nothing is downloaded without a checksum."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from busbar.config import K3s
from busbar.hosts.k3s import download_values

BINARY, ARM, ARCHIVE = "1" * 64, "2" * 64, "c" * 64
SUMS = f"""\
# published with the release
{BINARY}  k3s
{ARM} *k3s-arm64

{ARCHIVE.upper()}  ./dist/system.tar.zst
{"5" * 64}  cuda+12.tar
"""
MIRROR = "http://mirror/images"
IMAGES = [
    {"url": f"{MIRROR}/system.tar.zst", "roles": ["server", "worker"]},
    {"url": f"{MIRROR}/nccl.tar", "roles": ["worker"], "sha256": "4" * 64},
]
WITH_FILE = {"checksums_file": "sums.txt"}


def values(project: Path, role: str = "server", **settings: Any) -> dict[str, str]:
    """The downloads of a host script, with the checksums of SUMS unless the project has others."""
    if not (project / "sums.txt").exists():
        (project / "sums.txt").write_text(SUMS)
    return download_values(K3s.model_validate(settings), role, project)


def test_a_host_gets_the_binary_of_each_architecture_and_the_archives_of_its_role(tmp_path: Path) -> None:
    settings = {"base_url": "http://mirror/k3s", **WITH_FILE, "images": IMAGES}
    of_both = f"{ARCHIVE} {MIRROR}/system.tar.zst"
    assert values(tmp_path, "worker", **settings) == {
        "VERSION": "v1.35.6+k3s1",
        "URL_AMD64": "http://mirror/k3s/v1.35.6%2Bk3s1/k3s",
        "SHA256_AMD64": BINARY,
        "URL_ARM64": "http://mirror/k3s/v1.35.6%2Bk3s1/k3s-arm64",
        "SHA256_ARM64": ARM,
        "IMAGES": f"{of_both}\n{'4' * 64} {MIRROR}/nccl.tar",
    }
    assert values(tmp_path, "server", **settings)["IMAGES"] == of_both


def test_a_checksum_in_the_configuration_comes_before_the_file(tmp_path: Path) -> None:
    image = {**IMAGES[0], "sha256": "E" * 64}
    found = values(tmp_path, **WITH_FILE, sha256={"amd64": "F" * 64}, images=[image])
    assert found["SHA256_AMD64"] == "f" * 64
    assert found["IMAGES"] == f"{'e' * 64} {MIRROR}/system.tar.zst"


def test_an_archive_is_found_by_the_name_that_its_url_stands_for(tmp_path: Path) -> None:
    image = {"url": f"{MIRROR}/cuda%2B12.tar", "roles": ["server"]}
    assert values(tmp_path, **WITH_FILE, images=[image])["IMAGES"] == f"{'5' * 64} {MIRROR}/cuda%2B12.tar"


def test_an_architecture_without_a_checksum_is_left_out_of_the_values(tmp_path: Path) -> None:
    found = values(tmp_path, sha256={"arm64": ARM})
    assert sorted(found) == ["IMAGES", "SHA256_ARM64", "URL_ARM64", "VERSION"]

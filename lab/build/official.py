"""Official releases of K3s, the Pulumi CLI and its plugins: used instead of the lab's own, if reachable.

Each release server is probed once per process, with a short deadline: on a machine without internet access
the lab must not wait.
"""

from __future__ import annotations

import functools
import hashlib
import os
import platform
import shutil
import subprocess
import tarfile
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import quote, urlsplit

from busbar import versions
from lab.paths import cache
from lab.steps import LabError, log_line, step

PROBE_SECONDS = 5
REMEMBER_SECONDS = 3600
DOWNLOAD_SECONDS = 600
PULUMI = "3.259.0"
PULUMI_URL = "https://get.pulumi.com/releases/sdk"
PLUGINS = ("command", "random", "kubernetes")


def architecture() -> str:
    """This machine's architecture as release files name it: amd64 or arm64."""
    return {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())


@functools.cache
def reachable(url: str) -> bool:
    """True when the URL's server confirms the file within PROBE_SECONDS.

    A failure is cached for an hour: behind a firewall that drops packets each probe takes the whole deadline.
    """
    failed = cache() / "official" / f"unreachable-{urlsplit(url).hostname}"
    if failed.exists() and time.time() - failed.stat().st_mtime < REMEMBER_SECONDS:
        return False
    found = _answers(url)
    if not found:
        failed.parent.mkdir(parents=True, exist_ok=True)
        failed.touch()
    return found


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(urllib.request.Request(url, method="HEAD"), timeout=PROBE_SECONDS):
            return True
    except urllib.error.HTTPError as error:
        # A proxy that denies access answers with an error code; a release server has its own release.
        return error.code < 400
    except (urllib.error.URLError, TimeoutError, OSError):
        return False


def k3s_is_given() -> bool:
    """True when the user names a K3s binary."""
    return bool(os.environ.get("BUSBAR_LAB_K3S"))


def k3s() -> Path | None:
    """The official K3s of busbar's default version, from the cache or the download; None if neither.

    The file is taken only if its SHA-256 is the one that the release publishes.
    """
    folder = cache() / "official" / f"k3s-{versions.K3S}-{architecture()}"
    binary = folder / "k3s"
    if binary.exists():
        return binary
    base = f"{versions.K3S_BASE_URL}/{quote(versions.K3S)}"
    name = "k3s" if architecture() == "amd64" else f"k3s-{architecture()}"
    if not reachable(f"{base}/{name}"):
        return None
    with step(f"download K3s {versions.K3S} from {urlsplit(base).hostname}"):
        sums = _text(f"{base}/sha256sum-{architecture()}.txt")
        expected = {line[1]: line[0] for line in map(str.split, sums.splitlines()) if len(line) == 2}
        if name not in expected:
            raise LabError(f"{base}/sha256sum-{architecture()}.txt has no checksum for {name}: not installed")
        _download(f"{base}/{name}", binary, expected[name])
        binary.chmod(0o755)
    return binary


def cached_pulumi() -> Path | None:
    """The folder of an official Pulumi CLI that an earlier command downloaded."""
    folder = cache() / "official" / f"pulumi-{PULUMI}"
    return folder if (folder / "pulumi").exists() else None


def pulumi() -> Path | None:
    """The folder of an official Pulumi CLI from the cache or the download; None if neither."""
    if kept := cached_pulumi():
        return kept
    folder = cache() / "official" / f"pulumi-{PULUMI}"
    if not reachable(_pulumi_release()):
        return None
    folder.parent.mkdir(parents=True, exist_ok=True)
    with step(f"download Pulumi {PULUMI}"), tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
        archive = Path(scratch) / "pulumi.tar.gz"
        _download(_pulumi_release(), archive, None)
        with tarfile.open(archive) as tar:
            tar.extractall(scratch, filter="data")
        shutil.move(str(Path(scratch) / "pulumi"), folder)
    return folder


def plugin(name: str, environment: Mapping[str, str] | None = None) -> str | None:
    """The path of an official provider plugin, on PATH or in ~/.pulumi/plugins; None if there is none.

    `environment` is that of the engine without the lab's own plugins.
    """
    environment = os.environ if environment is None else environment
    if found := shutil.which(f"pulumi-resource-{name}", path=environment.get("PATH", "")):
        return found
    home = Path(environment.get("PULUMI_HOME") or Path.home() / ".pulumi")
    installed = sorted((home / "plugins").glob(f"resource-{name}-v*/pulumi-resource-{name}"))
    return str(installed[-1]) if installed else None


def install_plugins(engine: Path) -> None:
    """Install missing provider plugins with the engine's command, if their server is reachable."""
    absent = [name for name in PLUGINS if plugin(name) is None]
    if not absent or not reachable(_pulumi_release()):
        return
    for name in absent:
        with step(f"pulumi plugin install resource {name}"):
            done = subprocess.run(
                [engine, "plugin", "install", "resource", name],
                capture_output=True, text=True, timeout=DOWNLOAD_SECONDS, check=False,
            )  # fmt: skip
        if done.returncode != 0:
            log_line(f"no official plugin {name}, using the lab's replacement: {done.stderr.strip()}")


def _pulumi_release() -> str:
    flavour = "x64" if architecture() == "amd64" else architecture()
    return f"{PULUMI_URL}/pulumi-v{PULUMI}-linux-{flavour}.tar.gz"


def _text(url: str) -> str:
    with urllib.request.urlopen(url, timeout=30) as answer:
        return str(answer.read().decode())


def _download(url: str, target: Path, sha256: str | None) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    fresh = target.with_name(f".{target.name}.new")
    digest = hashlib.sha256()
    with urllib.request.urlopen(url, timeout=60) as answer, fresh.open("wb") as file:
        while block := answer.read(1 << 20):
            digest.update(block)
            file.write(block)
    if sha256 is not None and digest.hexdigest() != sha256:
        fresh.unlink()
        raise LabError(f"{url}: SHA-256 is {digest.hexdigest()}, expected {sha256} from the release; retry")
    os.replace(fresh, target)

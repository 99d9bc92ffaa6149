"""Replacements of official parts, and official parts that are built here.

None is used where the part is installed or its download answers.

This is the door: it says which parts this machine lacks (`missing_tools`, `missing_plugins`).
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from busbar import versions
from lab.build import official
from lab.build.go import MODULE, Tool, module_folder
from lab.offline.kubernetes import PROVIDER
from lab.offline.python_host import PYTHON_HOST
from lab.paths import LAB
from lab.paths import tools as built

OFFLINE = LAB / "offline"
_PULUMI_VERSION = f"-X github.com/pulumi/pulumi/sdk/v3/go/common/version.Version=v{official.PULUMI}"
_SDK = "github.com/pulumi/pulumi/sdk/v3"
_SCRIPTS = ("python/cmd/pulumi-language-python-exec", "python/dist/pulumi-resource-pulumi-python")

ENGINE = (
    Tool("pulumi", "github.com/pulumi/pulumi/pkg/v3/cmd/pulumi", ldflags=_PULUMI_VERSION),
    PYTHON_HOST,
)


def _kubernetes_version(version: str) -> str:
    """Linker flags with which every component of Kubernetes reports `version`."""
    parts = {"Version": version, "Major": "1", "Minor": version.split(".")[1], "TreeState": "clean"}
    values = {**parts, "Commit": "replacement"}
    packages = ("k8s.io/component-base/version", "k8s.io/client-go/pkg/version")
    named = [(f"{package}.git{name}", value) for package in packages for name, value in values.items()]
    return " ".join(f"-X {name}={value}" for name, value in named)


# It reports the version that a real site would get: the product runs `k3s --version`.
K3S = Tool("k3s-replacement", "busbar/lab/k3s", ldflags=_kubernetes_version(versions.K3S))
# K3s brings its own containerd. Under the name `ctr` the first one is containerd's client.
CONTAINERD = (
    Tool("containerd", "busbar/lab/k3s/containerd"),
    Tool("containerd-shim-runc-v2", "github.com/containerd/containerd/v2/cmd/containerd-shim-runc-v2"),
)
HELM = Tool("helm", "helm.sh/helm/v3/cmd/helm", ldflags="-X helm.sh/helm/v3/internal/version.version=v3.21.1")


def missing_tools() -> list[Tool]:
    """What has to be built here, because the official program is neither installed nor to be downloaded."""
    found: list[Tool] = []
    if engine_is_replaced():
        found += ENGINE
    if not official.k3s_is_given() and official.k3s() is None:
        found += (K3S, *CONTAINERD)
    if shutil.which("helm") in (None, str(HELM.output)):
        found.append(HELM)
    return found


def engine_is_replaced() -> bool:
    """Whether the Pulumi CLI is the lab's own build."""
    on_path = shutil.which("pulumi")
    return on_path in (None, str(built() / "pulumi")) and official.pulumi() is None


def python_host_scripts() -> None:
    """Copy the two scripts of the Python language host from the SDK into the folder of tools."""
    if all((built() / script.rpartition("/")[2]).exists() for script in _SCRIPTS):
        return
    sdk = module_folder(MODULE, _SDK)
    for script in _SCRIPTS:
        target = built() / script.rpartition("/")[2]
        shutil.copyfile(sdk / script, target)
        target.chmod(0o755)


def missing_plugins(own: Path) -> list[str]:
    """Provider plugins that are not installed; `own` is the folder with the lab's, which does not count."""
    path = os.pathsep.join(part for part in os.environ.get("PATH", "").split(os.pathsep) if part != str(own))
    elsewhere = {**os.environ, "PATH": path}
    return [name for name in official.PLUGINS if official.plugin(name, elsewhere) is None]


def replacement_plugin(name: str) -> Path:
    """The executable that the lab has in place of a plugin: its own, and of Kubernetes the official one."""
    if name == "kubernetes":
        return PROVIDER.output
    return OFFLINE / "plugins" / "bin" / f"pulumi-resource-{name}"

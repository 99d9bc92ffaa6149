"""The tools, each with the module that pins its version (lab/go/<tool>/go.mod)."""

from __future__ import annotations

import shutil

from busbar import versions
from lab.build import official
from lab.build.go import MODULES, Tool, module_folder
from lab.paths import tools

_PULUMI_VERSION = f"-s -w -X github.com/pulumi/pulumi/sdk/v3/go/common/version.Version=v{official.PULUMI}"
_SDK = "github.com/pulumi/pulumi/sdk/v3"

K3S_TOOL = "k3s-replacement"
TOOLS = (
    Tool(
        "pulumi",
        "github.com/pulumi/pulumi/pkg/v3/cmd/pulumi",
        MODULES / "pulumi",
        ldflags=_PULUMI_VERSION,
        static=False,
        engine=True,
    ),
    # Later SDKs ship the Python language host as binaries only; v3.79.0 is the last that holds its source.
    Tool(
        "pulumi-language-python",
        f"{_SDK}/python/cmd/pulumi-language-python",
        MODULES / "pulumi-language-python",
        ldflags=_PULUMI_VERSION,
        static=False,
        engine=True,
    ),
    # It reports the version that a real site would get: the product runs `k3s --version`.
    Tool(K3S_TOOL, ".", MODULES / "k3s", script=("build.sh", versions.K3S)),
    Tool("mpi-operator", "github.com/kubeflow/mpi-operator/cmd/mpi-operator", MODULES / "mpi-operator"),
    Tool("coredns", "github.com/coredns/coredns", MODULES / "coredns"),
    Tool(
        "helm",
        "helm.sh/helm/v3/cmd/helm",
        MODULES / "helm",
        ldflags="-s -w -X helm.sh/helm/v3/internal/version.version=v3.22.0",
        official_name="helm",
    ),
)
# An S3 server, for snapshots, and an NFS server with its client.
S3_TOOL = Tool("versitygw", "github.com/versity/versitygw/cmd/versitygw", MODULES / "s3")
NFS_TOOL = Tool("nfs-replacement", ".", MODULES / "nfs")
# What `make test-upgrade` builds besides: the same program with Kubernetes of the minor release before.
PREVIOUS_K3S = "v1.34.2+k3s1"
PREVIOUS_K3S_TOOL = Tool("k3s-previous", ".", MODULES / "k3s", script=("build.sh", PREVIOUS_K3S))
# What only `make drills` needs: built before the first test.
DRILL_TOOLS = (S3_TOOL, NFS_TOOL)
_SCRIPTS = ("python/cmd/pulumi-language-python-exec", "python/dist/pulumi-resource-pulumi-python")


def is_on_path(tool: Tool) -> bool:
    """True when the official tool is on PATH."""
    if tool.official_name is None:
        return False
    found = shutil.which(tool.official_name)
    return found is not None and found != str(tool.output)


def python_host_scripts() -> None:
    """Copy the two scripts of the Python language host from the SDK into the folder of tools."""
    if all((tools() / script.rpartition("/")[2]).exists() for script in _SCRIPTS):
        return
    sdk = module_folder(MODULES / "pulumi", _SDK)
    for script in _SCRIPTS:
        target = tools() / script.rpartition("/")[2]
        shutil.copyfile(sdk / script, target)
        target.chmod(0o755)

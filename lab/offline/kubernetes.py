"""The official Pulumi Kubernetes provider, built from its Go module.

Two lines of it do not compile with the versions of lab/go/go.mod, and one file of its SDK imports all typed
kinds of Kubernetes (kinds/kinds.go says more). Both modules are copied from Go's module cache for the build,
and changed in the copy.
"""

from __future__ import annotations

import json
import shutil
from importlib.metadata import version
from pathlib import Path

from lab.build.go import MODULE, Tool, edit, module_folder, with_copies

_PROVIDER = "github.com/pulumi/pulumi-kubernetes/provider/v4"
_SDK = "github.com/pulumi/pulumi-kubernetes/sdk/v4"
_COMMAND = "cmd/pulumi-resource-kubernetes"
# The SDK of Python asks for this version of the provider. The newest Go module calls itself nothing.
_VERSION = version("pulumi-kubernetes")
# File, text before, text after. A field is a pointer now, and client-go has the later package.
_EDITS = (
    ("pkg/gen/schema.go", "Provider: pschema.ResourceSpec{", "Provider: &pschema.ResourceSpec{"),
    ("pkg/await/await.go", "structured-merge-diff/v4/fieldpath", "structured-merge-diff/v6/fieldpath"),
)


def _sources(folder: Path) -> Path:
    """Copy both modules into `folder` and change them; returns the go.mod that names the copies."""
    provider, sdk = folder / "provider", folder / "sdk"
    for path, copy in ((_PROVIDER, provider), (_SDK, sdk)):
        shutil.copytree(module_folder(MODULE, path), copy, copy_function=shutil.copyfile)
        for each in (copy, *copy.rglob("*/")):
            each.chmod(0o755)
    for name, before, after in _EDITS:
        edit(provider / name, before, after)
    shutil.copyfile(
        Path(__file__).parent / "kinds" / "kinds.go", sdk / "go" / "kubernetes" / "yaml" / "v2" / "kinds.go"
    )
    _embed(provider, "schema", version=_VERSION)
    _embed(provider, "terraform-mapping")
    return with_copies(folder, {_PROVIDER: provider, _SDK: sdk})


def _embed(provider: Path, name: str, **more: str) -> None:
    """Write a file that the provider's main embeds [its cmd/pulumi-resource-kubernetes/generate.go]."""
    content = json.loads((provider / _COMMAND / f"{name}.json").read_text())
    text = json.dumps({**content, **more}, separators=(",", ":"))
    (provider / _COMMAND / f"{name}-embed.json").write_text(text)


# Its name is not that of a plugin: an official one of ~/.pulumi/plugins takes precedence over this folder.
PROVIDER = Tool(
    "kubernetes-provider",
    f"{_PROVIDER}/{_COMMAND}",
    ldflags=f"-X {_PROVIDER}/pkg/version.Version={_VERSION}",
    sources=_sources,
)

"""The Python language host of Pulumi, built from its Go source.

Later SDKs ship the host as binaries only; v3.79.0 is the last that holds its source. The source is copied
from Go's module cache and compiled with the SDK of lab/go/go.mod, for which a few lines of it are changed.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from lab.build.go import MODULE, Tool, edit, module_folder, with_copies
from lab.build.official import PULUMI

_SDK = "github.com/pulumi/pulumi/sdk/v3"
_LAST = "v3.79.0"
_MODULE = "busbar.lab/python-host"
_MAIN, _PACKAGE = "python/cmd/pulumi-language-python/main.go", ("python/python.go", "python/shim_unix.go")
# Text before, text after, how often. The package is copied too, `V` returns a logger, `About` gets a request.
_EDITS = (
    (f'"{_SDK}/python"', f'"{_MODULE}/python"', 1),
    ("if logging.V(5) {", "if logging.V(5).Enabled() {", 2),
    ("if logging.V(9) {", "if logging.V(9).Enabled() {", 1),
    ("*pbempty.Empty) (*pulumirpc.AboutResponse", "*pulumirpc.AboutRequest) (*pulumirpc.AboutResponse", 1),
)


def _sources(folder: Path) -> Path:
    """Make a module of the copied files in `folder`; returns the go.mod that names it."""
    sdk, copy = module_folder(MODULE, f"{_SDK}@{_LAST}"), folder / "host"
    (copy / "python").mkdir(parents=True)
    for name in (_MAIN, *_PACKAGE):
        shutil.copyfile(sdk / name, copy / name.removeprefix("python/cmd/pulumi-language-python/"))
    for before, after, times in _EDITS:
        edit(copy / "main.go", before, after, times)
    (copy / "go.mod").write_text(f"module {_MODULE}\n\ngo 1.26.0\n")
    return with_copies(folder, {_MODULE: copy}, required=[_MODULE])


PYTHON_HOST = Tool(
    "pulumi-language-python",
    _MODULE,
    ldflags=f"-X {_SDK}/go/common/version.Version=v{PULUMI}",
    sources=_sources,
)

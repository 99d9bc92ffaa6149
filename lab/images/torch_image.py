"""The image for training runs: torch from Debian's packages, without CUDA.

Built only for `make up-training`: it takes minutes, and `make up` does without it.
"""

from __future__ import annotations

from fnmatch import fnmatch
from pathlib import Path

from lab.images import tree
from lab.images.archive import Image
from lab.images.catalog import Archive
from lab.images.recipe import key, lines
from lab.steps import LabError, run_logged, step

IMAGE = "docker.io/busbar-lab/torch:1"
NAME = "torch"
# Of a later release than the hosts: Debian 12 has torch 1.13, Debian 13 has 2.6.
SUITE = "trixie"
FOLDER = tree.HERE / "torch"

# Layers have no dates, so Python would take every compiled module for outdated and compile it at each start:
# `import torch` takes seven times as long. These are used without a look at the source.
_COMPILE = (
    "python3 -m compileall -q -f -j 2 --invalidation-mode unchecked-hash "
    "/usr/lib/python3 /usr/lib/python3.* || [ $? = 1 ]"
)

_DISTRIBUTED = "usr/lib/python3/dist-packages/torch/distributed"
# Debian builds torch without libuv. torch 2.6 reads USE_LIBUV only for the store of the ranks; torchrun and
# its rendezvous ask for libuv always. File, text that occurs once, and what replaces it.
_WITHOUT_LIBUV = (
    (
        "rendezvous.py",
        "            is_master=False,\n            timeout=timeout,\n        )\n",
        "            is_master=False,\n            timeout=timeout,\n"
        "            use_libuv=False,\n        )\n",
    ),
    (
        "elastic/rendezvous/c10d_rendezvous_backend.py",
        "                multi_tenant=True,\n",
        "                multi_tenant=True,\n                use_libuv=False,\n",
    ),
    (
        "elastic/rendezvous/dynamic_rendezvous.py",
        "            multi_tenant=True,\n",
        "            multi_tenant=True,\n            use_libuv=False,\n",
    ),
    (
        "elastic/rendezvous/static_tcp_rendezvous.py",
        "                multi_tenant=True,\n",
        "                multi_tenant=True,\n                use_libuv=False,\n",
    ),
)


def archive() -> Archive:
    """The archive, as those of catalog.py."""
    return Archive(NAME, lambda tools: recipe(), _images)


def packages() -> list[str]:
    """The packages of the image."""
    return lines(FOLDER / "packages.txt")


def recipe() -> str:
    """The hash of what the image is made from."""
    return key(IMAGE, _tree_recipe(), *_left_out())


def ensure(work: Path) -> Path:
    """The package tree under `work`, made where it is missing. Raises LabError when a step of it fails."""
    result = work / f"torch-{_tree_recipe()}"
    with tree.once(result) as stage:
        if stage:
            with step("Debian packages of the training image (once; some minutes)"):
                _make(stage, tree.log_of(result))
    return result


def without_libuv(root: Path) -> None:
    """Let torchrun use torch's own TCP store. Raises LabError for another torch than the one known here."""
    for name, old, new in _WITHOUT_LIBUV:
        path = root / _DISTRIBUTED / name
        text = path.read_text()
        if text.count(old) != 1:
            raise LabError(
                f"{path}: found {text.count(old)} places to switch libuv off, expected 1: this is not torch "
                "2.6. Fix: adapt lab/images/torch_image.py to it"
            )
        path.write_text(text.replace(old, new))


def _tree_recipe() -> str:
    return key(SUITE, _COMPILE, repr(_WITHOUT_LIBUV), *packages())


def _left_out() -> list[str]:
    return lines(FOLDER / "left_out.txt")


def _images(work: Path, tools: Path) -> list[Image]:
    left_out = _left_out()

    def keep(path: str) -> bool:
        return not any(fnmatch(path, pattern) for pattern in left_out)

    return [Image(IMAGE, tree=ensure(work), keep=keep, command=("/usr/bin/python3",))]


def _make(stage: Path, log: Path) -> None:
    run_logged(["debootstrap", "--variant=minbase", SUITE, stage], log, deadline=tree.DEADLINE_SECONDS)
    # debootstrap's own resolver does not know alternatives and virtual packages; apt does.
    names = " ".join(packages())
    _in_root(stage, f"apt-get update -q && apt-get install -y -q --no-install-recommends {names}", log)
    without_libuv(stage)
    _in_root(stage, _COMPILE, log)


def _in_root(root: Path, script: str, log: Path) -> None:
    enter = (
        f"mount -t proc proc '{root}/proc' && mount --rbind /dev '{root}/dev' && "
        f"exec chroot '{root}' env DEBIAN_FRONTEND=noninteractive LC_ALL=C sh -eu -c \"$1\""
    )
    command = ["unshare", "--mount", "--propagation", "private", "sh", "-euc", enter, "sh", script]
    run_logged(command, log.with_suffix(".setup.log"), deadline=tree.DEADLINE_SECONDS)

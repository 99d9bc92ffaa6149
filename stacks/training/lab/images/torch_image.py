"""The image for training: torch from Debian's packages, without CUDA; Open MPI, sshd, and DeepSpeed.

Built only for `make up-training`: it takes minutes, and `make up` does without it.
"""

from __future__ import annotations

import os
import sys
from fnmatch import fnmatch
from pathlib import Path

from lab.build.recipe import key, lines
from lab.images import tree
from lab.images.archive import File, Image
from lab.images.catalog import Archive
from lab.steps import LabError, run_logged, step

IMAGE = "docker.io/busbar-lab/torch:1"
NAME = "torch"
# A later release than that of the hosts: Debian 12 has torch 1.13, Debian 13 has 2.6.
SUITE = "trixie"
FOLDER = Path(__file__).resolve().parent / "torch"

# Layers have no dates, so Python would take every compiled module for outdated and compile it at each start:
# `import torch` takes seven times as long. These are used without a look at the source.
_COMPILE = (
    "python3 -m compileall -q -f -j 2 --invalidation-mode unchecked-hash "
    "/usr/lib/python3 /usr/lib/python3.* || [ $? = 1 ]"
)

_USER = "mpiuser"  # of Trainer's and the MPI Operator's own images: sshd and the ranks of mpirun are its
_USER_ID = 1000

_PACKAGES = "usr/lib/python3/dist-packages"
_DISTRIBUTED = f"{_PACKAGES}/torch/distributed"
# File, text that occurs once, and what replaces it.
Patch = tuple[str, str, str]
# Debian builds torch without libuv. torch 2.6 reads USE_LIBUV only for the store of the ranks; torchrun and
# its rendezvous ask for libuv always.
_WITHOUT_LIBUV: tuple[Patch, ...] = (
    (f"{_DISTRIBUTED}/rendezvous.py", 'os.environ.get("USE_LIBUV", "1")', 'os.environ.get("USE_LIBUV", "0")'),
    (
        f"{_DISTRIBUTED}/rendezvous.py",
        "            is_master=False,\n            timeout=timeout,\n        )\n",
        "            is_master=False,\n            timeout=timeout,\n"
        "            use_libuv=False,\n        )\n",
    ),
    (
        f"{_DISTRIBUTED}/elastic/rendezvous/c10d_rendezvous_backend.py",
        "                multi_tenant=True,\n",
        "                multi_tenant=True,\n                use_libuv=False,\n",
    ),
    (
        f"{_DISTRIBUTED}/elastic/rendezvous/dynamic_rendezvous.py",
        "            multi_tenant=True,\n",
        "            multi_tenant=True,\n            use_libuv=False,\n",
    ),
    (
        f"{_DISTRIBUTED}/elastic/rendezvous/static_tcp_rendezvous.py",
        "                multi_tenant=True,\n",
        "                multi_tenant=True,\n                use_libuv=False,\n",
    ),
)
# On CPUs DeepSpeed compiles an all-reduce over shared memory when it starts; the image has no compiler.
_WITHOUT_COMPILER: tuple[Patch, ...] = (
    (
        f"{_PACKAGES}/deepspeed/comm/torch.py",
        "def build_shm_op():\n",
        "def build_shm_op():\n    return None\n",
    ),
)
# Path in the image -> file of FOLDER, and its mode.
_FILES = {
    "etc/ssh/ssh_config.d/lab.conf": ("ssh_config", 0o644),
    # Where busbar's runtime and the examples look for it, as in those images.
    f"home/{_USER}/.sshd_config": ("sshd_config", 0o644),
    # Debian has the module, but not the command.
    "usr/local/bin/torchrun": ("torchrun", 0o755),
    "usr/local/bin/nslookup": ("nslookup", 0o755),
}


def archive() -> Archive:
    """The archive, as those of catalog.py."""
    return Archive(NAME, lambda tools: recipe(), _images)


def packages() -> list[str]:
    """The packages of the image."""
    return lines(FOLDER / "packages.txt")


def recipe() -> str:
    """The hash of what the image is made from."""
    return key(IMAGE, _tree_recipe(), *_left_out(), repr(_FILES), *_sources())


def ensure(work: Path) -> Path:
    """The package tree under `work`, made where it is missing. Raises LabError when a step of it fails."""
    result = work / f"torch-{_tree_recipe()}"
    with tree.once(result) as stage:
        if stage:
            with step("Debian packages of the training image (once; some minutes)"):
                _make(stage, tree.log_of(result))
    return result


def adapt(root: Path) -> None:
    """Let torchrun use torch's own TCP store, and DeepSpeed do without a compiler.

    Raises LabError for other releases than those known here: torch 2.6, DeepSpeed 0.16.9.
    """
    for name, old, new in (*_WITHOUT_LIBUV, *_WITHOUT_COMPILER):
        path = root / name
        text = path.read_text()
        if text.count(old) != 1:
            raise LabError(
                f"{path}: found {text.count(old)} places for a change, expected 1: another release than "
                "the one known here. Fix: adapt lab/images/torch_image.py to it"
            )
        path.write_text(text.replace(old, new))


def _tree_recipe() -> str:
    patches = repr((_WITHOUT_LIBUV, _WITHOUT_COMPILER))
    return key(SUITE, _COMPILE, _USER, str(_USER_ID), patches, FOLDER / "deepspeed.txt", *packages())


def _sources() -> list[Path]:
    return [FOLDER / name for name, _ in _FILES.values()]


def _left_out() -> list[str]:
    return lines(FOLDER / "left_out.txt")


def _images(work: Path, tools: Path) -> list[Image]:
    left_out = _left_out()

    def keep(path: str) -> bool:
        return not any(fnmatch(path, pattern) for pattern in left_out)

    files = {place: File(FOLDER / name, mode) for place, (name, mode) in _FILES.items()}
    image = Image(IMAGE, tree=ensure(work), keep=keep, files=files, command=("/usr/bin/python3",))
    return [image]


def _make(stage: Path, log: Path) -> None:
    run_logged(["debootstrap", "--variant=minbase", SUITE, stage], log, deadline=tree.DEADLINE_SECONDS)
    # debootstrap's own resolver does not know alternatives and virtual packages; apt does.
    names = " ".join(packages())
    _in_root(stage, f"apt-get update -q && apt-get install -y -q --no-install-recommends {names}", log)
    _in_root(stage, f"useradd --create-home --uid {_USER_ID} {_USER}", log)
    _install_deepspeed(stage, log)
    adapt(stage)
    _in_root(stage, _COMPILE, log)


def _install_deepspeed(root: Path, log: Path) -> None:
    """With this machine's pip: what it needs comes from Debian, and its own operators are not compiled."""
    run_logged(
        [
            *(
                sys.executable,
                "-m",
                "pip",
                "install",
                "--no-deps",
                "--no-compile",
                "--no-binary",
                "deepspeed",
            ),
            *("--require-hashes", "--requirement", FOLDER / "deepspeed.txt", "--target", root / _PACKAGES),
        ],
        log.with_suffix(".deepspeed.log"),
        deadline=tree.DEADLINE_SECONDS,
        env={**os.environ, "DS_BUILD_OPS": "0", "DS_ACCELERATOR": "cpu"},
    )


def _in_root(root: Path, script: str, log: Path) -> None:
    enter = (
        f"mount -t proc proc '{root}/proc' && mount --rbind /dev '{root}/dev' && "
        f"exec chroot '{root}' env DEBIAN_FRONTEND=noninteractive LC_ALL=C sh -eu -c \"$1\""
    )
    command = ["unshare", "--mount", "--propagation", "private", "sh", "-euc", enter, "sh", script]
    run_logged(command, log.with_suffix(".setup.log"), deadline=tree.DEADLINE_SECONDS)

"""The image for training runs: when it is built, and what is changed in Debian's torch."""

from __future__ import annotations

import ast
import textwrap
from pathlib import Path
from typing import Any

import pytest

from lab.steps import LabError
from stacks.training.lab.images import torch_image

STORE = """\
            store = TCPStore(
                host,
                multi_tenant=True,
            )
"""
CLIENT = """\
def asked(query):
    return query.get("use_libuv", os.environ.get("USE_LIBUV", "1")) == "1"


class Opens:
    def store(self):
        return TCPStore(
            host_name=hostname,
            is_master=False,
            timeout=timeout,
        )
"""
SMALL = """\
        return dist.TCPStore(
            host_name=master_addr,
            multi_tenant=True,
        )
"""
BUILDS = """\
def build_shm_op():
    return builder.load()
"""
# As in torch 2.6: the call in each file.
STORES = {
    "rendezvous.py": CLIENT,
    "elastic/rendezvous/c10d_rendezvous_backend.py": STORE,
    "elastic/rendezvous/dynamic_rendezvous.py": SMALL,
    "elastic/rendezvous/static_tcp_rendezvous.py": STORE,
}


@pytest.fixture
def packages(tmp_path: Path) -> Path:
    """The folder of Python packages in a tree."""
    folder = tmp_path / "usr/lib/python3/dist-packages"
    sources = {f"torch/distributed/{name}": text for name, text in STORES.items()}
    for name, text in {**sources, "deepspeed/comm/torch.py": BUILDS}.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


def test_stores_do_without_libuv_those_of_the_ranks_unless_it_is_asked_for(
    tmp_path: Path, packages: Path
) -> None:
    torch_image.adapt(tmp_path)
    for name in STORES:
        text = (packages / "torch/distributed" / name).read_text()
        assert text.count("use_libuv=False,") == 1, name
        ast.parse(textwrap.dedent(text))
    assert 'environ.get("USE_LIBUV", "0")' in (packages / "torch/distributed/rendezvous.py").read_text()


def test_deepspeed_compiles_nothing_when_it_starts(tmp_path: Path, packages: Path) -> None:
    torch_image.adapt(tmp_path)
    found: dict[str, Any] = {}
    exec((packages / "deepspeed/comm/torch.py").read_text(), found)
    assert found["build_shm_op"]() is None


def test_another_torch_is_refused_and_not_half_changed_in_silence(tmp_path: Path, packages: Path) -> None:
    (packages / "torch/distributed/elastic/rendezvous/dynamic_rendezvous.py").write_text("TCPStore()\n")
    with pytest.raises(LabError, match=r"dynamic_rendezvous.py: found 0 places .* Fix: adapt"):
        torch_image.adapt(tmp_path)

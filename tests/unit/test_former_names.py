"""Programs that were written for an earlier release import the judge and the fabric by their former names."""

from __future__ import annotations

import sys
from importlib import import_module

import pytest

from busbar.former_names import FORMER


@pytest.fixture(autouse=True)
def not_yet_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [*sys.modules]:
        if name.startswith(tuple(FORMER)):
            monkeypatch.delitem(sys.modules, name)


@pytest.mark.parametrize(("former", "name"), FORMER.items())
def test_a_former_name_is_the_same_package_and_says_the_new_name(former: str, name: str) -> None:
    with pytest.warns(DeprecationWarning, match=f"{former} is now {name}"):
        module = import_module(former)
    assert module is import_module(name)


def test_a_module_of_a_former_name_is_not_loaded_twice() -> None:
    with pytest.warns(DeprecationWarning, match=r"is now busbar\.judge\.nccl\.log\.reader"):
        former = import_module("busbar.nccl.log.reader")
    assert former is import_module("busbar.judge.nccl.log.reader")


def test_a_module_that_no_release_had_is_not_found() -> None:
    with pytest.warns(DeprecationWarning), pytest.raises(ModuleNotFoundError, match="parser"):
        import_module("busbar.nccl.parser")

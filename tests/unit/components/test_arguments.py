"""What Pulumi's analyser of components accepts can be used from programs in other languages."""

from __future__ import annotations

import importlib
import pkgutil

import pulumi
import pytest
from pulumi.provider.experimental.analyzer import Analyzer

import busbar.components


def _components() -> list[type[pulumi.ComponentResource]]:
    names = [module.name for module in pkgutil.iter_modules(busbar.components.__path__) if not module.ispkg]
    modules = [importlib.import_module(f"busbar.components.{name}") for name in names]
    return [
        each
        for module in modules
        for each in vars(module).values()
        if isinstance(each, type)
        and issubclass(each, pulumi.ComponentResource)
        and each.__module__ == module.__name__
    ]


@pytest.mark.parametrize("component", _components())
def test_a_component_has_arguments_and_outputs_that_pulumis_analyser_accepts(
    component: type[pulumi.ComponentResource],
) -> None:
    # Annotations are read at run time: a module with `from __future__ import annotations` fails here.
    found = Analyzer("busbar").analyze([component])
    assert found["component_definitions"][component.__name__].inputs


def test_all_components_fit_into_one_package() -> None:
    found = Analyzer("busbar").analyze(_components())
    assert len(found["component_definitions"]) == len(_components())

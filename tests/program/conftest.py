"""Settings for programs under mocks."""

from __future__ import annotations

import os

import pytest

# An Output that is made a text raises, where the SDK would otherwise only write a warning into the text.
os.environ["PULUMI_ERROR_OUTPUT_STRING"] = "1"


def pytest_configure(config: pytest.Config) -> None:
    """`import pulumi_command.remote` warns of a class that nobody here uses."""
    config.addinivalue_line("filterwarnings", "ignore:This resource is deprecated:DeprecationWarning")

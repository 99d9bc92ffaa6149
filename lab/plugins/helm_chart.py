"""What a chart says about itself, without asking helm where the chart lies on this machine."""

from __future__ import annotations

import os
import tarfile
from typing import Any

import yaml

from lab.plugins.helm_cli import Helm, HelmFailed
from lab.plugins.helm_values import chart_words
from lab.plugins.resource import ProviderError
from lab.plugins.values import Properties


def metadata(helm: Helm, inputs: Properties) -> dict[str, Any]:
    """The chart's Chart.yaml. Raises ProviderError where there is no such chart."""
    path = str(inputs["chart"])
    repository = (inputs.get("repositoryOpts") or {}).get("repo")
    if not repository and os.path.isfile(os.path.join(path, "Chart.yaml")):
        with open(os.path.join(path, "Chart.yaml")) as file:
            return _parse(file.read(), path)
    if not repository and os.path.isfile(path):
        return _parse(_from_archive(path), path)
    if not repository and (os.path.isabs(path) or path.startswith(".")):
        raise ProviderError(f'path "{path}" not found')
    try:
        return _parse(helm.run("show", "chart", *chart_words(inputs)), path)
    except HelmFailed as error:
        raise ProviderError(str(error)) from error


def _parse(text: str | bytes, path: str) -> dict[str, Any]:
    try:
        parsed = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ProviderError(f"{path}: Chart.yaml: {error}") from error
    if not isinstance(parsed, dict) or not parsed.get("version"):
        raise ProviderError(f"{path}: Chart.yaml has no version")
    return parsed


def _from_archive(path: str) -> bytes:
    try:
        with tarfile.open(path) as archive:
            for member in archive:
                if member.name.count("/") == 1 and member.name.endswith("/Chart.yaml"):
                    file = archive.extractfile(member)
                    return file.read() if file else b""
    except (OSError, tarfile.TarError) as error:
        raise ProviderError(f"{path}: {error}") from error
    raise ProviderError(f"{path}: no Chart.yaml in the archive")

"""Metadata and CRDs of a chart, read from its files; through helm if the chart is not on this machine."""

from __future__ import annotations

import os
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from lab.offline.plugins.helm.cli import Helm, HelmFailed
from lab.offline.plugins.helm.options import chart_argv
from lab.offline.plugins.kubernetes.client import Object
from lab.offline.plugins.kubernetes.kinds import is_crd
from lab.offline.plugins.sdk.resource import ProviderError
from lab.offline.plugins.sdk.values import Properties


class Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """Reads `=` as a text, as Go's YAML does; CRDs of prometheus-operator list it (yaml/pyyaml#89)."""


Loader.add_constructor("tag:yaml.org,2002:value", Loader.construct_scalar)


def metadata(helm: Helm, inputs: Properties) -> dict[str, Any]:
    """The chart's Chart.yaml. Raises ProviderError where there is no such chart."""
    path = _local(inputs)
    if path is None:
        text: str | bytes = _ask(helm, "chart", inputs)
    else:
        text = next((data for name, data in _files(path) if name == "Chart.yaml"), b"")
    try:
        parsed = yaml.load(text, Loader=Loader)
    except yaml.YAMLError as error:
        raise ProviderError(f"{inputs['chart']}: Chart.yaml: {error}") from error
    if not isinstance(parsed, dict) or not parsed.get("version"):
        raise ProviderError(f"{inputs['chart']}: Chart.yaml is missing or has no version")
    return parsed


def crds(helm: Helm, inputs: Properties) -> Iterator[Object]:
    """The CRDs in the `crds` folders of the chart and its subcharts. Raises ProviderError."""
    path = _local(inputs)
    if path is None:
        texts: list[str | bytes] = [_ask(helm, "crds", inputs)]
    else:
        texts = [data for name, data in _files(path) if "crds" in name.split("/")[:-1]]
    for text in texts:
        try:
            yield from (item for item in yaml.load_all(text, Loader=Loader) if item and is_crd(item))
        except yaml.YAMLError as error:
            raise ProviderError(f"{inputs['chart']}: crds: {error}") from error


def _local(inputs: Properties) -> Path | None:
    """The chart's folder or archive; None where the name is one in a repository or registry."""
    name = str(inputs["chart"])
    if (inputs.get("repositoryOpts") or {}).get("repo"):
        return None
    path = Path(name)
    if path.is_file() or (path / "Chart.yaml").is_file():
        return path
    if os.path.isabs(name) or name.startswith("."):
        raise ProviderError(f'path "{name}" not found')
    return None


def _files(path: Path) -> Iterator[tuple[str, bytes]]:
    """Name (relative to the chart) and content of the chart's YAML files outside its templates."""
    try:
        if path.is_dir():
            for file in sorted(path.rglob("*.yaml")):
                name = file.relative_to(path).as_posix()
                if "templates" not in name.split("/"):
                    yield name, file.read_bytes()
            return
        with tarfile.open(path) as archive:
            for member in archive:
                name = member.name.partition("/")[2]
                if member.isfile() and name.endswith(".yaml") and "templates" not in name.split("/"):
                    content = archive.extractfile(member)
                    yield name, content.read() if content else b""
    except (OSError, tarfile.TarError) as error:
        raise ProviderError(f"{path}: {error}") from error


def _ask(helm: Helm, what: str, inputs: Properties) -> str:
    try:
        return helm.run("show", what, *chart_argv(inputs))
    except HelmFailed as error:
        raise ProviderError(str(error)) from error

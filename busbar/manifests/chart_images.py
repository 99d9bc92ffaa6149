"""The container images that a Helm chart on this machine names in its values, and in those of its subcharts.

Values may name images that nothing uses as configured (parts for VMs in the GPU Operator's): a list for a
mirror may have too many, never too few. What only a template names is not seen.
"""

from __future__ import annotations

import io
import re
import tarfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import yaml

from busbar.manifests.operators import merge

_READ = ("Chart.yaml", "values.yaml")
# In values an image is a text with a registry in front and a tag or digest behind.
_NAME = r"[\w-]+\.[\w.-]+(:\d+)?(/[\w.-]+)+"
_REFERENCE = re.compile(rf"{_NAME}(:[\w][\w.-]*|@sha256:[0-9a-f]{{64}})")


@dataclass(frozen=True)
class Chart:
    """Chart.yaml and values.yaml of a chart, and its subcharts by folder."""

    about: Mapping[str, Any]
    values: Mapping[str, Any]
    subcharts: Mapping[str, Chart]


def read(path: Path) -> Chart:
    """The chart in a folder or a .tgz. Raises OSError, and ValueError where it is no chart."""
    if path.is_dir():
        found = [each for each in path.rglob("*") if each.name in _READ or each.suffix == ".tgz"]
        return _chart({str(each.relative_to(path)): each.read_bytes() for each in found})
    return _chart(_unpacked(path.read_bytes()))


def images(chart: Chart, values: Mapping[str, Any]) -> set[str]:
    """REPOSITORY:TAG of every image; `values` are merged over those of the chart, as Helm does it."""
    merged = merge(chart.values, values)
    found: set[str] = set()
    for each in chart.about.get("dependencies") or []:
        key, subchart = each.get("alias") or each["name"], chart.subcharts.get(each["name"])
        if not _holds(merged, each.get("condition")):
            merged.pop(key, None)
        elif subchart:
            found |= images(subchart, merged.pop(key, None) or {})
    return found | {*references(merged, _version(chart))}


def references(values: Any, default_tag: str = "") -> Iterator[str]:
    """The images in values or in a manifest, without those below `enabled: false`.

    As NVIDIA's charts and custom resources have them: `repository`, `image` and `version`; as others do:
    `repository` and `tag`, or one text. Without a tag it is `default_tag`.
    """
    if isinstance(values, Mapping):
        if values.get("enabled") is False:
            return
        if reference := _reference(values, default_tag):
            yield reference
        for key, value in values.items():
            # The chart of the SR-IOV Network Operator has such a key; without a tag it is `latest`.
            if key == "images" and isinstance(value, Mapping):
                yield from (f"{each}:latest" for each in value.values() if re.fullmatch(_NAME, str(each)))
            yield from references(value, default_tag)
    elif isinstance(values, list):
        for value in values:
            yield from references(value, default_tag)
    elif isinstance(values, str) and _REFERENCE.fullmatch(values):
        yield values


def _reference(values: Mapping[str, Any], default_tag: str) -> str | None:
    repository, name = values.get("repository"), values.get("image", values.get("name"))
    if not isinstance(repository, str) or not repository or isinstance(name, Mapping):
        return None
    tag = values.get("version") or values.get("tag") or default_tag
    mark = "@" if str(tag).startswith("sha256:") else ":"
    return f"{repository}/{name}{mark}{tag}" if name else f"{repository}{mark}{tag}"


def _holds(values: Mapping[str, Any], condition: str | None) -> bool:
    """Whether a subchart is installed: the first path of its condition that exists decides (Helm's docs)."""
    for path in (condition or "").split(","):
        found: Any = values
        for key in path.strip().split("."):
            found = found.get(key) if isinstance(found, Mapping) else None
        if isinstance(found, bool):
            return found
    return True


def _version(chart: Chart) -> str:
    return str(chart.about.get("appVersion") or chart.about.get("version") or "")


def _chart(files: Mapping[str, bytes]) -> Chart:
    if "Chart.yaml" not in files:
        raise ValueError("has no Chart.yaml")
    below: dict[str, dict[str, bytes]] = {}
    for name, content in files.items():
        first, _, rest = name.partition("/")
        if first == "charts" and "/" in rest:
            folder, _, inner = rest.partition("/")
            below.setdefault(folder, {})[inner] = content
        elif first == "charts" and rest.endswith(".tgz"):
            below[rest] = _unpacked(content)
    subcharts = [_chart(each) for each in below.values()]
    about, values = (_mapping(files.get(name, b"")) for name in _READ)
    return Chart(about, values, {str(each.about.get("name")): each for each in subcharts})


def _unpacked(data: bytes) -> dict[str, bytes]:
    """The files of an archive that matter, by their path in the chart. Raises ValueError."""
    found: dict[str, bytes] = {}
    try:
        with tarfile.open(fileobj=io.BytesIO(data)) as archive:
            for member in archive:
                path = PurePosixPath(member.name)
                content = archive.extractfile(member) if path.name in _READ or path.suffix == ".tgz" else None
                if content is not None:
                    found["/".join(path.parts[1:])] = content.read()
    except tarfile.TarError as error:
        raise ValueError(f"is not a chart archive: {error}") from None
    return found


def _mapping(text: bytes) -> Mapping[str, Any]:
    try:
        found = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ValueError(f"has a file that is not YAML: {error}") from None
    return found if isinstance(found, Mapping) else {}

"""Everything that a stack downloads: for a mirror, or for a site without internet access."""

from __future__ import annotations

import io
import re
import tarfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path, PurePosixPath
from typing import Any, Literal
from urllib.parse import quote

import yaml

from busbar.config import Chart as ChartConfig
from busbar.config import Cluster, GpuOperator, NetworkOperator, files
from busbar.config.files import resolve
from busbar.hosts import nfs
from busbar.hosts.inventory import Inventory
from busbar.manifests import operators
from busbar.manifests.operators import GPU_OPERATOR, NETWORK_OPERATOR, Operator, merge
from busbar.versions import NEVER_RUN, run_of, split

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


def read_chart(path: Path) -> Chart:
    """The chart in a folder or a .tgz. Raises OSError, and ValueError where it is no chart."""
    if not path.is_dir():
        return _chart(_unpacked(path.read_bytes()))
    found = (each for each in path.rglob("*") if each.name in _READ or each.suffix == ".tgz")
    return _chart({str(each.relative_to(path)): each.read_bytes() for each in found})


def chart_version(config: ChartConfig, project: Path) -> str:
    """The version that is installed: a folder or an archive has one of its own. Raises as `read_chart`."""
    if not config.is_local:
        return config.version
    return str(read_chart(resolve(project, config.chart)).about.get("version"))


def images_of_chart(chart: Chart, values: Mapping[str, Any]) -> set[str]:
    """REPOSITORY:TAG of every image; `values` are merged over those of the chart, as Helm does it."""
    merged = merge(chart.values, values)
    found: set[str] = set()
    for each in chart.about.get("dependencies") or []:
        key, subchart = each.get("alias") or each["name"], chart.subcharts.get(each["name"])
        if not _holds(merged, each.get("condition")):
            merged.pop(key, None)
        elif subchart:
            found |= images_of_chart(subchart, merged.pop(key, None) or {})
    version = chart.about.get("appVersion") or chart.about.get("version") or ""
    return found | {*references(merged, str(version))}


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


def _chart(files: Mapping[str, bytes]) -> Chart:
    if "Chart.yaml" not in files:
        raise ValueError("has no Chart.yaml")
    below: dict[str, dict[str, bytes]] = {}
    for name, content in files.items():
        match name.split("/", 2):
            case ["charts", folder, inner]:
                below.setdefault(folder, {})[inner] = content
            case ["charts", archive] if archive.endswith(".tgz"):
                below[archive] = _unpacked(content)
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


@dataclass(frozen=True)
class Artifact:
    """One thing to fetch. `name`: a URL, what `helm pull` takes, an image with its tag, or a package's name.

    `sha256`: where it is known. `mirrors`: the endpoints that k3s.registries names for an image.
    `run`: where and when this project has run it.
    """

    kind: Literal["binary", "archive", "chart", "image", "package"]
    name: str
    used_by: str
    sha256: str | None = None
    mirrors: Sequence[str] = ()
    run: str = NEVER_RUN


@dataclass
class Needs:
    """The artifacts, and what of them cannot be known from here, each with its fix."""

    artifacts: list[Artifact] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)

    def data(self) -> dict[str, Any]:
        """As plain data, ready for JSON."""
        return {"schema": 1, **asdict(self)}


def needs(cluster: Cluster, project: Path, helm_values: Path) -> Needs:
    """What the hosts, the cluster and this machine fetch for a stack.

    Relative paths start from `project`; `helm_values`: the folder of values. Raises as `read_checksums`.
    """
    found = Needs([*_k3s(cluster, project), *_packages(cluster)])
    images: dict[str, str] = {}
    if cluster.gpu_operator.enabled:
        _add_operator(found, GPU_OPERATOR, cluster.gpu_operator, project, helm_values)
    if cluster.network_operator.enabled:
        _add_operator(found, NETWORK_OPERATOR, cluster.network_operator, project, helm_values)
        policy = operators.render_policy(cluster.network_operator, (), ["unknown"])
        images |= dict.fromkeys(references(policy["spec"]), "NicClusterPolicy")
    if cluster.mpi_operator.enabled:
        images[cluster.mpi_operator.image] = "MPI Operator"
    for pool in cluster.pools:
        if (validation := cluster.validation_of(pool)).enabled:
            images[validation.image] = "NCCL validation"
    found.artifacts += [
        Artifact("image", name, use, run=run_of(*split(name))) for name, use in images.items()
    ]
    found.artifacts = _unique(found.artifacts, cluster)
    return found


def _k3s(cluster: Cluster, project: Path) -> Iterator[Artifact]:
    k3s = cluster.k3s
    listed = files.read_checksums(k3s, project)
    release = f"{k3s.base_url}/{quote(k3s.version, safe='')}"
    for arch, sha256 in files.binary_checksums(k3s, listed).items():
        run = run_of("K3s", k3s.version)
        yield Artifact("binary", f"{release}/{files.BINARIES[arch]}", "K3s", sha256, run=run)
    for image in k3s.images:
        yield Artifact("archive", image.url, " and ".join(image.roles), files.archive_checksum(image, listed))
    if any("k3s-airgap-images" in image.url for image in k3s.images):
        return
    for arch in files.binary_checksums(k3s, listed):
        name = f"k3s-airgap-images-{arch}.tar.zst"
        yield Artifact("archive", f"{release}/{name}", "K3s's own images", listed.get(name))


def _packages(cluster: Cluster) -> Iterator[Artifact]:
    """Those that host/*.sh install, from the apt repositories of the hosts."""
    if cluster.hosts.load_balancers:
        yield Artifact("package", "haproxy", "load balancers", run=run_of("haproxy"))
    if cluster.hosts.virtual_ip:
        yield Artifact("package", "keepalived", "virtual IP", run=run_of("keepalived"))
    if nfs.export_of(Inventory.of(cluster)):
        yield Artifact("package", "nfs-kernel-server", "NFS server")


def _add_operator(
    found: Needs, operator: Operator, config: GpuOperator | NetworkOperator, project: Path, helm_values: Path
) -> None:
    where = f"{operator.config_key}.chart"
    if not config.is_local:
        repository = f" --repo {config.repository_url}" if config.repository_url else ""
        name = f"{config.chart}{repository} --version {config.version}"
        run = run_of(operator.release, config.version)
        found.artifacts.append(Artifact("chart", name, operator.release, run=run))
        found.unknown.append(
            f"the images of {operator.release} {config.version}, which its chart names. "
            f"Fix: helm pull {name}, set {where} to the archive, and run this command again"
        )
        return
    values = operator.values(helm_values, config)
    try:
        images = images_of_chart(read_chart(resolve(project, config.chart)), values)
    except (OSError, ValueError) as error:
        found.unknown.append(f"the images of {operator.release}: {where} {config.chart!r} {error}")
        return
    found.artifacts += [Artifact("image", image, operator.release) for image in sorted(images)]
    driver = values.get("driver")
    if operator is GPU_OPERATOR and isinstance(driver, dict) and driver.get("enabled"):
        found.unknown.append(
            "the tag of the driver's image, to which the GPU Operator adds the system of each node "
            "(-ubuntu24.04). Fix: mirror those of your systems (gpu_operator.values.driver)"
        )


def _unique(artifacts: Sequence[Artifact], cluster: Cluster) -> list[Artifact]:
    """Each artifact once; images have their registry and its mirrors."""
    mirrors = cluster.k3s.registries.get("mirrors") or {}
    made: dict[tuple[str, str], Artifact] = {}
    for each in artifacts:
        if each.kind == "image":
            name = _with_registry(each.name)
            configured = mirrors.get(name.partition("/")[0]) or mirrors.get("*") or {}
            each = replace(each, name=name, mirrors=tuple(configured.get("endpoint") or ()))
        made.setdefault((each.kind, each.name), each)
    return [*made.values()]


def _with_registry(image: str) -> str:
    """`mpioperator/x:1` -> `docker.io/mpioperator/x:1`, as containerd reads it."""
    first, slash, _ = image.partition("/")
    if not slash:
        return f"docker.io/library/{image}"
    return image if "." in first or ":" in first or first == "localhost" else f"docker.io/{image}"

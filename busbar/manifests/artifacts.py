"""Everything that a stack downloads: for a mirror, or for a site without internet access."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal
from urllib.parse import quote

from busbar.config import Cluster, GpuOperator, NetworkOperator, files
from busbar.config.files import resolve
from busbar.hosts import nfs
from busbar.hosts.inventory import Inventory
from busbar.manifests import chart_images, nic_cluster_policy
from busbar.manifests.operators import GPU_OPERATOR, NETWORK_OPERATOR, Operator


@dataclass(frozen=True)
class Artifact:
    """One thing to fetch. `name`: a URL, what `helm pull` takes, an image with its tag, or a package's name.

    `sha256`: where it is known. `mirrors`: the endpoints that k3s.registries names for an image.
    """

    kind: Literal["binary", "archive", "chart", "image", "package"]
    name: str
    used_by: str
    sha256: str | None = None
    mirrors: Sequence[str] = ()


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

    `project`: the folder that relative paths start from. `helm_values`: that of the operators' values.
    Raises ConfigError as `checksums.read_checksums`.
    """
    found = Needs([*_k3s(cluster, project), *_packages(cluster)])
    for operator, config in (
        (GPU_OPERATOR, cluster.gpu_operator),
        (NETWORK_OPERATOR, cluster.network_operator),
    ):
        if config.enabled:
            _add_operator(found, operator, config, project, helm_values)
    images: dict[str, str] = {}
    if cluster.network_operator.enabled:
        policy = nic_cluster_policy.render(cluster.network_operator, (), ["unknown"])
        images |= dict.fromkeys(chart_images.references(policy["spec"]), "NicClusterPolicy")
    if cluster.mpi_operator.enabled:
        images[cluster.mpi_operator.image] = "MPI Operator"
    for pool in cluster.pools:
        if (validation := cluster.validation_of(pool)).enabled:
            images[validation.image] = "NCCL validation"
    found.artifacts += [Artifact("image", image, use) for image, use in images.items()]
    found.artifacts = _unique(found.artifacts, cluster)
    return found


def _k3s(cluster: Cluster, project: Path) -> Iterator[Artifact]:
    k3s = cluster.k3s
    listed = files.read_checksums(k3s, project)
    release = f"{k3s.base_url}/{quote(k3s.version, safe='')}"
    for arch, sha256 in files.binary_checksums(k3s, listed).items():
        yield Artifact("binary", f"{release}/{files.BINARIES[arch]}", "K3s", sha256)
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
        yield Artifact("package", "haproxy", "load balancers")
    if cluster.hosts.virtual_ip:
        yield Artifact("package", "keepalived", "virtual IP")
    if nfs.export_of(Inventory.of(cluster)):
        yield Artifact("package", "nfs-kernel-server", "NFS server")


def _add_operator(
    found: Needs,
    operator: Operator,
    config: GpuOperator | NetworkOperator,
    project: Path,
    helm_values: Path,
) -> None:
    where = f"{operator.config_key}.chart"
    if not config.is_local:
        repository = f" --repo {config.repository_url}" if config.repository_url else ""
        name = f"{config.chart}{repository} --version {config.version}"
        found.artifacts.append(Artifact("chart", name, operator.release))
        found.unknown.append(
            f"the images of {operator.release} {config.version}, which its chart names. "
            f"Fix: helm pull {name}, set {where} to the archive, and run this command again"
        )
        return
    values = operator.values(helm_values, config)
    try:
        images = chart_images.images(chart_images.read(resolve(project, config.chart)), values)
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
    """Each once, images with their registry and its mirrors."""
    mirrors = cluster.k3s.registries.get("mirrors") or {}
    made: dict[str, Artifact] = {}
    for each in artifacts:
        if each.kind == "image":
            name = _with_registry(each.name)
            configured = mirrors.get(name.partition("/")[0]) or mirrors.get("*") or {}
            each = Artifact("image", name, each.used_by, None, tuple(configured.get("endpoint") or ()))
        made.setdefault(f"{each.kind} {each.name}", each)
    return [*made.values()]


def _with_registry(image: str) -> str:
    """`mpioperator/x:1` -> `docker.io/mpioperator/x:1`, as containerd reads it."""
    first, slash, _ = image.partition("/")
    if not slash:
        return f"docker.io/library/{image}"
    return image if "." in first or ":" in first or first == "localhost" else f"docker.io/{image}"

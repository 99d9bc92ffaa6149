"""K3s: the release, where it is downloaded from, and further keys of its config.yaml."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field

from busbar import versions
from busbar.config.kubernetes_values import (
    ArchiveUrl,
    BucketFolder,
    BucketName,
    BucketRegion,
    Component,
    K3sVersion,
    ReleasesUrl,
)
from busbar.config.network_values import Address, Cidr, Endpoint
from busbar.config.values import (
    CronSchedule,
    Int,
    JsonObject,
    NonEmpty,
    Sha256,
    invalid,
)
from busbar.models import ConfigModel


class Checksums(ConfigModel):
    """sha256 of the K3s binary for each architecture."""

    amd64: Sha256 | None = Field(default=None, description="sha256 of the file `k3s`.")
    arm64: Sha256 | None = Field(default=None, description="sha256 of the file `k3s-arm64`.")


class ImageArchive(ConfigModel):
    """An archive of container images for hosts without access to a registry."""

    url: ArchiveUrl = Field(
        description="URL of the archive (.tar, .tar.gz, .tgz or .tar.zst); each host fetches it."
    )
    roles: list[Literal["server", "worker"]] = Field(
        default=["server", "worker"], min_length=1, description="Which hosts get it."
    )
    sha256: Sha256 | None = Field(
        default=None, description="Its checksum; by default looked up in k3s.checksums_file by file name."
    )


def _own_names(images: list[ImageArchive]) -> list[ImageArchive]:
    names = [image.url.rpartition("/")[2] for image in images]
    for name in names:
        if names.count(name) > 1:
            raise invalid(
                f"the file name {name!r} is there twice, and hosts store archives by it", "rename one"
            )
    return images


class Mirror(ConfigModel):
    """A mirror, from which the images of a registry are fetched."""

    endpoint: list[NonEmpty] | None = None
    rewrite: dict[str, str] | None = None


class Tls(ConfigModel):
    """TLS settings of a registry: its CA, our client certificate, and whether it is verified."""

    ca_file: NonEmpty | None = None
    cert_file: NonEmpty | None = None
    key_file: NonEmpty | None = None
    insecure_skip_verify: bool = False


class Registry(ConfigModel):
    """Settings of the connection to a registry. `busbar.config.secrets` refuses `auth`."""

    auth: Any = None
    tls: Tls | None = None


class Registries(ConfigModel):
    """registries.yaml as K3s reads it (rancher/wharfie pkg/registries)."""

    mirrors: dict[str, Mirror | None] | None = None
    configs: dict[str, Registry | None] | None = None
    auths: Any = None


class S3(ConfigModel):
    """A bucket for etcd snapshots. The keys are the secrets busbar:s3AccessKey and busbar:s3SecretKey."""

    endpoint: Endpoint = Field(default="s3.amazonaws.com", description="HOST or HOST:PORT of the S3 service.")
    bucket: BucketName = Field(description="Name of the bucket.")
    region: BucketRegion = Field(default="us-east-1", description="Region of the bucket.")
    folder: BucketFolder | None = Field(default=None, description="Folder inside the bucket.")


class Snapshots(ConfigModel):
    """Scheduled snapshots of etcd."""

    schedule: CronSchedule = Field(default="0 */12 * * *", description="Cron schedule with five fields.")
    retention: Annotated[Int, Field(ge=1)] = Field(
        default=5, description="Number of snapshots that each server keeps."
    )
    s3: S3 | None = Field(default=None, description="Also copy each snapshot to a bucket.")


Rotation = Annotated[Int, Field(ge=0)]


class Rotate(ConfigModel):
    """Rotations in a running cluster: raise a number by one, and run an update (docs/hosts.md)."""

    certificates: Rotation = Field(
        default=0, description="Certificates of all servers and workers; the authorities (CA) stay."
    )
    server_token: Rotation = Field(
        default=0,
        description="Token that servers join with. Earlier snapshots of etcd need the earlier token.",
    )
    agent_token: Rotation = Field(default=0, description="Token that workers join with.")


def _as_texts(value: Any) -> Any:
    """VALUE without empty parts. All values there are texts; `pulumi config set` may have stored a number."""
    if isinstance(value, dict):
        found = {key: _as_texts(each) for key, each in value.items()}
        return {key: each for key, each in found.items() if each is not None and each != []}
    if isinstance(value, list):
        return [_as_texts(each) for each in value]
    if isinstance(value, str):
        return value.strip()
    return value if value is None or isinstance(value, bool) else str(value)


class Authentication(ConfigModel):
    """Users of the Kubernetes API. Their permissions come from the site's ClusterRoleBindings (RBAC)."""

    jwt: list[Annotated[JsonObject, AfterValidator(_as_texts)]] = Field(
        default=[],
        description="Issuers of tokens (OIDC): JWTAuthenticators of apiserver.config.k8s.io, passed on as "
        "given. Servers load them without a restart; those that the API server refuses fail the update.",
    )


class K3s(ConfigModel):
    """The Kubernetes distribution on servers and workers."""

    version: K3sVersion = Field(default=versions.K3S, description="Release of K3s, such as v1.35.6+k3s1.")
    base_url: ReleasesUrl = Field(
        default=versions.K3S_BASE_URL,
        description="Base URL of the releases; a mirror keeps the layout <base>/<version>/k3s.",
    )
    sha256: Checksums | None = Field(
        default=None,
        description="Checksums of the binary, for a release whose checksum busbar does not contain.",
    )
    checksums_file: NonEmpty | None = Field(
        default=None,
        description="sha256sum file with the binary and the image archives, relative to the project folder.",
    )
    cluster_cidr: Cidr = Field(
        default="10.44.0.0/14",
        description="Network of the pods: a /24 per server and worker. Cannot be changed later.",
    )
    service_cidr: Cidr = Field(default="10.43.0.0/16", description="Network of the services.")
    flannel_backend: Literal["vxlan", "host-gw", "wireguard-native", "none"] = Field(
        default="vxlan", description="How pods of different hosts reach each other."
    )
    tls_san: list[Address] = Field(
        default=[],
        description="Further names and addresses of the API in its certificate, such as a name in DNS. "
        "Those of the load balancers are in it.",
    )
    disable: list[Component] = Field(
        default=["traefik", "servicelb"], description="Packaged components of K3s that are not installed."
    )
    images: Annotated[list[ImageArchive], AfterValidator(_own_names)] = Field(
        default=[], description="Image archives for hosts without access to a registry (air gap)."
    )
    server_args: JsonObject = Field(
        default={}, description="Additional keys of config.yaml on the servers; lists are appended."
    )
    agent_args: JsonObject = Field(
        default={}, description="Additional keys of config.yaml on the workers; lists are appended."
    )
    registries: JsonObject = Field(
        default={},
        description="registries.yaml: mirrors and TLS; logins are the secret busbar:registryCredentials.",
    )
    authentication: Authentication = Field(
        default=Authentication(), description="Users of the Kubernetes API from issuers of the site (OIDC)."
    )
    snapshots: Snapshots = Field(default=Snapshots(), description="Snapshots of etcd.")
    rotate: Rotate = Field(
        default=Rotate(), description="Rotation of certificates, keys and tokens, by numbers that only rise."
    )


def arguments_of(config: Mapping[str, Any], key: str) -> list[str]:
    """The values of an argument list such as kubelet-arg, also if it is a single value."""
    values = [config[name] for name in (key, f"{key}+") if config.get(name) is not None]
    return [str(each) for value in values for each in (value if isinstance(value, list) else [value])]


def parsed(argument: str) -> tuple[str, str]:
    """Name and value of an argument of such a list."""
    name, _, value = argument.removeprefix("--").partition("=")
    return name, value

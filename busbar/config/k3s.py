"""K3s: which release, where it comes from, and what goes into its config.yaml."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from busbar import versions
from busbar.config.values import Cidr, Int, Model, NonEmpty, Sha256, Url


class Checksums(Model):
    """sha256 of the K3s binary for each architecture."""

    amd64: Sha256 | None = Field(default=None, description="sha256 of the file `k3s`.")
    arm64: Sha256 | None = Field(default=None, description="sha256 of the file `k3s-arm64`.")


class Image(Model):
    """An archive of container images for hosts that cannot pull."""

    url: Url = Field(description="Where the hosts fetch the archive (.tar, .tar.gz or .tar.zst) from.")
    roles: list[Literal["server", "worker"]] = Field(
        default=["server", "worker"], min_length=1, description="Which hosts get it."
    )
    sha256: Sha256 | None = Field(
        default=None, description="Its checksum; by default looked up in k3s.checksums_file by file name."
    )


class S3(Model):
    """A bucket for etcd snapshots. The keys are the secrets busbar:s3AccessKey and busbar:s3SecretKey."""

    endpoint: NonEmpty = Field(default="s3.amazonaws.com", description="Host (and port) of the S3 service.")
    bucket: NonEmpty = Field(description="Name of the bucket.")
    region: NonEmpty = Field(default="us-east-1", description="Region of the bucket.")
    folder: NonEmpty | None = Field(default=None, description="Folder inside the bucket.")


class Snapshots(Model):
    """Scheduled snapshots of etcd."""

    schedule: Annotated[str, Field(pattern=r"^\S+( \S+){4}$|^@\w+( \w+)?$")] = Field(
        default="0 */12 * * *", description="When, as a cron line of five fields."
    )
    retention: Annotated[Int, Field(ge=1)] = Field(
        default=5, description="How many snapshots each server keeps."
    )
    s3: S3 | None = Field(default=None, description="Also copy each snapshot to a bucket.")


class K3s(Model):
    """The Kubernetes distribution on servers and workers."""

    version: Annotated[str, Field(pattern=r"^v\d+\.\d+\.\d+(-\w+)?\+k3s\d+$")] = Field(
        default=versions.K3S, description="Release of K3s, such as v1.35.6+k3s1."
    )
    base_url: Url = Field(
        default=versions.K3S_BASE_URL,
        description="Where the releases lie; a mirror keeps the layout <base>/<version>/k3s.",
    )
    sha256: Checksums | None = Field(
        default=None,
        description="Checksums of the binary, for a release whose checksum busbar does not carry.",
    )
    checksums_file: NonEmpty | None = Field(
        default=None,
        description="sha256sum file with the binary and the image archives, relative to the project folder.",
    )
    cluster_cidr: Cidr = Field(default="10.42.0.0/16", description="Network of the pods.")
    service_cidr: Cidr = Field(default="10.43.0.0/16", description="Network of the services.")
    flannel_backend: Literal["vxlan", "host-gw", "wireguard-native", "none"] = Field(
        default="vxlan", description="How pods of different hosts reach each other."
    )
    disable: list[NonEmpty] = Field(
        default=["traefik", "servicelb"], description="Packaged parts of K3s to leave out."
    )
    images: list[Image] = Field(
        default=[], description="Image archives to place on the hosts, for an air gap."
    )
    server_args: dict[str, Any] = Field(default={}, description="Further keys of the servers' config.yaml.")
    agent_args: dict[str, Any] = Field(default={}, description="Further keys of the workers' config.yaml.")
    registries: dict[str, Any] = Field(
        default={},
        description="registries.yaml: mirrors and TLS; logins are the secret busbar:registryCredentials.",
    )
    snapshots: Snapshots = Field(default=Snapshots(), description="Snapshots of etcd.")


__all__ = ["S3", "Checksums", "Image", "K3s", "Snapshots"]

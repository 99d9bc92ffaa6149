"""Value types of Kubernetes, Helm, container images and buckets."""

from __future__ import annotations

import re
from typing import Annotated
from urllib.parse import urlsplit

from pydantic import AfterValidator, BeforeValidator, Field

from busbar import versions
from busbar.config.errors import did_you_mean
from busbar.config.values import (
    TEXT_OR_NUMBER,
    Matching,
    NonEmpty,
    Offered,
    Url,
    bool_as_text,
    finite,
    invalid,
)

_DNS_LABEL = r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?"
_DNS_SUBDOMAIN = rf"{_DNS_LABEL}(\.{_DNS_LABEL})*"
_LABEL_NAME = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")

# The grammar of distribution/reference: [host[:port]/]path[:tag][@digest].
_IMAGE_HOST = r"([A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?|\[[0-9a-fA-F:]+\])(:[0-9]{1,5})?"
_IMAGE_PART = r"[a-z0-9]+((\.|_|__|-+)[a-z0-9]+)*"
_IMAGE_FOLDER = rf"({_IMAGE_HOST}/)?{_IMAGE_PART}(/{_IMAGE_PART})*"
_IMAGE_TAG = r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}"
_IMAGE_DIGEST = r"@sha256:[0-9a-f]{64}"

_MAX_SUBDOMAIN = 253


def _label_key(value: str) -> str:
    prefix, slash, name = value.rpartition("/")
    prefix_is_valid = not slash or (len(prefix) <= _MAX_SUBDOMAIN and re.fullmatch(_DNS_SUBDOMAIN, prefix))
    if not (_LABEL_NAME.fullmatch(name) and prefix_is_valid):
        raise invalid(
            "is not a Kubernetes label key: [dns.domain/]name, the name up to 63 of A-Z a-z 0-9 - _ ."
        )
    return value


def _label_value(value: str) -> str:
    if value and not _LABEL_NAME.fullmatch(value):
        raise invalid(
            "is not a Kubernetes label value: up to 63 of A-Z a-z 0-9 - _ ., alphanumeric at the ends"
        )
    return value


def _resource_name(value: str) -> str:
    """An extended resource: Kubernetes wants a domain that is not its own."""
    prefix, slash, _ = _label_key(value).rpartition("/")
    if not slash or prefix == "kubernetes.io" or prefix.endswith(".kubernetes.io"):
        raise invalid(
            "is not an extended resource: DOMAIN/NAME such as nvidia.com/hostdev, not kubernetes.io"
        )
    return value


# The namespaces of busbar.manifests.operators.
OPERATOR_NAMESPACES = ("gpu-operator", "mpi-operator", "nvidia-network-operator")


STATE_FIRST = (
    "If the stack has used it until now, first run `pulumi state delete` for its Namespace, which then stays"
)
"""Without this step, a change of the namespace would delete the former one with its owner's objects."""


def own_namespace(instead: str, *operators: str) -> AfterValidator:
    """A validator of the namespace that a stack makes itself; `operators`: more namespaces of operators."""

    def check(name: str) -> str:
        if name in (*OPERATOR_NAMESPACES, *operators):
            owner = "an operator"
        elif name == "default" or name.startswith("kube-"):
            owner = "Kubernetes"
        else:
            return name
        raise invalid(
            f"belongs to {owner}, and this one is deleted with the stack", f"{instead}. {STATE_FIRST}"
        )

    return AfterValidator(check)


def is_floating(image: str) -> bool:
    """Return whether a registry may give another image of this name tomorrow."""
    name, digest = image.rpartition("/")[2], "@sha256:" in image
    return not digest and name.partition(":")[2] in ("", "latest")


def is_local_chart(chart: str) -> bool:
    """Return whether a chart is a path on the machine that runs Pulumi."""
    return chart.startswith((".", "/", "~")) or chart.endswith(".tgz")


def repository_of(chart: str, repository: str | None) -> str | None:
    """The repository of a chart; None if `chart` is a path or a URL itself."""
    return None if is_local_chart(chart) or chart.startswith("oci://") else repository


def _chart(value: str) -> str:
    if is_local_chart(value) or re.fullmatch(r"(oci://)?[A-Za-z0-9][A-Za-z0-9._:/-]*", value):
        return value
    raise invalid("is not a chart: a name such as gpu-operator, a local path, or an oci:// URL without login")


# kubernetes/kubernetes staging/src/k8s.io/kubelet/pkg/apis/well_known_labels.go
_LABELS_OF_KUBELET = re.compile(
    r"(beta\.)?kubernetes\.io/(os|arch)|kubernetes\.io/hostname|beta\.kubernetes\.io/instance-type"
    r"|(topology|failure-domain\.beta)\.kubernetes\.io/(zone|region)"
    r"|(.+\.)?(kubelet|node)\.kubernetes\.io/.*"
)
_LABELS_OF_KUBERNETES = re.compile(r"(.+\.)?(kubernetes|k8s)\.io/.*")


def _kubelet_accepts(key: str) -> str:
    if _LABELS_OF_KUBERNETES.fullmatch(key) and not _LABELS_OF_KUBELET.fullmatch(key):
        raise invalid(
            "is a label with which the kubelet does not start: a node may not set it itself",
            "use a domain of your own, or set it with kubectl afterwards",
        )
    return key


RELEASE = r"v[0-9]+\.[0-9]+\.[0-9]+(-[0-9A-Za-z]+)?\+k3s[0-9]+"
PACKAGED = ("coredns", "servicelb", "traefik", "local-storage", "metrics-server", "runtimes")
"""Components that K3s brings, and that can be disabled (k3s-io/k3s pkg/cli/cmds/server.go, `--disable`)."""


# A name at least this similar to a component is misspelt; others may be manifests of the site (our-storage).
_MISSPELT = 0.8


def _opens_readyz(version: str) -> str:
    if any(versions.contains(each, version) for each in versions.K3S_WITHOUT_READYZ):
        raise invalid(
            "does not read the AuthenticationConfiguration that the health check of /readyz needs",
            "use v1.31.9, v1.32.5, v1.33.1 or later",
        )
    return version


def _folder_of_releases(url: str) -> str:
    """Refuse the URL of one release: busbar appends the version and the file name."""
    release = re.search(RELEASE.replace(r"\+", r"(?:\+|%2B|-)"), url, re.IGNORECASE)
    at_github = urlsplit(url).hostname == "github.com" and not url.endswith("/releases/download")
    if not (release or at_github):
        return url
    what = f"contains the version {release[0]}" if release else "is not the folder of the releases"
    folder = url[: release.start()].rstrip("/") if release and not at_github else versions.K3S_BASE_URL
    raise invalid(f"{what}; busbar downloads <base_url>/<k3s.version>/k3s", folder)


def _not_misspelt(component: str) -> str:
    """Refuse a misspelt component, because K3s silently installs every one that is not in the list."""
    if component not in PACKAGED and (hint := did_you_mean(component, PACKAGED, cutoff=_MISSPELT)):
        raise invalid(f"is not a component of K3s{hint}")
    return component


def _archive(url: str) -> str:
    if not url.endswith((".tar", ".tar.gz", ".tgz", ".tar.zst")):
        raise invalid("is not a .tar, .tar.gz, .tgz or .tar.zst archive")
    return url


DnsLabel = Annotated[
    str,
    Matching(
        _DNS_LABEL,
        "a DNS label: lower-case letters, digits and '-', 1 to 63 characters, no '-' at the ends",
    ),
]
DnsSubdomain = Annotated[
    str,
    Matching(_DNS_SUBDOMAIN, "the name of a Kubernetes object: lower-case letters, digits, '-' and '.'"),
]
RuntimeClass = Annotated[str, Matching(rf"({_DNS_SUBDOMAIN})?", "the name of a RuntimeClass")]
Quantity = Annotated[
    str, Matching(r"[0-9]+(\.[0-9]+)?(m|k|[KMGTPE]i?)?", "a Kubernetes quantity such as 64Gi or 500m")
]
_UNITS = {"": 1.0, "m": 1e-3, "k": 1e3} | {
    f"{unit}{binary}": float((1024 if binary else 1000) ** power)
    for power, unit in enumerate("KMGTPE", 1)
    for binary in ("", "i")
}
_LEAST_MEMORY = 1 << 20


def _memory(value: str) -> str:
    number = value.rstrip("mkKMGTPEi")
    if float(number) * _UNITS[value.removeprefix(number)] < _LEAST_MEMORY:
        raise invalid("is less than a MiB: a number alone is bytes, and m thousandths", f"{number}Gi")
    return value


Memory = Annotated[Quantity, AfterValidator(_memory)]
LabelKey = Annotated[str, AfterValidator(_label_key)]
NodeLabelKey = Annotated[LabelKey, AfterValidator(_kubelet_accepts)]
LabelValue = Annotated[
    str, BeforeValidator(bool_as_text), BeforeValidator(finite), AfterValidator(_label_value), TEXT_OR_NUMBER
]
ResourceName = Annotated[str, AfterValidator(_resource_name)]
ChartName = Annotated[NonEmpty, AfterValidator(_chart)]
ChartVersion = Annotated[
    str,
    Matching(
        r"v?[0-9]+\.[0-9]+\.[0-9]+(-[0-9A-Za-z.-]+)?",
        "a chart version: MAJOR.MINOR.PATCH such as 26.7.0, in quotes where YAML would read a number",
    ),
]
Image = Annotated[
    str,
    Matching(
        rf"{_IMAGE_FOLDER}(:{_IMAGE_TAG})?({_IMAGE_DIGEST})?",
        "a container image: [REGISTRY/]NAME[:TAG][@sha256:DIGEST]",
    ),
]
ImageFolder = Annotated[str, Matching(_IMAGE_FOLDER, "a registry folder such as nvcr.io/nvidia/mellanox")]
ImageTag = Annotated[str, Matching(_IMAGE_TAG, "an image tag: up to 128 of A-Z a-z 0-9 _ . -")]
BucketName = Annotated[str, Matching(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]", "the name of a bucket")]
BucketRegion = Annotated[str, Matching(r"[A-Za-z0-9-]+", "a region such as eu-central-1")]
BucketFolder = Annotated[
    str, Field(max_length=512), Matching(r"[A-Za-z0-9!_.*'()-][A-Za-z0-9!_.*'()/-]*", "a folder of a bucket")
]
K3sVersion = Annotated[
    str,
    Matching(RELEASE, "a K3s release such as v1.35.6+k3s1"),
    AfterValidator(_opens_readyz),
    Offered(lambda: (versions.K3S,)),
]
Component = Annotated[DnsLabel, AfterValidator(_not_misspelt), Offered(lambda: PACKAGED)]
ReleasesUrl = Annotated[Url, AfterValidator(_folder_of_releases)]
ArchiveUrl = Annotated[Url, AfterValidator(_archive)]

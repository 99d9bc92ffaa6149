"""Value types of the configuration: texts, numbers, sizes, addresses, names of Kubernetes and of K3s.

Every error text continues the sentence `<path>: <value> ...`, which `busbar.config.findings` begins.
"""

from __future__ import annotations

import ipaddress
import posixpath
import re
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field, GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic.json_schema import JsonSchemaValue, WithJsonSchema
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

from busbar import versions
from busbar.names import VALIDATION_NAMESPACE

_SIZE = re.compile(r"([0-9]+)\s*(?:([KMGT])(?:iB?)?|B)?", re.IGNORECASE)
_UNIT_BYTES = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")


def invalid(message: str, fix: str = "") -> PydanticCustomError:
    """An error whose text follows the value; braces in it are literal."""
    template = "{text}. Fix: {fix}" if fix else "{text}"
    return PydanticCustomError("busbar", template, {"text": message, "fix": fix})


@dataclass(frozen=True)
class Matching:
    """Annotates a text that must match `pattern` as a whole; `expected` completes "is not ..."."""

    pattern: str
    expected: str

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_after_validator_function(self._check, handler(source))

    def __get_pydantic_json_schema__(
        self, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        return {**handler(schema), "pattern": f"^(?:{self.pattern})$"}

    def _check(self, value: str) -> str:
        if re.fullmatch(self.pattern, value):
            return value
        raise invalid(f"is not {self.expected}")


def _not_bool(value: Any) -> Any:
    # pydantic would accept `gpus: true` as 1.
    if isinstance(value, bool):
        raise invalid("is true or false where a number is expected")
    return value


def bool_as_text(value: Any) -> Any:
    # `labels: {gpu: true}` means the text "true"; Pulumi stores it as a boolean.
    return str(value).lower() if isinstance(value, bool) else value


def _no_control_characters(value: str) -> str:
    if _CONTROL.search(value):
        raise invalid("contains a control character (line break, tab, NUL)")
    return value


def _size(value: Any) -> Any:
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if not isinstance(value, str):
        return value
    if not (found := _SIZE.fullmatch(value.strip())):
        raise invalid(
            "is not a size: a number of bytes, or one with K, M or G, such as 512M; binary, so there is no MB"
        )
    return int(found[1]) * _UNIT_BYTES[(found[2] or "").upper()]


# The characters of RFC 3986. `'` and `;` are legal there; hosts receive URLs shell-quoted.
_URL = re.compile(r"https?://[^\s/]+(/[A-Za-z0-9._~:/?#\[\]@!$&'()*+,;=%-]*)?")


def _url(value: str) -> str:
    if not _URL.fullmatch(value) or not re.fullmatch(r"[A-Za-z0-9.:@\[\]_%-]+", value.split("/")[2]):
        raise invalid("is not an http(s) URL")
    if "@" in value.split("/")[2]:
        raise invalid("contains a login, which would appear in logs and state; use a mirror without login")
    return value.rstrip("/")


# Field, its bounds, and the names that may stand for numbers (robfig/cron spec.go, which K3s uses).
_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_CRON_FIELDS = (
    ("minute", 0, 59, ()),
    ("hour", 0, 23, ()),
    ("day of the month", 1, 31, ()),
    ("month", 1, 12, _MONTHS),
    ("day of the week", 0, 6, ("sun", "mon", "tue", "wed", "thu", "fri", "sat")),
)
_CRON_PART = re.compile(r"(?:[*?]|(?P<first>\w+)(?:-(?P<last>\w+))?)(?:/(?P<step>[0-9]+))?")


def _cron(value: str) -> str:
    if value.startswith("@"):
        return value
    for text, (name, low, high, names) in zip(value.split(" "), _CRON_FIELDS, strict=True):
        for part in text.split(","):
            found = _CRON_PART.fullmatch(part)
            given = [found[key] for key in ("first", "last") if found[key]] if found else [part]
            numbers = [
                str(names.index(each.lower()) + low) if each.lower() in names else each for each in given
            ]
            in_bounds = all(each.isdecimal() and low <= int(each) <= high for each in numbers)
            in_order = [*map(int, numbers)] == sorted(map(int, numbers)) if in_bounds else False
            if not in_order or (found and found["step"] and int(found["step"]) == 0):
                raise invalid(f"has {part!r} as the {name}, expected {low} to {high}")
    return value


# Folders of the system or of other software, with all below them, and folders that others share.
_NOT_EXPORTED = re.compile(
    r"/(bin|boot|dev|etc|lib|lib32|lib64|proc|root|run|sbin|sys|tmp|usr|var/(cache|lib|log|mail|spool|tmp))(/.*)?"
    r"|/|/(export|home|media|mnt|opt|srv|var)"
)


def _exported_folder(value: str) -> str:
    if posixpath.normpath(value) != value:
        raise invalid("is not a normalised path", posixpath.normpath(value))
    if _NOT_EXPORTED.fullmatch(value):
        raise invalid("is a folder of the system, or shared with others", "use one such as /srv/busbar")
    return value


TEXT_OR_NUMBER = WithJsonSchema({"type": ["string", "number", "boolean"]})

Int = Annotated[int, BeforeValidator(_not_bool)]
Float = Annotated[float, BeforeValidator(_not_bool), Field(allow_inf_nan=False)]
Seconds = Annotated[Int, Field(ge=1)]
Text = Annotated[str, BeforeValidator(bool_as_text), AfterValidator(_no_control_characters), TEXT_OR_NUMBER]
"""A text that may be written as a number or a boolean: a label's value, an environment variable."""
NonEmpty = Annotated[str, Field(min_length=1), AfterValidator(_no_control_characters)]
Bytes = Annotated[
    int,
    BeforeValidator(_size),
    BeforeValidator(_not_bool),
    Field(ge=1),
    WithJsonSchema({"type": ["integer", "string"]}),
]
"""A number of bytes; `512M` is 512 x 2^20, as nccl-tests reads it, and `512MB` is refused."""
Sha256 = Annotated[
    str, Matching(r"[0-9a-fA-F]{64}", "a sha256 checksum: 64 hexadecimal digits"), AfterValidator(str.lower)
]
Url = Annotated[str, AfterValidator(_url)]
JsonObject = dict[str, Any]
"""Free keys that are passed on (Helm values, config.yaml). What has no form in JSON is refused in a stack
file (busbar.config.engine_yaml)."""
StackName = Annotated[
    str,
    Matching(
        r"[A-Za-z0-9_.-]+/[A-Za-z0-9_.-]+/[A-Za-z0-9_.-]+",
        "a stack as ORGANIZATION/PROJECT/STACK, such as organization/busbar/dev",
    ),
]
"""Another stack, whose outputs are read."""
EnvName = Annotated[str, Matching(r"[A-Za-z_][A-Za-z0-9_]*", "the name of an environment variable")]
CronSchedule = Annotated[
    str,
    Matching(
        r"[0-9A-Za-z*/,?-]+( [0-9A-Za-z*/,?-]+){4}|@[a-z]+( [0-9a-z]+)?",
        "a cron schedule of five fields, such as '0 */12 * * *'",
    ),
    AfterValidator(_cron),
]
ExportedFolder = Annotated[
    str,
    AfterValidator(_exported_folder),
    Matching(r"/|(/[A-Za-z0-9._-]+)+", "an absolute path without spaces, such as /srv/busbar"),
]

_HOST_LABEL = re.compile(r"[A-Za-z0-9_]([-A-Za-z0-9_]{0,61}[A-Za-z0-9])?")

# The name of the algorithm and 32 bytes, each with its length (RFC 8709), in base64.
_HOST_KEY = re.compile(r"ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAI[A-Za-z0-9+/]{43}")
_BROADCAST = ipaddress.ip_address("255.255.255.255")


def ip_of(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """The IP address in a text; None for a name."""
    try:
        return ipaddress.ip_address(text)
    except ValueError:
        return None


def _address(value: str) -> str:
    if ip := ip_of(value):
        if ip.is_unspecified or ip.is_multicast or ip == _BROADCAST:
            raise invalid("is not the address of one machine")
        return str(ip)
    labels = value.split(".")
    if len(value) <= 253 and all(map(_HOST_LABEL.fullmatch, labels)) and not labels[-1].isdigit():
        return value.lower()
    raise invalid("is not an IPv4/IPv6 address or a host name, without scheme, login, port and brackets")


def _ip(value: str) -> str:
    if ip := ip_of(value):
        return str(ip)
    raise invalid("is not an IPv4 or IPv6 address")


def _cidr(value: str) -> str:
    try:
        network = ipaddress.ip_network(value, strict=False)
    except ValueError:
        if "," in value:
            raise invalid("is more than one network: dual stack is not supported; give one") from None
        raise invalid("is not a network in CIDR form, such as 10.42.0.0/16") from None
    if ipaddress.ip_interface(value).ip != network.network_address:
        raise invalid(f"has host bits set; did you mean {network}?")
    return str(network)


def _host_key(value: str) -> str:
    """Check an `ssh-ed25519 AAAA...` line and return it without its comment.

    golang.org/x/crypto/ssh, which pulumi-command uses, cannot pin an `ssh-rsa` line against a current sshd
    ("no common algorithm"). Every supported distribution has an ed25519 key.
    """
    key = " ".join(value.split()[:2])
    if not _HOST_KEY.fullmatch(key):
        raise invalid(
            "is not an ed25519 host key: expected `ssh-ed25519` and 68 characters of base64, without a host "
            "name in front (ssh-keyscan -t ed25519 HOST)"
        )
    return key


# Without a port curl takes 1080, Go 80 or 443.
_PROXY_URL = re.compile(r"https?://([A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\]):[0-9]{1,5}/?")
_UNPROXIED = re.compile(r"\.?[A-Za-z0-9_]([A-Za-z0-9_.-]*[A-Za-z0-9])?(:[0-9]{1,5})?")


def _proxy_url(value: str) -> str:
    if "@" in value:
        raise invalid(
            "contains a login, which every user of a host could read",
            "have the proxy admit the hosts by address, or name one without login that forwards to it",
        )
    if not _PROXY_URL.fullmatch(value):
        raise invalid("is not the URL of a proxy with its port, such as http://proxy.example.com:3128")
    return value.removesuffix("/")


def _unproxied(value: str) -> str:
    """Validate an entry of NO_PROXY for Go, curl and apt: a comma separates entries, and `*` matches all."""
    try:
        network = ipaddress.ip_network(value, strict=False)
    except ValueError:
        if not _UNPROXIED.fullmatch(value):
            raise invalid(
                "is not a name, a domain such as .example.com, an address or a network such as 10.0.0.0/16"
            ) from None
        return value.lower()
    return str(network) if "/" in value else str(network.network_address)


Address = Annotated[str, AfterValidator(_address)]
IpAddress = Annotated[str, AfterValidator(_ip)]
Cidr = Annotated[str, AfterValidator(_cidr)]
HostKey = Annotated[str, AfterValidator(_host_key), Field(json_schema_extra={"pattern": "^ssh-ed25519 "})]
Port = Annotated[Int, Field(ge=1, le=65535)]
UserName = Annotated[
    str, Matching(r"[A-Za-z0-9_][A-Za-z0-9_.@\\-]{0,63}\$?", "a login name: letters, digits and _ . @ \\ -")
]
"""A login; `DOMAIN\\user` and `user@domain` are allowed, a leading `-` and shell characters are not."""
InterfaceName = Annotated[
    str,
    Matching(
        r"[A-Za-z0-9_][A-Za-z0-9_.:@-]{0,14}",
        "the name of a network interface, such as eth0, up to 15 characters",
    ),
]
Endpoint = Annotated[
    str,
    Matching(
        r"[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?(:[0-9]{1,5})?", "HOST or HOST:PORT (without https://)"
    ),
]
HcaName = Annotated[
    str, Matching(r"[A-Za-z0-9_.-]+(:[0-9]+)?", "the name of an HCA such as mlx5_0 or mlx5_0:2")
]
HcaPattern = Annotated[
    str, Matching(r"[A-Za-z0-9_.*?!\[\]-]+", "the name of an HCA such as mlx5_4, or a shell pattern of one")
]
ProxyUrl = Annotated[str, AfterValidator(_proxy_url)]
Unproxied = Annotated[str, AfterValidator(_unproxied)]

_DNS_LABEL = r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?"
_DNS_SUBDOMAIN = rf"{_DNS_LABEL}(\.{_DNS_LABEL})*"
_LABEL_NAME = r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?"

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
    if not (re.fullmatch(_LABEL_NAME, name) and prefix_is_valid):
        raise invalid(
            "is not a Kubernetes label key: [dns.domain/]name, the name up to 63 of A-Z a-z 0-9 - _ ."
        )
    return value


def _resource_name(value: str) -> str:
    """An extended resource: Kubernetes wants a domain that is not its own."""
    prefix, slash, _ = _label_key(value).rpartition("/")
    if not slash or prefix == "kubernetes.io" or prefix.endswith(".kubernetes.io"):
        raise invalid("is not an extended resource: DOMAIN/NAME like nvidia.com/hostdev, not kubernetes.io")
    return value


# The namespaces of busbar.manifests.operators.
OPERATOR_NAMESPACES = ("gpu-operator", "mpi-operator", "nvidia-network-operator")


SshKey = Annotated[
    str,
    Matching(r"(ssh|ecdsa|sk)-[a-z0-9@.-]+ [A-Za-z0-9+/=]+( [^\x00-\x1f\x7f]*)?", "a public key of OpenSSH"),
]
STATE_FIRST = "To keep one that it has used, first `pulumi state delete --stack STACK` of its Namespace"
"""Without this step, a change of the namespace would delete the former one with its owner's objects."""


def own_namespace(instead: str, *operators: str) -> AfterValidator:
    """A validator of the namespace that a stack makes itself; `operators`: more namespaces of operators."""

    def check(name: str) -> str:
        if name in (*OPERATOR_NAMESPACES, *operators):
            owner = "an operator"
        elif name == VALIDATION_NAMESPACE:
            owner = "the cluster's own measurements"
        elif name == "default" or name.startswith("kube-"):
            owner = "Kubernetes"
        else:
            return name
        raise invalid(f"belongs to {owner}, and this is deleted with the stack", f"{instead}. {STATE_FIRST}")

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


def _opens_readyz(version: str) -> str:
    if any(versions.contains(each, version) for each in versions.K3S_WITHOUT_READYZ):
        raise invalid(
            "does not read the AuthenticationConfiguration that the health check of /readyz needs",
            "use v1.31.9, v1.32.5, v1.33.1 or later",
        )
    return version


DnsLabel = Annotated[
    str,
    Matching(
        _DNS_LABEL, "a DNS label: lower-case letters, digits and '-', 1 to 63 characters, no '-' at the ends"
    ),
]
DnsSubdomain = Annotated[
    str, Matching(_DNS_SUBDOMAIN, "the name of a Kubernetes object: lower-case letters, digits, '-' and '.'")
]
RuntimeClass = Annotated[str, Matching(rf"({_DNS_SUBDOMAIN})?", "the name of a RuntimeClass")]
Quantity = Annotated[
    str, Matching(r"[0-9]+(\.[0-9]+)?(m|k|[KMGTPE]i?)?", "a Kubernetes quantity such as 64Gi or 500m")
]
LabelKey = Annotated[str, AfterValidator(_label_key)]
NodeLabelKey = Annotated[LabelKey, AfterValidator(_kubelet_accepts)]
LabelValue = Annotated[
    str,
    BeforeValidator(bool_as_text),
    Matching(
        rf"({_LABEL_NAME})?",
        "a Kubernetes label value: up to 63 of A-Z a-z 0-9 - _ ., alphanumeric at the ends",
    ),
    TEXT_OR_NUMBER,
]
ResourceName = Annotated[str, AfterValidator(_resource_name)]
ChartName = Annotated[
    NonEmpty,
    Matching(
        r"(oci://)?[A-Za-z0-9][A-Za-z0-9._:/-]*|[./~].*|.+\.tgz",
        "a chart: a name such as gpu-operator, a local path, or an oci:// URL without login",
    ),
]
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
    str, Matching(RELEASE, "a K3s release such as v1.35.6+k3s1"), AfterValidator(_opens_readyz)
]
ArchiveUrl = Annotated[
    Url, Matching(r".*\.(tar|tar\.gz|tgz|tar\.zst)", "a .tar, .tar.gz, .tgz or .tar.zst archive")
]

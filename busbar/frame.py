"""The frame of capabilities on another stack's cluster: parts of configuration, steps, outputs and checks.

Each part can be used without the others. `busbar/components/frame.py` is the part for their programs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any, Self

from pydantic import Field, StrictBool, ValidationError

from busbar.capability import Gate
from busbar.config.cluster import Chart
from busbar.config.types import Int, Seconds, StackName, Url
from busbar.exits import Failed
from busbar.finding import Finding, KeyPath, path_of, with_fix
from busbar.kube.client import Api, JsonObject
from busbar.kube.health import problem
from busbar.kube.nodes import NODES, Node
from busbar.kube.pods import namespace_report
from busbar.models import ConfigModel, OutputModel, StrictModel, problems
from busbar.operations.verify import CLUSTER
from busbar.text import listed

if TYPE_CHECKING:
    from rich.text import Text

CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
CLASSES = "/apis/storage.k8s.io/v1/storageclasses"
_RELEASE = "meta.helm.sh/release-name"
_DEFAULT_CLASS = "storageclass.kubernetes.io/is-default-class"
# Kind of a workload -> its path below the namespace, and where it has the numbers of wanted and ready pods.
_WORKLOADS = {
    "DaemonSet": ("daemonsets", ("status", "desiredNumberScheduled"), "numberReady"),
    "Deployment": ("deployments", ("spec", "replicas"), "readyReplicas"),
    "StatefulSet": ("statefulsets", ("spec", "replicas"), "readyReplicas"),
}


# ---- configuration ---------------------------------------------------------------------------------------


class OnCluster(ConfigModel):
    """Base of the configuration of a stack on another stack's cluster."""

    cluster: StackName
    """The stack that created the cluster, as organization/busbar/STACK."""


class GateConfig(ConfigModel):
    """Base of the section by which an update is decided, the one that its Gate names in `raised`."""

    enforce: bool = True
    """Let `pulumi up` fail unless it passed."""
    run: Annotated[Int, Field(ge=1)] = 1
    """Its number: raise it to do it again without another change."""

    @property
    def is_gate(self) -> bool:
        """True if `pulumi up` fails without a pass."""
        return self.enforce


class InstalledChart(Chart):
    """A chart that is installed if enabled."""

    enabled: bool = False
    """Install it."""
    repository: Url | None = None
    """Helm repository; not used for a local chart or an oci:// URL."""
    timeout_seconds: Seconds = 600
    """Time until it must run, in seconds."""

    def without_source(self, *path: str) -> Iterator[Finding]:
        """Find that the chart, whose name is at `path`, is not local and no repository is set."""
        if self.enabled and not (self.is_local or self.repository_url or "://" in self.chart):
            text = f"is a name, and {path_of((*path[:-1], 'repository'))} is not set"
            yield Finding(path, text, "set it, or give a local path or an oci:// URL", repr(self.chart))


# ---- steps of an update ----------------------------------------------------------------------------------


def refuse(found: Iterable[Finding]) -> None:
    """End a step that looks for obstacles before an installation. Raises Failed with every finding."""
    if lines := [f"  - {each}" for each in found]:
        raise Failed("\n".join(["nothing was installed:", *lines]))


def crds_of(api: Api, group: str) -> list[JsonObject]:
    """The CRDs of an API group. Raises ApiError."""
    return [each for each in api.list(CRDS) if (each.get("spec") or {}).get("group") == group]


def not_of_release(objects: Iterable[JsonObject], release: str) -> list[str]:
    """The names of the objects that no Helm release of this name has installed."""
    found = [each["metadata"] for each in objects]
    return [each["name"] for each in found if (each.get("annotations") or {}).get(_RELEASE) != release]


def storage_class(api: Api, wanted: str | None) -> JsonObject | None:
    """The StorageClass of this name, by default the cluster's default one. Raises ApiError."""
    for each in api.list(CLASSES):
        metadata = each["metadata"]
        is_default = (metadata.get("annotations") or {}).get(_DEFAULT_CLASS) == "true"
        if metadata["name"] == wanted or (is_default and wanted is None):
            return each
    return None


def without_class(api: Api, wanted: str | None, where: KeyPath) -> Iterator[Finding]:
    """Find that the cluster has no such StorageClass, configured at `where`. Raises ApiError."""
    if storage_class(api, wanted) is None:
        names = ", ".join(each["metadata"]["name"] for each in api.list(CLASSES))
        what = f"there is no StorageClass {wanted}" if wanted else "no StorageClass is the default one"
        yield Finding(where, f"{what}; the cluster has {names or 'none'}", "name one, or create it first")


class CheckResult(StrictModel):
    """The result of a step that checks at the end of an update; a subclass adds fields with defaults."""

    passed: StrictBool
    reasons: list[str]

    @classmethod
    def of(cls, problems: Iterable[Finding], **fields: Any) -> Self:
        """A pass if there are no problems, which busbar.kube.wait.lasting finds where a step waits."""
        reasons = [with_fix(each.what, each.fix) if each.host == CLUSTER else str(each) for each in problems]
        return cls(passed=not reasons, reasons=reasons, **fields)

    @classmethod
    def read(cls, printed: str | None, step: str) -> Self:
        """The result that `busbar step STEP` printed. Another text, or a pass with reasons, is not a pass."""
        try:
            found = cls.model_validate_json(printed or "")
        except ValidationError as error:
            why = f"the output of `busbar step {step}` cannot be read: {problems(error)}"
            return cls(passed=False, reasons=[why])
        return found.model_copy(update={"passed": found.passed and not found.reasons})


# ---- outputs and checks ----------------------------------------------------------------------------------


class StackOutputs(OutputModel):
    """Base of the outputs of a stack, which are exported by the names of its fields."""

    cluster_name: str
    namespace: str

    @classmethod
    def read(cls, gate: Gate, outputs: Mapping[str, Any]) -> Self:
        """The outputs of a stack. Raises ValueError, also for another contract."""
        if (version := outputs.get(gate.version)) != gate.contract:
            raise ValueError(f"unsupported {gate.version} {version} (supported: {gate.contract})")
        try:
            return cls.model_validate(outputs)
        except ValidationError as error:
            raise ValueError(problems(error)) from None


def headline(gate: Gate, outputs: Mapping[str, Any], text: str) -> Text:
    """The first lines of the tables: `text` for a pass, else the reasons."""
    from busbar.judge.tables import not_passed, passed

    if outputs.get(gate.passed) is True:
        return passed(text)
    return not_passed(gate.title, outputs.get(gate.reasons))


def unready(api: Api, namespaces: Iterable[str]) -> Iterator[Finding]:
    """Find workloads in these namespaces that have fewer ready pods than they want. Raises ApiError.

    Pods of DaemonSets on Nodes that are not Ready do not count: the verification of the cluster names these.
    """
    gone = {node.name for each in api.list(NODES) if not (node := Node.of(each)).ready}
    for namespace in namespaces:
        pods = api.list(f"/api/v1/namespaces/{namespace}/pods")
        owners = Counter(
            owner["name"]
            for pod in pods
            for owner in pod["metadata"].get("ownerReferences") or ()
            if pod["spec"].get("nodeName") in gone and owner["kind"] == "DaemonSet"
        )
        short = []
        for kind, (path, (part, number), of_ready) in _WORKLOADS.items():
            for each in api.list(f"/apis/apps/v1/namespaces/{namespace}/{path}"):
                name, ready = each["metadata"]["name"], (each.get("status") or {}).get(of_ready, 0)
                wanted = (each.get(part) or {}).get(number, 1)
                if kind == "DaemonSet":
                    wanted -= owners[name]
                if ready < wanted:
                    short.append(f"{kind} {namespace}/{name} has {ready} of {wanted} pods ready")
        if short:
            causes = listed(namespace_report(api, namespace))
            what = "; ".join(short) + (f" ({causes})" if causes else "")
            fix = f"kubectl -n {namespace} describe pods; repair what the events of these pods name"
            yield problem(what, fix)

"""The package `kubernetes`: any kind of object, `XxxPatch`, and helm.sh/v3:Release."""

from __future__ import annotations

from lab.offline.plugins.kubernetes import kubeconfig
from lab.offline.plugins.kubernetes.cluster import Cluster
from lab.offline.plugins.kubernetes.settings import Settings
from lab.offline.plugins.sdk.provider import Provider
from lab.offline.plugins.sdk.resource import Call, Difference, Failure, ProviderError, Resource
from lab.offline.plugins.sdk.structural import changes
from lab.offline.plugins.sdk.values import Properties, has_unknown, reveal

_SOURCES = ("kubeconfig", "context", "cluster")


class KubernetesProvider(Provider):
    """Behaves as pulumi-kubernetes 4.34."""

    name = "kubernetes"
    version = "4.34.2"

    def __init__(self) -> None:
        super().__init__()
        self._cluster: Cluster | None = None

    def check_config(self, call: Call, news: Properties) -> list[Failure]:
        if reveal(news.get("renderYamlToDirectory")):
            reason = "this replacement of the kubernetes plugin does not render YAML"
            return [Failure("renderYamlToDirectory", reason)]
        return []

    def diff_config(self, call: Call, olds: Properties, news: Properties) -> Difference:
        """A changed cluster replaces what is on it, unless a constant `clusterIdentifier` vouches for it."""
        old, new = reveal(olds), reveal(news)
        changed = {path.split(".")[0].split("[")[0]: "UPDATE" for path in changes(old, new)}
        if not changed:
            return Difference()
        identified = new.get("clusterIdentifier")
        replaces: list[str] = []
        if old.get("clusterIdentifier") and identified and "clusterIdentifier" in changed:
            replaces.append("clusterIdentifier")
        vouched_for = bool(identified) and "clusterIdentifier" not in changed
        unknown = next((key for key in _SOURCES if has_unknown(new.get(key))), None)
        if unknown:
            replaces.append(unknown)
            changed = {unknown: "UPDATE"}
        elif _moved(old, new):
            replaces += [key for key in _SOURCES if key in changed]
        return Difference(changed, () if vouched_for else tuple(replaces))

    def configure(self, variables: dict[str, str], args: Properties) -> None:
        self._cluster = Cluster(Settings.read(variables))

    def resource(self, type_token: str) -> Resource:
        if self._cluster is None:
            raise ProviderError("the kubernetes plugin is not configured")
        if type_token == "kubernetes:helm.sh/v3:Release":
            from lab.offline.plugins.helm.release import Release

            return Release(self._cluster)
        if type_token.count(":") != 2 or "/" not in type_token.split(":")[1]:
            raise ProviderError(f"unrecognized resource type: {type_token!r} for this provider")
        from lab.offline.plugins.kubernetes.object import KubernetesObject

        return KubernetesObject(self._cluster)


def _moved(old: Properties, new: Properties) -> bool:
    """Whether the active cluster of the kubeconfig is another one now."""
    try:
        before = _active(old)
        now = _active(new)
    except ValueError as error:
        raise ProviderError(str(error)) from error
    return before is not None and now is not None and before != now


def _active(config: Properties) -> object:
    text = config.get("kubeconfig")
    parsed = kubeconfig.parse(text) if isinstance(text, str) and text else None
    return kubeconfig.active_cluster(parsed, config.get("context"), config.get("cluster"))

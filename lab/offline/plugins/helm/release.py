"""helm.sh/v3:Release: a chart installed and upgraded by helm.

After pulumi-kubernetes 4.34 (provider/pkg/provider/helm_release.go). As there, a release is compared by its
inputs and by the version in the chart's Chart.yaml: other changes inside a chart folder go unseen.
"""

from __future__ import annotations

import json
from typing import Any

import yaml

from lab.offline.plugins.helm import charts, options
from lab.offline.plugins.helm.cli import Helm, HelmFailed
from lab.offline.plugins.kubernetes.cluster import Cluster
from lab.offline.plugins.kubernetes.kinds import Kind, metadata
from lab.offline.plugins.sdk.resource import (
    ADD,
    DELETE,
    UPDATE,
    Call,
    Difference,
    Failure,
    InitializationError,
    ProviderError,
    Resource,
    unique,
)
from lab.offline.plugins.sdk.structural import changes
from lab.offline.plugins.sdk.values import UNKNOWN, Properties, Secret, has_unknown, mark_secrets_like, reveal

_INPUTS = "__inputs"
_OUTPUTS_ONLY = frozenset({"status", "resourceNames", "manifest", "checksum"})


class Release(Resource):
    """Releases on one cluster."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    def check(self, call: Call, olds: Properties, news: Properties) -> tuple[Properties, list[Failure]]:
        given = {key: value for key, value in news.items() if key not in _OUTPUTS_ONLY and key != "compat"}
        inputs = {**options.DEFAULTS, **given}
        if not reveal(inputs.get("name")):
            inputs["name"] = reveal(olds.get("name")) or call.proposed_name or unique(f"{call.name}-")
        if not reveal(inputs.get("namespace")):
            inputs["namespace"] = self._cluster.default_namespace or "default"
        if inputs.get("timeout") is None:
            inputs["timeout"] = 0 if reveal(inputs["skipAwait"]) else options.DEFAULT_TIMEOUT_SECONDS
        plain = reveal(inputs)
        if not has_unknown(inputs):
            values = options.merged(plain)
            inputs.pop("valueYamlFiles", None)
            inputs["values"] = mark_secrets_like({"values": values}, news)["values"]
            try:
                chart = charts.metadata(Helm(self._cluster, call, plain["namespace"]), plain)
                inputs["version"] = str(chart["version"])
                self._announce_crds(call, {**plain, "version": inputs["version"]})
            except ProviderError as error:
                return inputs, [
                    Failure("chart", f"{error}; check the chart name and repository configuration.")
                ]
        return inputs, []

    def _announce_crds(self, call: Call, plain: Properties) -> None:
        """Record the chart's CRDs, so that previews know which objects have a namespace."""
        if plain.get("skipCrds"):
            return
        for crd in charts.crds(Helm(self._cluster, call, plain["namespace"]), plain):
            self._cluster.kinds.announce(crd)

    def diff(self, call: Call, id: str, state: Properties, news: Properties) -> Difference:
        stored = reveal(state)
        old = {key: value for key, value in (stored.get(_INPUTS) or {}).items() if key not in _OUTPUTS_ONLY}
        new = reveal(news)
        if "version" in call.ignore_changes:
            new["version"] = stored.get("version")
        found = {path: kind for path, kind in changes(old, new).items() if kind == DELETE}
        found |= {
            path: kind
            for path, kind in changes({key: stored.get(key) for key in new if key in stored}, new).items()
            if kind in (ADD, UPDATE)
        }
        return Difference(
            {
                path: f"{kind}_REPLACE" if path in ("name", "namespace") else kind
                for path, kind in found.items()
            }
        )

    def create(self, call: Call, inputs: Properties) -> tuple[str, Properties]:
        if call.preview:
            return "", _preview(inputs)
        plain = reveal(inputs)
        self._reachable("create")
        helm, id = Helm(self._cluster, call, plain["namespace"]), f"{plain['namespace']}/{plain['name']}"
        try:
            self._put(helm, plain, upgrade=False)
        except HelmFailed as error:
            raise self._failed(
                helm, id, inputs, error, "was created, but failed to initialize completely"
            ) from error
        return id, self._state(helm, inputs)

    def update(self, call: Call, id: str, state: Properties, news: Properties) -> Properties:
        if call.preview:
            return _preview(news)
        plain = reveal(news)
        self._reachable("update")
        helm = Helm(self._cluster, call, plain["namespace"])
        try:
            self._put(helm, plain, upgrade=True)
        except HelmFailed as error:
            raise self._failed(helm, id, news, error, "failed to initialize completely") from error
        return self._state(helm, news)

    def read(
        self, call: Call, id: str, state: Properties, inputs: Properties
    ) -> tuple[str, Properties, Properties] | None:
        if self._cluster.unreachable:
            raise ProviderError(
                f"failed to read resource state due to unreachable cluster: {self._cluster.unreachable}"
            )
        namespace, _, name = id.rpartition("/")
        helm = Helm(self._cluster, call, namespace)
        if helm.status(name) is None:
            return None
        # Not `inputs`: after a failed update the engine still holds the ones before it.
        kept = reveal_once(state.get(_INPUTS)) or {"name": name, "namespace": namespace, "chart": name}
        return id, self._state(helm, kept), kept

    def delete(self, call: Call, id: str, state: Properties) -> None:
        if self._cluster.unreachable:
            raise ProviderError(
                f"can't delete Helm Release with unreachable cluster. Reason: {self._cluster.unreachable!r}"
            )
        plain = reveal(state)
        argv = ["uninstall", plain["name"]]
        if plain.get("atomic") or not plain.get("skipAwait"):
            timeout = int(plain.get("timeout") or options.DEFAULT_TIMEOUT_SECONDS)
            argv += ["--wait", "--timeout", f"{timeout}s"]
        try:
            Helm(self._cluster, call, plain["namespace"]).run(*argv)
        except HelmFailed as error:
            raise ProviderError(str(error)) from error

    def _reachable(self, what: str) -> None:
        if self._cluster.unreachable:
            raise ProviderError(
                f"can't {what} Helm Release with unreachable cluster: {self._cluster.unreachable}"
            )

    @staticmethod
    def _put(helm: Helm, plain: Properties, *, upgrade: bool) -> None:
        argv = ["upgrade" if upgrade else "install", plain["name"], *options.chart_argv(plain)]
        argv += [*options.flags(plain, upgrade=upgrade), "--values", "-"]
        helm.run(*argv, stdin=json.dumps(plain.get("values") or {}), stoppable=True)

    def _failed(self, helm: Helm, id: str, inputs: Properties, error: HelmFailed, how: str) -> ProviderError:
        """The error to raise, with the release's state where there is a release now."""
        name = reveal(inputs["name"])
        if "still in use" in str(error) or "has no deployed releases" in str(error):
            return ProviderError(str(error))
        try:
            if helm.status(name) is None:
                return ProviderError(str(error))
            state = self._state(helm, inputs)
        except HelmFailed:
            return ProviderError(str(error))
        return InitializationError(
            f'Helm release "{id}" {how}. Use Helm CLI to investigate: failed to become available within '
            f"allocated timeout. Error: Helm Release {id}: {error}",
            id=id,
            state=state,
            reasons=[],
        )

    @staticmethod
    def _state(helm: Helm, inputs: Properties) -> Properties:
        """The present state of the release in helm's records; raises HelmFailed."""
        plain = reveal(inputs)
        about = helm.json("get", "metadata", plain["name"])
        values = json.loads(helm.run("get", "values", plain["name"], "--output", "json")) or {}
        options.merge(merged := dict(plain.get("values") or {}), values)
        state = {
            **inputs,
            "version": about["version"],
            "values": merged,
            "resourceNames": _names(helm.run("get", "manifest", plain["name"])),
            "status": {
                "appVersion": about.get("appVersion", ""),
                "chart": about["chart"],
                "name": about["name"],
                "namespace": about["namespace"],
                "revision": int(about["revision"]),
                "status": about["status"],
                "version": about["version"],
            },
        }
        return {**mark_secrets_like(state, inputs), _INPUTS: Secret(inputs)}


def reveal_once(value: Any) -> Any:
    """`value` without the secret around it; secrets inside stay."""
    return value.value if isinstance(value, Secret) else value


def _preview(inputs: Properties) -> Properties:
    return {**inputs, _INPUTS: Secret(inputs), "resourceNames": UNKNOWN, "status": UNKNOWN}


def _names(manifest: str) -> dict[str, list[str]]:
    """Names of a release's objects, grouped as `Kind/group/version`."""
    found: dict[str, list[str]] = {}
    for item in yaml.load_all(manifest, Loader=charts.Loader):
        if isinstance(item, dict) and item.get("kind"):
            kind, name = Kind.of(item), str(metadata(item).get("name", ""))
            place = metadata(item).get("namespace")
            found.setdefault(f"{kind.kind}/{kind.api_version}", []).append(
                f"{place}/{name}" if place else name
            )
    return {key: sorted(names) for key, names in sorted(found.items())}

"""The inputs of a Release as options of helm: values, chart and flags."""

from __future__ import annotations

from typing import Any, Final

import yaml

from lab.offline.plugins.sdk.resource import ProviderError
from lab.offline.plugins.sdk.values import Properties

DEFAULT_TIMEOUT_SECONDS: Final = 300
# Input to the flag that it sets, for installing and for upgrading.
_BOTH: Final = {
    "atomic": "--atomic",
    "dependencyUpdate": "--dependency-update",
    "devel": "--devel",
    "disableOpenapiValidation": "--disable-openapi-validation",
    "renderSubchartNotes": "--render-subchart-notes",
    "skipCrds": "--skip-crds",
    "verify": "--verify",
}
_INSTALL: Final = _BOTH | {
    "createNamespace": "--create-namespace",
    "disableWebhooks": "--no-hooks",
    "replace": "--replace",
}
_UPGRADE: Final = _BOTH | {
    "cleanupOnFail": "--cleanup-on-fail",
    "disableCRDHooks": "--no-hooks",
    "forceUpdate": "--force",
    "resetValues": "--reset-values",
    "reuseValues": "--reuse-values",
}
_TEXTS: Final = {"description": "--description", "keyring": "--keyring", "postrender": "--post-renderer"}


# What the official plugin stores for inputs that are not given, so that a stack may change plugins.
DEFAULTS: Final[Properties] = {
    **dict.fromkeys(
        (
            *("allowNullValues", "atomic", "cleanupOnFail", "createNamespace", "dependencyUpdate", "devel"),
            *("disableCRDHooks", "disableOpenapiValidation", "disableWebhooks", "forceUpdate", "lint"),
            *("recreatePods", "renderSubchartNotes", "replace", "resetValues", "reuseValues", "skipAwait"),
            *("skipCrds", "verify", "waitForJobs"),
        ),
        False,
    ),
    **dict.fromkeys(("description", "keyring", "postrender"), ""),
}


def merged(inputs: Properties) -> dict[str, Any]:
    """`valueYamlFiles` in their order, then `values` over them."""
    values: dict[str, Any] = {}
    for asset in inputs.get("valueYamlFiles") or []:
        merge(values, _load(asset))
    merge(values, inputs.get("values") or {})
    return values


def merge(into: dict[str, Any], more: dict[str, Any]) -> None:
    """Merge `more` into `into`, map by map; lists and scalars are replaced."""
    for key, value in more.items():
        if isinstance(value, dict) and isinstance(into.get(key), dict):
            merge(into[key], value)
        else:
            into[key] = value


def _load(asset: Any) -> dict[str, Any]:
    if not isinstance(asset, dict) or ("text" not in asset and "path" not in asset):
        raise ProviderError("unsupported type for 'valueYamlFiles' arg: expected file or string assets")
    if "text" in asset and not asset.get("path"):
        text = asset["text"]
    else:
        try:
            with open(asset["path"]) as file:
                text = file.read()
        except OSError as error:
            raise ProviderError(f"valueYamlFiles: {error}") from error
    loaded = yaml.safe_load(text)
    if loaded is not None and not isinstance(loaded, dict):
        raise ProviderError("valueYamlFiles: a values file must hold a map")
    return loaded or {}


def chart_argv(inputs: Properties) -> list[str]:
    """The chart and where it comes from."""
    argv = [str(inputs["chart"])]
    options = inputs.get("repositoryOpts") or {}
    for secret in ("username", "password"):
        if options.get(secret):
            raise ProviderError(
                f"this replacement of the kubernetes plugin cannot use repositoryOpts.{secret}"
            )
    repository = str(options.get("repo") or "")
    if repository and not argv[0].startswith("oci://"):
        if "://" in repository:
            argv += ["--repo", repository]
        elif "/" not in argv[0]:
            argv = [f"{repository}/{argv[0]}"]
    for name, flag in (("caFile", "--ca-file"), ("certFile", "--cert-file"), ("keyFile", "--key-file")):
        if options.get(name):
            argv += [flag, str(options[name])]
    if inputs.get("version"):
        argv += ["--version", str(inputs["version"])]
    return argv


def flags(inputs: Properties, *, upgrade: bool) -> list[str]:
    """The flags for the inputs."""
    argv = [flag for name, flag in (_UPGRADE if upgrade else _INSTALL).items() if inputs.get(name)]
    for name, flag in _TEXTS.items():
        if inputs.get(name):
            argv += [flag, str(inputs[name])]
    argv += ["--timeout", f"{int(inputs.get('timeout') or DEFAULT_TIMEOUT_SECONDS)}s"]
    if not inputs.get("skipAwait"):
        argv.append("--wait")
        if inputs.get("waitForJobs"):
            argv.append("--wait-for-jobs")
    if upgrade:
        argv += ["--history-max", str(int(inputs.get("maxHistory") or 0))]
    return argv

"""Cluster and login of a kubeconfig's context."""

from __future__ import annotations

import base64
import os
from dataclasses import dataclass
from typing import Any

import yaml


class KubeconfigError(ValueError):
    """The kubeconfig cannot be used."""


@dataclass(frozen=True)
class Cluster:
    """One context of a kubeconfig, resolved; certificates and keys are PEM texts."""

    server: str
    namespace: str
    ca: str | None = None
    insecure: bool = False
    server_name: str | None = None
    client_certificate: str | None = None
    client_key: str | None = None
    token: str | None = None
    username: str | None = None
    password: str | None = None


def parse(text_or_path: str) -> dict[str, Any]:
    """The kubeconfig given as text or as a path ("~" is the home folder); raises KubeconfigError."""
    text = text_or_path
    path = os.path.expanduser(text_or_path)
    if "\n" not in path and os.path.exists(path):
        with open(path) as file:
            text = file.read()
    try:
        parsed = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise KubeconfigError(f"failed to parse kubeconfig: {error}") from error
    if not isinstance(parsed, dict) or not parsed.get("clusters"):
        raise KubeconfigError("failed to parse kubeconfig: neither an existing file nor a kubeconfig")
    return parsed


def active_cluster(parsed: dict[str, Any] | None, context: str | None, cluster: str | None) -> Any:
    """The cluster entry that a context selects, or None: it decides whether the cluster is still the same."""
    if not parsed:
        return None
    chosen = _named(parsed, "contexts", "context", context or parsed.get("current-context", ""))
    if chosen is None:
        return None
    return _named(parsed, "clusters", "cluster", cluster or chosen.get("cluster", ""))


def resolve(
    parsed: dict[str, Any], context: str | None, cluster: str | None, namespace: str | None
) -> Cluster:
    """The cluster and login of a context; raises KubeconfigError where one is missing or not supported."""
    name = context or parsed.get("current-context", "")
    chosen = _named(parsed, "contexts", "context", name)
    if chosen is None:
        raise KubeconfigError(f"context {name!r} is not in the kubeconfig")
    target = active_cluster(parsed, context, cluster)
    if target is None:
        raise KubeconfigError(f"the cluster of context {name!r} is not in the kubeconfig")
    user = _named(parsed, "users", "user", chosen.get("user", "")) or {}
    for unsupported in ("exec", "auth-provider", "tokenFile"):
        if unsupported in user:
            raise KubeconfigError(
                f"this replacement of the kubernetes plugin cannot log in by {unsupported!r}"
            )
    return Cluster(
        server=str(target["server"]).rstrip("/"),
        namespace=namespace or chosen.get("namespace") or "default",
        ca=_pem(target, "certificate-authority"),
        insecure=bool(target.get("insecure-skip-tls-verify")),
        server_name=target.get("tls-server-name"),
        client_certificate=_pem(user, "client-certificate"),
        client_key=_pem(user, "client-key"),
        token=user.get("token"),
        username=user.get("username"),
        password=user.get("password"),
    )


def _named(parsed: dict[str, Any], kind: str, field: str, name: str) -> Any:
    return next((entry.get(field) for entry in parsed.get(kind) or [] if entry.get("name") == name), None)


def _pem(entry: dict[str, Any], field: str) -> str | None:
    if data := entry.get(f"{field}-data"):
        return base64.b64decode(data).decode()
    if path := entry.get(field):
        try:
            with open(path) as file:
                return file.read()
        except OSError as error:
            raise KubeconfigError(f"unable to read {field} {path}: {error}") from error
    return None

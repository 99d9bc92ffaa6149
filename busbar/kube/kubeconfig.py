"""What a kubeconfig says: where the API is, how to verify it, and who asks.

Login is by client certificate (inline or files), `token`, `tokenFile` or an `exec:` plugin.
"""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import yaml

EXEC_SECONDS = 120
# A token that is about to expire may do so on its way.
_EXPIRY_MARGIN = timedelta(minutes=5)
_EXTENSION = "client.authentication.k8s.io/exec"
_UNSUPPORTED = ("auth-provider", "username")


@dataclass(frozen=True)
class Context:
    """One context of a kubeconfig, with the entries that it names."""

    cluster: Mapping[str, Any]
    user: Mapping[str, Any]
    namespace: str = "default"

    @property
    def server(self) -> str:
        """The URL of the API."""
        return str(self.cluster["server"]).rstrip("/")


@dataclass(frozen=True)
class Credential:
    """What a request shows: a token, a client certificate with its key (PEM), or both; None never expires."""

    token: str | None = None
    certificate: str | None = None
    expires: datetime | None = None


def parse(text: str) -> dict[str, Any]:
    """The mapping in the text of a kubeconfig. Raises ValueError, which never quotes the text."""
    try:
        parsed = yaml.safe_load(text)
    except yaml.YAMLError:
        # The parser's own message quotes the text around the error: that may be a key.
        raise ValueError("the kubeconfig is not YAML") from None
    if not isinstance(parsed, dict):
        raise ValueError("the kubeconfig is empty or not a YAML mapping")
    return parsed


def find_context(parsed: Mapping[str, Any], name: str | None) -> Context:
    """The context called `name`, or the current one. Raises ValueError."""
    name = name or parsed.get("current-context") or ""
    chosen = entry(parsed, "context", name)
    if chosen is None:
        known = [str(each.get("name")) for each in parsed.get("contexts") or () if isinstance(each, dict)]
        raise ValueError(f"the kubeconfig has no context {name!r}; it has: {', '.join(known) or 'none'}")
    cluster = chosen.get("cluster") or ""
    target = entry(parsed, "cluster", cluster)
    if target is None or not target.get("server"):
        raise ValueError(f"the kubeconfig has no cluster {cluster!r} with a server")
    user = entry(parsed, "user", chosen.get("user") or "") or {}
    if unsupported := next((each for each in _UNSUPPORTED if each in user), None):
        raise ValueError(
            f"user {chosen['user']!r} of the kubeconfig logs in by {unsupported}: not supported. "
            "Fix: use a client certificate, a token or an exec plugin"
        )
    return Context(target, user, chosen.get("namespace") or "default")


def entry(parsed: Mapping[str, Any], kind: str, name: str) -> dict[str, Any] | None:
    """The entry called `name` in the list of `kind`: context, cluster or user."""
    entries = parsed.get(f"{kind}s")
    for each in entries if isinstance(entries, list) else []:
        if isinstance(each, dict) and each.get("name") == name:
            found = each.get(kind)
            return found if isinstance(found, dict) else None
    return None


class Login:
    """The credentials of a context's user; those of an `exec:` plugin are renewed when they expire."""

    def __init__(self, context: Context) -> None:
        """Raises ValueError where there are none, or the plugin fails."""
        self._context = context
        self._credential = self._read()

    @property
    def is_exec(self) -> bool:
        """Whether a plugin gives the credentials: only it can have others after a refusal."""
        user = self._context.user
        return "exec" in user and not ("token" in user or "tokenFile" in user)

    def current(self) -> Credential:
        """Credentials that have not expired. Raises ValueError."""
        end = self._credential.expires
        if (end and end - _EXPIRY_MARGIN <= datetime.now(UTC)) or "tokenFile" in self._context.user:
            self.renew()
        return self._credential

    def renew(self) -> None:
        """Read the credentials again. Raises ValueError."""
        self._credential = self._read()

    def _read(self) -> Credential:
        user = self._context.user
        certificate, key = pem(user, "client-certificate"), pem(user, "client-key")
        pair = f"{certificate}\n{key}" if certificate and key else None
        if self.is_exec:
            given = _run_plugin(user["exec"], self._context.cluster)
            return given if given.certificate else replace(given, certificate=pair)
        token = user.get("token") or (_read_file(user["tokenFile"]).strip() if "tokenFile" in user else None)
        return Credential(token, pair)


def pem(section: Mapping[str, Any], field: str) -> str | None:
    """A certificate or key, from FIELD-data or from the file that FIELD names. Raises ValueError."""
    if data := section.get(f"{field}-data"):
        try:
            return base64.b64decode(data).decode()
        except ValueError:
            raise ValueError(f"{field}-data of the kubeconfig is not base64") from None
    return _read_file(section[field]) if section.get(field) else None


def _read_file(path: str) -> str:
    try:
        return Path(path).read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} of the kubeconfig cannot be read: {error}") from error


def _run_plugin(plugin: Mapping[str, Any], cluster: Mapping[str, Any]) -> Credential:
    """https://kubernetes.io/docs/reference/access-authn-authz/authentication/#client-go-credential-plugins"""
    command, version = plugin.get("command"), plugin.get("apiVersion")
    if not command or not version:
        raise ValueError("exec of the kubeconfig needs command and apiVersion")
    interactive = sys.stdin is not None and sys.stdin.isatty()
    request: dict[str, Any] = {"interactive": interactive}
    if plugin.get("provideClusterInfo"):
        extensions = {each["name"]: each["extension"] for each in cluster.get("extensions") or []}
        request["cluster"] = {**cluster, "config": extensions.get(_EXTENSION)}
    info = {"apiVersion": version, "kind": "ExecCredential", "spec": request}
    extra = {each["name"]: each["value"] for each in plugin.get("env") or []}
    try:
        done = subprocess.run(
            [command, *(plugin.get("args") or [])],
            env={**os.environ, **extra, "KUBERNETES_EXEC_INFO": json.dumps(info)},
            stdin=None if interactive else subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=None if interactive else subprocess.PIPE,
            timeout=EXEC_SECONDS,
            check=True,
        )
        return _credential(json.loads(done.stdout), version)
    except subprocess.CalledProcessError as error:
        said = " ".join((error.stderr or b"").decode(errors="replace").split())[-500:]
        raise ValueError(f"exec plugin {command}: exit code {error.returncode}: {said}") from None
    except (OSError, subprocess.TimeoutExpired) as error:
        hint = f". {plugin['installHint']}" if plugin.get("installHint") else ""
        raise ValueError(f"exec plugin {command}: {error}{hint}") from None
    except (ValueError, KeyError, TypeError, AttributeError):
        # The answer is not quoted: it may hold a token.
        raise ValueError(
            f"exec plugin {command}: got no ExecCredential of {version} with a token or a certificate and key"
        ) from None


def _credential(answer: Any, version: str) -> Credential:
    status = answer["status"]
    if answer["apiVersion"] != version:
        raise ValueError(answer["apiVersion"])
    expires = status.get("expirationTimestamp")
    until = datetime.fromisoformat(expires) if expires else None
    has_certificate = "clientCertificateData" in status or "token" not in status
    pair = status["clientCertificateData"] + "\n" + status["clientKeyData"] if has_certificate else None
    return Credential(status.get("token"), pair, until)

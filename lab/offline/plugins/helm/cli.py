"""Running the `helm` command against one cluster."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import yaml

from lab.offline.plugins.kubernetes.cluster import Cluster
from lab.offline.plugins.sdk.resource import Call, ProviderError

_CANCEL_CHECK_SECONDS = 0.2


class HelmFailed(Exception):
    """`helm` ended with an error; the text is helm's own."""


class Helm:
    """`helm` for one cluster and one namespace."""

    def __init__(self, cluster: Cluster, call: Call, namespace: str) -> None:
        self._cluster = cluster
        self._call = call
        self._namespace = namespace

    def run(self, *argv: str, stdin: str | None = None, stoppable: bool = False) -> str:
        """What helm prints; a `stoppable` command gets SIGTERM when the user cancels the run.

        Raises HelmFailed with helm's message, ProviderError where helm is missing.
        """
        binary = shutil.which("helm")
        if binary is None:
            raise ProviderError("this replacement of the kubernetes plugin needs the `helm` command on PATH")
        # A helm must not outlive a killed plugin and continue to change the cluster.
        guard = [found, "--pdeathsig", "KILL"] if (found := shutil.which("setpriv")) else []
        with self._kubeconfig() as path:
            process = subprocess.Popen(
                [*guard, binary, *argv, "--namespace", self._namespace],
                env={**os.environ, "KUBECONFIG": path},
                stdin=subprocess.PIPE if stdin is not None else subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            out, errors = self._finish(process, stdin, stoppable)
        if process.returncode:
            raise HelmFailed(_message(errors))
        return out

    def json(self, *argv: str) -> Any:
        """What helm prints as JSON."""
        return json.loads(self.run(*argv, "--output", "json"))

    def status(self, name: str) -> str | None:
        """The status of the release's newest revision; None if there is no such release."""
        try:
            return str(self.json("status", name)["info"]["status"])
        except HelmFailed as error:
            if "not found" in str(error):
                return None
            raise

    def _finish(self, process: subprocess.Popen[str], stdin: str | None, stoppable: bool) -> tuple[str, str]:
        while True:
            try:
                return process.communicate(stdin, timeout=_CANCEL_CHECK_SECONDS)
            except subprocess.TimeoutExpired:
                stdin = None
                if stoppable and self._call.cancelled.is_set():
                    process.send_signal(signal.SIGTERM)  # helm then marks the release as failed
                    stoppable = False

    @contextmanager
    def _kubeconfig(self) -> Iterator[str]:
        settings, parsed = self._cluster.settings, dict(self._cluster.parsed or {})
        if settings.context:
            parsed["current-context"] = settings.context
        with tempfile.TemporaryDirectory(prefix="busbar-") as folder:  # created 0700
            path = os.path.join(folder, "kubeconfig")
            with open(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600), "w") as file:
                yaml.safe_dump(parsed, file)
            yield path


def _message(errors: str) -> str:
    lines = [line for line in errors.splitlines() if line.strip() and not line.startswith("WARNING:")]
    text = "\n".join(lines).removeprefix("Error: ")
    return text.removeprefix("INSTALLATION FAILED: ").removeprefix("UPGRADE FAILED: ")

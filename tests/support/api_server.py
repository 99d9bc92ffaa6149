"""A real API server on loopback, without nodes: etcd, kube-apiserver and the controllers of deletions.

They are parts of the lab's replacement of K3s, which is built where it is missing. Nobody but its user is
refused anything.
"""

import base64
import json
import random
import socket
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from busbar.kube.client import RestApi
from busbar.kube.wait import Deadline, Pending, SystemClock, wait_until
from lab.build.go import build
from lab.offline import K3S

START_SECONDS = 180
STOP_SECONDS = 30
TOKEN = "admin"  # on loopback, for the time of a test
# A pod cannot start here, and nothing removes the finalizer of a claim.
ADMISSION = "--disable-admission-plugins=ServiceAccount,StorageObjectInUseProtection"


@dataclass(frozen=True)
class ApiServer:
    """A running API server. `api` has its objects."""

    kubeconfig: str
    api: RestApi
    folder: Path

    def kubectl(self, *words: str, objects: list[Mapping[str, Any]] | None = None) -> None:
        """Run kubectl, with `objects` on its stdin."""
        stdin = json.dumps({"apiVersion": "v1", "kind": "List", "items": objects or []})
        done = subprocess.run(
            [K3S.output, "kubectl", "--kubeconfig", self.folder / "kubeconfig",
             "--cache-dir", self.folder / "discovery", *words],
            input=stdin, text=True, capture_output=True, timeout=START_SECONDS, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr

    def define(self, group: str, version: str, kind: str) -> None:
        """Make the CRD of a kind in namespaces."""
        self.kubectl("apply", "-f", "-", objects=[definition(group, version, kind)])


def definition(
    group: str, version: str, kind: str, *, plural: str = "", scope: str = "Namespaced"
) -> dict[str, Any]:
    """The CRD of a kind, without a schema: its objects have any fields."""
    singular = kind.lower()
    plural = plural or f"{singular}s"
    schema = {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{group}"},
        "spec": {
            "group": group,
            "names": {"kind": kind, "plural": plural, "singular": singular},
            "scope": scope,
            "versions": [{"name": version, "served": True, "storage": True, "schema": schema}],
        },
    }


@contextmanager
def api_server(folder: Path) -> Iterator[ApiServer]:
    """An API server with its files in `folder`, until the end of the `with` block."""
    build(K3S)
    etcd, peers, port = _free_ports(3)
    key = folder / "service-account.key"
    key.write_bytes(_private_key())
    (folder / "tokens.csv").write_text(f"{TOKEN},admin,admin,system:masters\n")
    etcd_url, peer_url = f"http://127.0.0.1:{etcd}", f"http://127.0.0.1:{peers}"
    with ExitStack() as running:
        store = running.enter_context(
            _process(
                folder, "etcd", "--data-dir", folder / "etcd", "--unsafe-no-fsync",
                "--listen-client-urls", etcd_url, "--advertise-client-urls", etcd_url,
                "--listen-peer-urls", peer_url, "--initial-advertise-peer-urls", peer_url,
                "--initial-cluster", f"default={peer_url}",
            )
        )  # fmt: skip
        server = running.enter_context(
            _process(
                folder, "kube-apiserver", "--etcd-servers", etcd_url, "--cert-dir", folder / "certificates",
                "--bind-address=127.0.0.1", "--advertise-address=127.0.0.1", f"--secure-port={port}",
                "--service-cluster-ip-range=10.43.0.0/16", "--authorization-mode=AlwaysAllow",
                "--token-auth-file", folder / "tokens.csv", "--service-account-issuer=https://127.0.0.1",
                "--service-account-key-file", key, "--service-account-signing-key-file", key, ADMISSION,
            )
        )  # fmt: skip
        certificate = folder / "certificates" / "apiserver.crt"

        def ready() -> ApiServer | Pending:
            for process, name in ((store, "etcd"), (server, "kube-apiserver")):
                assert process.poll() is None, (folder / f"{name}.log").read_text()[-2000:]
            if not certificate.exists():
                return Pending("waiting for its certificate")
            text = kubeconfig(port, certificate.read_bytes())
            found = ApiServer(text, RestApi(text), folder)
            found.api.get("/api/v1/namespaces/default")
            return found

        found = wait_until(
            ready,
            Deadline(SystemClock(), START_SECONDS),
            poll_seconds=0.2,
            retry_on=lambda error: error.transient or error.not_found,
        )
        (folder / "kubeconfig").write_text(found.kubeconfig)
        running.enter_context(
            _process(
                folder, "kube-controller-manager", "--kubeconfig", folder / "kubeconfig",
                "--controllers=namespace-controller,garbage-collector-controller", "--leader-elect=false",
                "--secure-port=0",
            )
        )  # fmt: skip
        yield found


@contextmanager
def _process(folder: Path, name: str, *words: str | Path) -> Iterator[subprocess.Popen[bytes]]:
    with (
        (folder / f"{name}.log").open("wb") as log,
        subprocess.Popen([K3S.output, name, *words], stdout=log, stderr=log, cwd=folder) as process,
    ):
        try:
            yield process
        finally:
            process.terminate()
            try:
                process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()


def _free_ports(count: int) -> list[int]:
    """Ports below those of outgoing connections, one of which could take a port before its server listens."""
    found = set[int]()
    while len(found) < count:
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", random.randrange(20_000, 30_000)))
            found.add(probe.getsockname()[1])
    return list(found)


def _private_key() -> bytes:
    return rsa.generate_private_key(65537, 2048).private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def kubeconfig(port: int, certificate: bytes) -> str:
    cluster = {
        "server": f"https://127.0.0.1:{port}",
        "certificate-authority-data": base64.b64encode(certificate).decode(),
    }
    context = {"name": "it", "context": {"cluster": "it", "user": "admin"}}
    return json.dumps(
        {
            "apiVersion": "v1", "kind": "Config", "current-context": "it", "contexts": [context],
            "clusters": [{"name": "it", "cluster": cluster}],
            "users": [{"name": "admin", "user": {"token": TOKEN}}],
        }
    )  # fmt: skip

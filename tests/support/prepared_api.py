"""A real HTTP server on the loopback that gives prepared answers."""

import ssl
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import yaml
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

Answer = Callable[[BaseHTTPRequestHandler], None]


def status(code: int, body: bytes = b"{}", headers: Mapping[str, str] | None = None) -> Answer:
    def answer(request: BaseHTTPRequestHandler) -> None:
        request.send_response(code)
        for name, value in (headers or {}).items():
            request.send_header(name, value)
        request.send_header("Content-Length", str(len(body)))
        request.end_headers()
        request.wfile.write(body)

    return answer


def chunks(*pieces: bytes, whole: bool = True, until: threading.Event | None = None) -> Answer:
    """An answer in chunks; its end comes not before `until`, and never where it is not `whole`."""

    def answer(request: BaseHTTPRequestHandler) -> None:
        request.send_response(200)
        request.send_header("Transfer-Encoding", "chunked")
        request.end_headers()
        for piece in pieces:
            request.wfile.write(b"%x\r\n%s\r\n" % (len(piece), piece))
            request.wfile.flush()
        if until:
            until.wait(60)
        if whole:
            request.wfile.write(b"0\r\n\r\n")
        request.close_connection = True

    return answer


def self_signed(folder: Path, name_of: str = "127.0.0.1", *, days: int = 1) -> Path:
    """A file with a key and a certificate for an address or a name that no authority has signed."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name_of)])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - timedelta(days=2))
        .not_valid_after(now + timedelta(days=days))
        .add_extension(x509.SubjectAlternativeName([_general(name_of)]), critical=False)
        .sign(key, hashes.SHA256())
    )
    pem, plain = serialization.Encoding.PEM, serialization.NoEncryption()
    file = folder / f"{name_of}.pem"
    file.write_bytes(
        key.private_bytes(pem, serialization.PrivateFormat.PKCS8, plain) + certificate.public_bytes(pem)
    )
    return file


def _general(name: str) -> x509.GeneralName:
    return x509.IPAddress(ip_address(name)) if name[0].isdigit() else x509.DNSName(name)


def dropped(request: BaseHTTPRequestHandler) -> None:
    request.close_connection = True


class Server:
    """Gives the answers in their order and notes the requests."""

    def __init__(self) -> None:
        self.answers: list[Answer] = []
        self.requests: list[tuple[str, str, dict[str, str], bytes]] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def _serve(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                outer.requests.append((self.command, self.path, dict(self.headers), body))
                outer.answers.pop(0)(self)

            do_GET = do_POST = do_PATCH = do_DELETE = do_CONNECT = _serve

            def log_message(self, *_: Any) -> None:
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.http.daemon_threads = True
        threading.Thread(target=self.http.serve_forever, args=(0.02,), daemon=True).start()

    def secure(self, certificate: Path, clients: Path | None = None) -> None:
        """Serve TLS from now on, to those only who have the certificate in `clients`."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate)
        if clients:
            context.verify_mode = ssl.CERT_REQUIRED
            context.load_verify_locations(clients)
        self.http.socket = context.wrap_socket(self.http.socket, server_side=True)

    @property
    def kubeconfig(self) -> str:
        """A kubeconfig with a token."""
        return self.kubeconfig_of({"token": "short-fake-token"})

    def kubeconfig_of(self, user: dict[str, Any], **cluster: Any) -> str:
        """A kubeconfig of this user, with more settings of the cluster."""
        scheme = "https" if isinstance(self.http.socket, ssl.SSLSocket) else "http"
        server = {"server": f"{scheme}://127.0.0.1:{self.http.server_port}", **cluster}
        return yaml.safe_dump(
            {
                "apiVersion": "v1",
                "kind": "Config",
                "current-context": "c",
                "clusters": [{"name": "c", "cluster": server}],
                "users": [{"name": "u", "user": user}],
                "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
            }
        )


@contextmanager
def running() -> Iterator[Server]:
    """A server until the context ends."""
    made = Server()
    yield made
    made.http.shutdown()
    made.http.server_close()

"""An issuer of JSON web tokens on this machine, with a CA of its own, as a site has."""

import base64
import json
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, utils

from tests.support.prepared_api import self_signed

KEY_ID = "of-this-run"


def _base64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


@dataclass
class Issuer:
    """`certificate` is its own and its CA at once (PEM); tokens are signed with ES256."""

    url: str
    certificate: str
    key: ec.EllipticCurvePrivateKey

    def token(self, **claims: Any) -> str:
        """A token with these claims that is valid for ten minutes."""
        now = int(time.time())
        payload = {"iss": self.url, "iat": now, "exp": now + 600, **claims}
        header = {"alg": "ES256", "kid": KEY_ID}
        signed = ".".join(_base64(json.dumps(part).encode()) for part in (header, payload))
        r, s = utils.decode_dss_signature(self.key.sign(signed.encode(), ec.ECDSA(hashes.SHA256())))
        return f"{signed}.{_base64(r.to_bytes(32, 'big') + s.to_bytes(32, 'big'))}"

    def answers(self) -> dict[str, Any]:
        """What it serves, by path."""
        point = self.key.public_key().public_numbers()
        numbers = {"x": _base64(point.x.to_bytes(32, "big")), "y": _base64(point.y.to_bytes(32, "big"))}
        jwk = {"kty": "EC", "crv": "P-256", "kid": KEY_ID, "use": "sig", "alg": "ES256", **numbers}
        return {
            "/.well-known/openid-configuration": {
                "issuer": self.url,
                "jwks_uri": f"{self.url}/keys",
                "response_types_supported": ["id_token"],
                "subject_types_supported": ["public"],
                "id_token_signing_alg_values_supported": ["ES256"],
            },
            "/keys": {"keys": [jwk]},
        }


@contextmanager
def running_issuer(address: str, folder: Path) -> Iterator[Issuer]:
    """An issuer that answers at `https://address:PORT`; its files are in `folder`."""
    chain = self_signed(folder, address)
    key = serialization.load_pem_private_key(chain.read_bytes(), None)
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    certificate = chain.read_text()[chain.read_text().index("-----BEGIN CERTIFICATE") :]

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            found = issuer.answers().get(self.path)
            self.send_response(200 if found else 404)
            self.send_header("Content-Type", "application/json")
            self.end_headers()
            self.wfile.write(json.dumps(found).encode())

        def log_message(self, *_: Any) -> None:
            """Nothing: pytest shows what the test prints."""

    server = ThreadingHTTPServer((address, 0), Handler)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(chain)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    issuer = Issuer(f"https://{address}:{server.server_address[1]}", certificate, key)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield issuer
    finally:
        server.shutdown()
        server.server_close()

"""A small OpenID provider: a token endpoint for client credentials, and the keys that verify its
tokens."""

from __future__ import annotations

import base64
import json
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs

from joserfc import jwt
from joserfc.jwk import RSAKey

CLIENT, SECRET, AUDIENCE = "walgate-client", "client-secret", "walgate-servers"


class Provider:
    """The provider. `life_s`: lifetime of the tokens it will issue; `is_away`: it answers 503."""

    def __init__(self, port: int, scheme: str = "http") -> None:
        self.url = f"{scheme}://127.0.0.1:{port}"
        self.key = RSAKey.generate_key(2048, {"kid": "k1", "use": "sig", "alg": "RS256"})
        self.life_s = 300
        self.is_away = False
        self.given_count = 0
        self.refused_count = 0

    @property
    def token_url(self) -> str:
        return f"{self.url}/token"

    @property
    def keys_url(self) -> str:
        return f"{self.url}/keys"

    def token(self, life_s: float | None = None, audience: str = AUDIENCE) -> str:
        now = time.time()
        claims = {
            "iss": self.url,
            "sub": CLIENT,
            "aud": audience,
            "iat": int(now),
            "exp": int(now + (self.life_s if life_s is None else life_s)),
            "scope": "kafka",
        }
        return jwt.encode({"alg": "RS256", "kid": "k1"}, claims, self.key)

    def answer(self, path: str, form: dict[str, list[str]], authorization: str) -> tuple[int, dict[str, Any]]:
        if self.is_away:
            return 503, {}
        if path == "/keys":
            return 200, {"keys": [self.key.as_dict(private=False)]}
        if path == "/.well-known/openid-configuration":
            return 200, {
                "issuer": self.url,
                "jwks_uri": self.keys_url,
                "token_endpoint": self.token_url,
                "authorization_endpoint": f"{self.url}/authorize",
            }
        if path != "/token" or form.get("grant_type") != ["client_credentials"]:
            return 404, {}
        expected = base64.b64encode(f"{CLIENT}:{SECRET}".encode()).decode()
        if authorization != f"Basic {expected}":
            self.refused_count += 1
            return 401, {"error": "invalid_client"}
        self.given_count += 1
        return 200, {"access_token": self.token(), "token_type": "Bearer", "expires_in": self.life_s}


@contextmanager
def oidc_provider(tls: ssl.SSLContext | None = None) -> Iterator[Provider]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            length = int(self.headers.get("Content-Length") or 0)
            form = parse_qs(self.rfile.read(length).decode())
            status, found = provider.answer(self.path, form, self.headers.get("Authorization", ""))
            body = json.dumps(found).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_POST = do_GET

        def log_message(self, *args: Any) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        provider = Provider(server.server_address[1], "http" if tls is None else "https")
        if tls is not None:
            server.socket = tls.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        try:
            yield provider
        finally:
            server.shutdown()
            thread.join()

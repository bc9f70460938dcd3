"""`walgate check` asks as the gateway would."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from gateway.operate.settings import Settings
from gateway.service.check import run_check

TOKEN = "a-token"


@contextmanager
def registry_that_wants_a_token() -> Iterator[str]:
    """Its URL. It has no subject yet."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            is_known = self.headers.get("Authorization") == f"Bearer {TOKEN}"
            body = b'{"error_code": 40401, "message": "Subject not found"}' if is_known else b"{}"
            self.send_response(404 if is_known else 401)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


async def test_the_registry_is_asked_with_the_token_of_the_settings(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text(TOKEN)
    with registry_that_wants_a_token() as url:
        for file, outcome in ((token, "ok"), (None, "waits")):
            values: dict[str, Any] = {
                "source": {"dsn": "postgresql://u@127.0.0.1:1/d"},
                "kafka": {"bootstrap_servers": "127.0.0.1:1"},
                "registry": {"url": url} | ({"token_file": file} if file else {}),
            }
            (found,) = [one for one in await run_check(Settings(**values)) if one.area == "registry"]
            assert found.outcome == outcome, found

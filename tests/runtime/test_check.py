"""`walgate check` asks as the gateway would."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from gateway.cli.check import run_check
from gateway.cli.check_report import CheckResult
from gateway.config.settings import Settings

TOKEN = "a-token"


@contextmanager
def registry_that_wants_a_token(mode: str) -> Iterator[str]:
    """Its URL. It has no subject yet."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            is_known = self.headers.get("Authorization") == f"Bearer {TOKEN}"
            is_found = is_known and self.path == "/mode"
            body = b'{"error_code": 40401, "message": "Subject not found"}' if is_known else b"{}"
            body = json.dumps({"mode": mode}).encode() if is_found else body
            self.send_response(200 if is_found else 404 if is_known else 401)
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
    with registry_that_wants_a_token("READWRITE") as url:
        for file, outcome in ((token, "ok"), (None, "waits")):
            values: dict[str, Any] = {
                "source": {"dsn": "postgresql://u@127.0.0.1:1/d"},
                "kafka": {"bootstrap_servers": "127.0.0.1:1"},
                "registry": {"url": url} | ({"token_file": file} if file else {}),
            }
            (found,) = [one for one in await run_check(Settings(**values)) if one.area == "registry"]
            assert found.outcome == outcome, found
    with registry_that_wants_a_token("READONLY") as url:
        values["registry"] = {"url": url, "token_file": token}
        found, _ = [one for one in await run_check(Settings(**values)) if one.area == "registry"]
        assert found.outcome == "warning" and "mode READONLY" in found.message, found


@contextmanager
def something_else(status: bytes) -> Iterator[int]:
    """The port of an HTTP server that answers everything with `status`."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Length", str(len(status)))
            self.end_headers()
            self.wfile.write(status)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()


@pytest.mark.parametrize(
    ("status", "outcome"),
    [
        (b"hello", "stops"),
        (b"[]", "stops"),
        (b'{"slot_name": "another"}', "stops"),
        (b'{"slot_name": "walgate"}', "ok"),
    ],
)
async def test_an_http_port_in_use_is_a_stop_unless_a_gateway_of_the_slot_has_it(status: bytes, outcome: str) -> None:
    with something_else(status) as port:
        found = await of_settings(port)
        (told,) = [one for one in found if str(port) in one.message]
        assert told.outcome == outcome, told
        assert ("set another http.port" in told.remedy) is (outcome == "stops")
    assert [one.outcome for one in await of_settings(port)] == ["ok"]


async def of_settings(port: int) -> list[CheckResult]:
    values: dict[str, Any] = {
        "source": {"dsn": "postgresql://u@127.0.0.1:1/d"},
        "kafka": {"bootstrap_servers": "127.0.0.1:1"},
        "registry": {"url": "http://127.0.0.1:1"},
        "http": {"port": port},
    }
    return [one for one in await run_check(Settings(**values)) if one.area == "settings"]

"""Queries of the HTTP port of another process, and the health checks of docker-compose.yml, do not
go through a proxy of the environment."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import yaml

from gateway.observe.http_client import ask_json, ask_status, probe

COMPOSE = Path(__file__).parents[2] / "docker-compose.yml"
HEALTH_CHECKS = {
    name: service["healthcheck"]["test"][3]
    for name, service in yaml.safe_load(COMPOSE.read_text())["services"].items()
    if "urllib" in str(service.get("healthcheck", {}).get("test"))
}
REFUSED = "http://127.0.0.1:1"


class Answer(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(503 if self.path.startswith("/down") else 200)
        self.end_headers()
        self.wfile.write(b'{"state": "streaming"}')

    def log_message(self, *_: object) -> None: ...


@pytest.fixture
def port() -> Iterator[int]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Answer) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_port
        server.shutdown()


@pytest.fixture(autouse=True)
def proxied(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.setenv(name, REFUSED)
        monkeypatch.setenv(name.upper(), REFUSED)
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)


def test_a_running_gateway_and_a_mirror_are_queried_directly(port: int) -> None:
    assert probe("127.0.0.1", port) == ""
    assert ask_status("127.0.0.1", port) == ask_json(f"http://127.0.0.1:{port}/status") == {"state": "streaming"}


@pytest.mark.parametrize("service", HEALTH_CHECKS)
def test_a_health_check_of_a_container_is_direct(port: int, service: str) -> None:
    here = re.sub(r"(?<=127\.0\.0\.1:)\d+", str(port), HEALTH_CHECKS[service])

    def status(code: str) -> int:
        return subprocess.run([sys.executable, "-c", code], env=os.environ, stderr=subprocess.DEVNULL).returncode

    assert status(here) == 0
    assert status(here.replace(f":{port}/", f":{port}/down/")) == 1

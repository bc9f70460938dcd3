"""A company's network: a certificate authority that only SSL_CERT_FILE names, and a proxy that
alone knows the way.

pip and uv run with the environment that the Makefile gives them; pip is the one that Python brings.
"""

from __future__ import annotations

import hashlib
import json
import os
import select
import shutil
import socket
import ssl
import subprocess
import sys
import threading
from base64 import urlsafe_b64encode
from collections.abc import Callable, Iterator
from functools import partial
from http.server import BaseHTTPRequestHandler, SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TypeVar
from zipfile import ZipFile

import pytest

from gateway.local.download import Download, DownloadFailed, fetch
from tests.support.tls import private_authority

ROOT = Path(__file__).parents[2]
UV = str(Path(sys.executable).with_name("uv"))
HOST = "packages.test"  # nobody resolves it but the proxy
CONTENT = b"VALUE = 42\n"

T = TypeVar("T")

pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="no make")


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 (the base class's name)
        """Says nothing."""


class Proxy(ThreadingHTTPServer):
    """Takes CONNECT for HOST and leads it to the index. `asked`: for what it was asked."""

    def __init__(self, index_port: int) -> None:
        super().__init__(("127.0.0.1", 0), _Connect)
        self.index_port = index_port
        self.asked: list[str] = []


class _Connect(BaseHTTPRequestHandler):
    server: Proxy

    def do_CONNECT(self) -> None:
        self.server.asked.append(self.path)
        if self.path != f"{HOST}:443":
            self.send_error(502)
            return
        with socket.create_connection(("127.0.0.1", self.server.index_port)) as index:
            self.send_response(200)
            self.end_headers()
            other = {index: self.connection, self.connection: index}
            while True:
                for side in select.select(list(other), [], [])[0]:
                    if not (data := side.recv(1 << 16)):
                        return
                    other[side].sendall(data)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 (the base class's name)
        """Says nothing."""


def _wheel(folder: Path) -> None:
    """`answer-1.0`, a page of the simple index for it, and the module alone, as a file to
    download."""
    folder.mkdir(parents=True)
    name = "answer-1.0-py3-none-any.whl"
    files = {
        "answer.py": CONTENT,
        "answer-1.0.dist-info/METADATA": b"Metadata-Version: 2.1\nName: answer\nVersion: 1.0\n",
        "answer-1.0.dist-info/WHEEL": b"Wheel-Version: 1.0\nGenerator: walgate\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    lines = [
        f"{path},sha256={urlsafe_b64encode(hashlib.sha256(content).digest()).decode().rstrip('=')},{len(content)}\n"
        for path, content in files.items()
    ]
    files["answer-1.0.dist-info/RECORD"] = ("".join(lines) + "answer-1.0.dist-info/RECORD,,\n").encode()
    with ZipFile(folder / name, "w") as wheel:
        for path, content in files.items():
            wheel.writestr(path, content)
    digest = hashlib.sha256((folder / name).read_bytes()).hexdigest()
    (folder / "index.html").write_text(f'<!DOCTYPE html><a href="{name}#sha256={digest}">{name}</a>')
    (folder / "answer.py").write_bytes(CONTENT)


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return private_authority(tmp_path_factory.mktemp("authority"), HOST)


@pytest.fixture(scope="module")
def index_port(authority: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    folder = tmp_path_factory.mktemp("index")
    _wheel(folder / "simple" / "answer")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(authority.with_name("server.crt"), authority.with_name("server.key"))
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(_Quiet, directory=str(folder))) as server:
        server.socket = context.wrap_socket(server.socket, server_side=True)
        yield from _serving(server, server.server_address[1])


@pytest.fixture
def proxy(index_port: int) -> Iterator[Proxy]:
    with Proxy(index_port) as server:
        yield from _serving(server, server)


def _serving(server: ThreadingHTTPServer, what: T) -> Iterator[T]:
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield what
    server.shutdown()
    thread.join()


@pytest.fixture(scope="module")
def fresh_python(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("fresh")
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    return str(folder / "bin" / "python")


def _made(given: dict[str, str]) -> dict[str, str]:
    """The environment of the commands of the Makefile, when make was started with this one."""
    code = "import json, os; print(json.dumps(dict(os.environ)))"
    rule = f"include Makefile\nenvironment:\n\t@'{sys.executable}' -c '{code}'\n"
    words = ["make", "-s", "-f", "-", "environment"]
    made = subprocess.run(words, cwd=ROOT, env=given, input=rule, capture_output=True, text=True, check=True)
    found: dict[str, str] = json.loads(made.stdout)
    return found


class Installer:
    """`run`: with what the user has set, into a folder of its own; the caches are empty, and
    nothing is tried again."""

    def __init__(self, name: str, python: str, folder: Path) -> None:
        self.name, self._python, self._folder = name, python, folder

    def run(self, index: str, **given: str) -> subprocess.CompletedProcess[str]:
        words = {
            "pip": [self._python, "-m", "pip", "install"],
            "uv": [UV, "pip", "install", "--python", self._python],
        }[self.name]
        plain = {
            "PATH": os.environ["PATH"], "HOME": str(self._folder), "PIP_CONFIG_FILE": os.devnull, "UV_NO_CONFIG": "1",
            "PIP_NO_CACHE_DIR": "1", "UV_NO_CACHE": "1", "PIP_RETRIES": "0", "UV_HTTP_RETRIES": "0",
            "PIP_INDEX_URL": index, "UV_INDEX_URL": index,
        }  # fmt: skip
        return subprocess.run(
            [*words, "--no-deps", "--target", str(self._folder / "target"), "answer"],
            env=_made(plain | given), cwd=self._folder, capture_output=True, text=True, check=False,
        )  # fmt: skip

    @property
    def installed(self) -> bool:
        module = self._folder / "target" / "answer.py"
        return module.exists() and module.read_bytes() == CONTENT


@pytest.fixture(params=["pip", "uv"])
def installer(request: pytest.FixtureRequest, fresh_python: str, tmp_path: Path) -> Installer:
    return Installer(request.param, fresh_python, tmp_path)


def test_an_index_is_trusted_whose_authority_ssl_cert_file_names(
    installer: Installer, index_port: int, authority: Path
) -> None:
    index = f"https://127.0.0.1:{index_port}/simple"
    refused = installer.run(index)
    assert refused.returncode != 0
    assert "certificate" in (refused.stdout + refused.stderr).lower()
    assert not installer.installed
    done = installer.run(index, SSL_CERT_FILE=str(authority))
    assert installer.installed, done.stderr


def test_an_installer_goes_through_the_proxy(installer: Installer, proxy: Proxy, authority: Path) -> None:
    through = {"HTTPS_PROXY": f"http://127.0.0.1:{proxy.server_address[1]}", "SSL_CERT_FILE": str(authority)}
    done = installer.run(f"https://{HOST}/simple", **through)
    assert installer.installed, done.stderr
    assert {*proxy.asked} == {f"{HOST}:443"}


@pytest.fixture
def download(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], bytes]:
    """Of the module, by what runs in this process. The variables of the run are away."""
    for name in ("SSL_CERT_FILE", "SSL_CERT_DIR", "HTTPS_PROXY", "HTTP_PROXY", "ALL_PROXY", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)
    monkeypatch.setattr("gateway.local.download.PAUSE_S", 0.0)
    source, path = "simple/answer/answer.py", tmp_path / "answer.py"
    wanted = Download(source, path, len(CONTENT), hashlib.sha256(CONTENT).hexdigest())

    def run() -> bytes:
        fetch(f"https://{HOST}", [wanted])
        return path.read_bytes()

    return run


def test_a_download_goes_through_the_proxy(
    download: Callable[[], bytes], proxy: Proxy, authority: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTPS_PROXY", f"http://127.0.0.1:{proxy.server_address[1]}")
    with pytest.raises(DownloadFailed, match="CERTIFICATE_VERIFY_FAILED"):
        download()
    proxy.asked.clear()
    monkeypatch.setenv("SSL_CERT_FILE", str(authority))
    assert download() == CONTENT
    assert proxy.asked == [f"{HOST}:443"]

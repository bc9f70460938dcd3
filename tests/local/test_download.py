"""Files come whole and right, or not at all. The repository is a server of this process on
127.0.0.1."""

from __future__ import annotations

import hashlib
import re
import ssl
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from gateway.local.download import ATTEMPTS, CHUNK, Download, DownloadFailed, DownloadStopped, WrongHash, fetch
from tests.support.tls import certificate

CONTENT = bytes(range(256)) * 4096  # 1 MiB
SHA256 = hashlib.sha256(CONTENT).hexdigest()


class Repository(ThreadingHTTPServer):
    """Serves CONTENT under every path; `cuts`: after how many bytes each of the next answers breaks
    off."""

    daemon_threads = False

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.content = CONTENT
        self.ranges = True
        self.status = 200
        self.cuts: list[int] = []
        self.asked: list[str] = []  # the Range header of each request, "" without one

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class _Handler(BaseHTTPRequestHandler):
    server: Repository

    def do_GET(self) -> None:
        asked = self.headers.get("Range", "")
        self.server.asked.append(asked)
        match = re.fullmatch(r"bytes=(\d+)-", asked)
        partial = self.server.ranges and match is not None
        start = int(match[1]) if match is not None and partial else 0
        body = self.server.content[start:]
        self.send_response(206 if partial else self.server.status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        cut = self.server.cuts.pop(0) if self.server.cuts else len(body)
        try:
            self.wfile.write(body[:cut])
        except ConnectionError:
            self.close_connection = True

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 (the base class's name)
        """Says nothing."""


@pytest.fixture
def repository() -> Iterator[Repository]:
    with Repository() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def wanted(tmp_path: Path) -> Download:
    return Download("org/example/one.jar", tmp_path / "deep" / "one.jar", len(CONTENT), SHA256)


def _part(wanted: Download) -> Path:
    return wanted.path.with_name("one.jar.part")


def test_many_files_come_at_once(repository: Repository, tmp_path: Path) -> None:
    downloads = [Download(f"{n}.jar", tmp_path / f"{n}.jar", len(CONTENT), SHA256) for n in range(20)]
    fetch(repository.url, downloads)
    assert {one.path.read_bytes() for one in downloads} == {CONTENT}
    assert sorted(tmp_path.iterdir()) == sorted(one.path for one in downloads)


def test_a_download_that_broke_off_is_continued_where_it_stood(repository: Repository, wanted: Download) -> None:
    repository.cuts = [300_000]
    fetch(repository.url, [wanted])
    assert repository.asked == ["", f"bytes={300_000 // CHUNK * CHUNK}-"]
    assert wanted.path.read_bytes() == CONTENT


def test_the_next_run_continues_too(repository: Repository, wanted: Download) -> None:
    wanted.path.parent.mkdir()
    _part(wanted).write_bytes(CONTENT[:1000])
    fetch(repository.url, [wanted])
    assert repository.asked == ["bytes=1000-"]
    assert wanted.path.read_bytes() == CONTENT
    assert not _part(wanted).exists()


def test_a_repository_without_ranges_begins_again(repository: Repository, wanted: Download) -> None:
    repository.ranges = False
    wanted.path.parent.mkdir()
    _part(wanted).write_bytes(b"x" * 1000)
    fetch(repository.url, [wanted])
    assert wanted.path.read_bytes() == CONTENT


def test_a_wrong_hash_is_refused_with_file_expected_and_actual(repository: Repository, wanted: Download) -> None:
    repository.content = CONTENT[:-1] + b"?"
    actual = hashlib.sha256(repository.content).hexdigest()
    with pytest.raises(WrongHash, match=f"one.jar has SHA-256 {actual}, expected {SHA256}"):
        fetch(repository.url, [wanted])
    assert not wanted.path.exists()
    assert not _part(wanted).exists()


def test_a_file_that_is_too_long_is_refused(repository: Repository, wanted: Download) -> None:
    repository.content = CONTENT * 3
    with pytest.raises(WrongHash):
        fetch(repository.url, [wanted])
    assert not wanted.path.exists()


def test_a_rotten_part_is_thrown_away_and_the_next_run_is_right(repository: Repository, wanted: Download) -> None:
    wanted.path.parent.mkdir()
    _part(wanted).write_bytes(b"x" * 1000)
    with pytest.raises(WrongHash):
        fetch(repository.url, [wanted])
    fetch(repository.url, [wanted])
    assert wanted.path.read_bytes() == CONTENT


def test_a_file_that_is_not_there_is_asked_for_once(repository: Repository, wanted: Download) -> None:
    repository.status = 404
    with pytest.raises(DownloadFailed, match="one.jar could not be downloaded: 404"):
        fetch(repository.url, [wanted])
    assert repository.asked == [""]


def test_it_gives_up_after_some_attempts(
    repository: Repository, wanted: Download, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.local.download.PAUSE_S", 0.0)
    repository.cuts = [CHUNK] * ATTEMPTS
    with pytest.raises(DownloadFailed, match="one.jar could not be downloaded"):
        fetch(repository.url, [wanted])
    assert _part(wanted).read_bytes() == CONTENT[: CHUNK * ATTEMPTS]


def test_a_stopped_download_ends_and_keeps_its_part(repository: Repository, wanted: Download) -> None:
    stop = threading.Event()
    stop.set()
    with pytest.raises(DownloadStopped):
        fetch(repository.url, [wanted], stop)
    assert not wanted.path.exists()


def test_two_that_download_at_once_do_it_once(repository: Repository, wanted: Download) -> None:
    threads = [threading.Thread(target=fetch, args=(repository.url, [wanted])) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wanted.path.read_bytes() == CONTENT
    assert repository.asked == [""]
    assert list(wanted.path.parent.iterdir()) == [wanted.path]


def test_progress_is_plain_lines_without_a_terminal(
    repository: Repository, wanted: Download, capfd: pytest.CaptureFixture[str]
) -> None:
    fetch(repository.url, [wanted])
    lines = [line for line in capfd.readouterr().err.splitlines() if line.startswith("downloading")]  # others write too
    assert lines[::4] == [
        "downloading 1 file: 0 of 1 MB",
        "downloading 1 file: 1 of 1 MB",
    ]


def test_what_the_system_trusts_is_trusted(
    repository: Repository, wanted: Download, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A company's proxy signs with a certificate that only the system's store has (here: OpenSSL's
    default file)."""
    certificate(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "server.crt", tmp_path / "server.key")
    repository.socket = context.wrap_socket(repository.socket, server_side=True)
    url = repository.url.replace("http", "https")
    monkeypatch.setattr("gateway.local.download.PAUSE_S", 0.0)
    with pytest.raises(DownloadFailed, match="CERTIFICATE_VERIFY_FAILED"):
        fetch(url, [wanted])
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "server.crt"))
    fetch(url, [wanted])
    assert wanted.path.read_bytes() == CONTENT


def test_a_folder_is_a_repository_too(wanted: Download, tmp_path: Path) -> None:
    with pytest.raises(DownloadFailed, match="one.jar is not in the folder"):
        fetch(str(tmp_path), [wanted])
    (tmp_path / "org/example").mkdir(parents=True)
    (tmp_path / "org/example/one.jar").write_bytes(CONTENT)
    fetch(str(tmp_path), [wanted])
    assert wanted.path.read_bytes() == CONTENT

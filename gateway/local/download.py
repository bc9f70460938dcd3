"""Parallel, resumable downloads that are verified by size and SHA-256. A file is complete or does
not exist.

A file is written to `<name>.part`, which is kept if the download is interrupted, and continued by a
Range request (RFC 9110, 14.2). A lock on that part prevents two processes from writing it at the
same time: the second one waits and then finds the complete file. TLS trusts the system's
certificates; HTTPS_PROXY is honoured. A repository may also be a folder.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from io import BufferedRandom
from pathlib import Path

import httpx2

from gateway.errors import Retry, StopForOperator
from gateway.local.progress import download_progress

PARALLEL = 8
ATTEMPTS = 5
TIMEOUT_S = 60
PAUSE_S = 0.5  # after the first failed attempt; doubled each time
CHUNK = 1 << 16


class DownloadFailed(StopForOperator):
    """The repository did not deliver the file."""


class DownloadStopped(Retry):
    """The download was cancelled; the part received so far is kept."""


class WrongHash(StopForOperator):
    """The repository delivered a file other than the locked one."""


@dataclass(frozen=True, slots=True)
class Download:
    """A file to download. `source` is its path below the base address; `size` is in bytes, `sha256`
    in hexadecimal."""

    source: str
    path: Path
    size: int
    sha256: str


def fetch(base_url: str, downloads: Sequence[Download], stop: threading.Event | None = None) -> None:
    """Download every file to its path. Blocks until done or `stop` is set; shows progress on
    standard error.

    Raises `WrongHash`, `DownloadFailed` or `DownloadStopped` for the first file that fails, after
    the others have ended.
    """
    stop = stop or threading.Event()
    with (
        download_progress(len(downloads), sum(one.size for one in downloads)) as advance,
        httpx2.Client(timeout=TIMEOUT_S, follow_redirects=True, headers={"Accept-Encoding": "identity"}) as session,
        ThreadPoolExecutor(PARALLEL, thread_name_prefix="download") as pool,
    ):
        # The largest first, so that it does not start last and prolong the download.
        ordered = sorted(downloads, key=lambda one: -one.size)
        futures = [pool.submit(_fetch_one, session, base_url, one, advance, stop) for one in ordered]
        for future in futures:
            future.result()


def _fetch_one(
    session: httpx2.Client,
    base_url: str,
    wanted: Download,
    advance: Callable[[int], None],
    stop: threading.Event,
) -> None:
    seen = 0

    def report(have: int) -> None:
        nonlocal seen
        advance(have - seen)
        seen = have

    wanted.path.parent.mkdir(parents=True, exist_ok=True)
    part = wanted.path.with_name(wanted.path.name + ".part")
    with _locked(part) as file:
        if wanted.path.exists() and wanted.path.stat().st_size == wanted.size:
            part.unlink(missing_ok=True)
            report(wanted.size)
            return
        for attempt in range(ATTEMPTS):
            try:
                if is_folder(base_url):
                    _copy(Path(base_url, wanted.source), file, report)
                else:
                    _continue(session, f"{base_url}/{wanted.source}", wanted, file, report, stop)
                break
            except FileNotFoundError as error:
                raise DownloadFailed(f"{error.filename} is not in the folder {base_url}") from error
            except httpx2.HTTPError as error:
                refused = isinstance(error, httpx2.HTTPStatusError) and error.response.status_code < 500
                if refused or attempt == ATTEMPTS - 1:
                    raise _failed(wanted, f"{base_url}/{wanted.source}", error) from error
                stop.wait(PAUSE_S * 2**attempt)
        _check(wanted, file, part)
        part.rename(wanted.path)


def _failed(wanted: Download, url: str, error: httpx2.HTTPError) -> DownloadFailed:
    what, hint = str(error), "the next run resumes this download"
    if isinstance(error, httpx2.HTTPStatusError):
        what = f"{error.response.status_code} {error.response.reason_phrase}"
        if error.response.status_code < 500:
            hint = "check the address, and that no proxy in between blocks the request"
    if "CERTIFICATE_VERIFY_FAILED" in what:
        hint = "add your company's CA certificate to the system's trust store, or set SSL_CERT_FILE to its path"
    return DownloadFailed(f"{wanted.path.name} could not be downloaded: {what} (GET {url})", hint=hint)


def is_folder(repository: str) -> bool:
    return not repository.startswith(("http://", "https://"))


def _copy(source: Path, file: BufferedRandom, report: Callable[[int], None]) -> None:
    with source.open("rb") as original:
        file.truncate(0)
        shutil.copyfileobj(original, file)
    file.flush()
    report(file.tell())


def _continue(
    session: httpx2.Client,
    url: str,
    wanted: Download,
    file: BufferedRandom,
    report: Callable[[int], None],
    stop: threading.Event,
) -> None:
    """Request the bytes that the part does not have yet."""
    have = file.seek(0, os.SEEK_END)
    if have > wanted.size:
        have = file.truncate(0)
    if have == wanted.size:
        return
    headers = {"Range": f"bytes={have}-"} if have else {}
    with session.stream("GET", url, headers=headers) as response:
        response.raise_for_status()
        if have and response.status_code != httpx2.codes.PARTIAL_CONTENT:
            have = file.truncate(0)
        report(have)
        for chunk in response.iter_raw(CHUNK):
            if stop.is_set():
                raise DownloadStopped(f"{wanted.path.name} is no longer needed")
            file.write(chunk)
            have += len(chunk)
            report(have)
            if have > wanted.size:
                break
    file.flush()
    if have < wanted.size:
        raise httpx2.ReadError(f"ended after {have} of {wanted.size} bytes")


def _check(wanted: Download, file: BufferedRandom, part: Path) -> None:
    file.seek(0)
    actual = hashlib.file_digest(file, "sha256").hexdigest()
    if actual != wanted.sha256:
        part.unlink()
        raise WrongHash(
            f"{wanted.path.name} has SHA-256 {actual}, expected {wanted.sha256}",
            hint="a proxy or a copy of the repository may have changed the file. It has been deleted: run the command "
            "again, or set WALGATE_REPOSITORY to another source",
        )


@contextmanager
def _locked(part: Path) -> Iterator[BufferedRandom]:
    """Open the part for reading and writing, locked against other processes."""
    while True:
        file = part.open("a+b")
        fcntl.flock(file, fcntl.LOCK_EX)
        if _inode(part) == os.fstat(file.fileno()).st_ino:
            break
        file.close()  # another process renamed or removed it before releasing the lock
    with file:
        yield file


def _inode(path: Path) -> int | None:
    try:
        return path.stat().st_ino
    except FileNotFoundError:
        return None

"""HTTP/1.1 for the registry's client: JSON to one address over connections that stay open (RFC 9112).

Small on purpose: the general clients take 40 MB and 120 ms to import, and a millisecond of CPU a call. It follows no
redirect, speaks to no proxy, and asks for no compression.
"""

from __future__ import annotations

import asyncio
import base64
import re
import ssl
from contextlib import suppress
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

_STATUS_LINE: Final = re.compile(rb"HTTP/1\.([01]) (\d{3})(?: |\r\n)")
_JSON: Final = "application/vnd.schemaregistry.v1+json"
_NO_BODY: Final = (204, 304)

Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class HttpClient:
    """Belongs to one event loop. Several requests may run at once, each over a connection of its own."""

    def __init__(
        self, url: str, *, username: str | None, password: str | None, ca_file: Path | None, timeout_s: float
    ) -> None:
        """Raises ValueError for an address that is none."""
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError("not an http or https address")
        self._host = parts.hostname
        self._port = parts.port or (443 if parts.scheme == "https" else 80)
        self._tls = ssl.create_default_context(cafile=ca_file) if parts.scheme == "https" else None
        self._path = parts.path.rstrip("/")
        self._timeout_s = timeout_s
        host = parts.netloc.rpartition("@")[2]
        self._headers = f"Host: {host}\r\nAccept: {_JSON}, application/json\r\nUser-Agent: walgate\r\n"
        if username is not None:
            credentials = base64.b64encode(f"{username}:{password or ''}".encode()).decode()
            self._headers += f"Authorization: Basic {credentials}\r\n"
        self._idle: list[Connection] = []

    async def close(self) -> None:
        while self._idle:
            connection = self._idle.pop()
            _abort(connection)
            with suppress(OSError):
                await connection[1].wait_closed()

    async def request(self, method: str, path: str, body: bytes | None = None) -> tuple[int, bytes]:
        """Status and body. Raises OSError (TimeoutError among them) where no whole answer came."""
        headers = self._headers
        if body is not None:
            headers += f"Content-Type: {_JSON}\r\nContent-Length: {len(body)}\r\n"
        message = f"{method} {self._path}{path} HTTP/1.1\r\n{headers}\r\n".encode() + (body or b"")
        try:
            async with asyncio.timeout(self._timeout_s):
                while self._idle:
                    try:
                        return await self._exchange(self._idle.pop(), message)
                    except (ConnectionError, EOFError):
                        continue  # the server may have closed it while it was idle: what we ask can be asked twice
                return await self._exchange(await self._connect(), message)
        except OSError:  # also a certificate that does not hold, which is a ValueError too
            raise
        except (EOFError, asyncio.LimitOverrunError, ValueError) as error:
            raise ConnectionError(f"no whole HTTP answer: {error}") from error

    async def _connect(self) -> Connection:
        return await asyncio.open_connection(self._host, self._port, ssl=self._tls)

    async def _exchange(self, connection: Connection, message: bytes) -> tuple[int, bytes]:
        """One request and its answer; the connection is kept when it may be used again."""
        reader, writer = connection
        if writer.is_closing():  # uvloop's RuntimeError otherwise, once it has closed what the server reset
            raise ConnectionResetError("the connection was reset while it was idle")
        try:
            writer.write(message)
            status, body, stays_open = await _answer(reader)
        except BaseException:
            _abort(connection)
            raise
        if stays_open:
            self._idle.append(connection)
        else:
            _abort(connection)
        return status, body


def _abort(connection: Connection) -> None:
    connection[1].transport.abort()


async def _answer(reader: asyncio.StreamReader) -> tuple[int, bytes, bool]:
    """(status, body, whether the connection stays open). Raises ValueError for what is no HTTP/1."""
    while True:
        head = await reader.readuntil(b"\r\n\r\n")
        line = _STATUS_LINE.match(head)
        if line is None:
            raise ValueError(f"it begins with {head[:20]!r}")
        status = int(line[2])
        if status >= 200:  # else the true answer follows
            break
    headers: dict[bytes, bytes] = {}
    for field in head.split(b"\r\n")[1:]:
        name, _, value = field.partition(b":")
        headers[name.strip().lower()] = value.strip().lower()
    stays_open = line[1] == b"1" and headers.get(b"connection") != b"close"
    if status in _NO_BODY:
        return status, b"", stays_open
    if headers.get(b"transfer-encoding", b"").endswith(b"chunked"):
        return status, await _chunks(reader), stays_open
    length = headers.get(b"content-length")
    if length is not None:
        return status, await reader.readexactly(int(length)), stays_open
    return status, await reader.read(), False


async def _chunks(reader: asyncio.StreamReader) -> bytes:
    pieces = []
    while size := int((await reader.readuntil(b"\r\n")).partition(b";")[0], 16):
        pieces.append(await reader.readexactly(size))
        await reader.readexactly(2)
    while await reader.readuntil(b"\r\n") != b"\r\n":
        pass  # trailer
    return b"".join(pieces)

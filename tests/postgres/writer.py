"""The server's side of the protocol, written out: what `frames`, `inbox` and `server_message`
read."""

from __future__ import annotations

import struct
from collections.abc import Mapping

COPY_BOTH = b"W\x00\x00\x00\x07\x00\x00\x00"
COPY_DONE = b"c\x00\x00\x00\x04"


def message(kind: str, body: bytes = b"") -> bytes:
    return kind.encode() + struct.pack("!i", len(body) + 4) + body


def xlog_data(start_lsn: int, payload: bytes, end_lsn: int = 0, time: int = 0) -> bytes:
    return message("d", b"w" + struct.pack("!QQq", start_lsn, end_lsn, time) + payload)


def keepalive(end_lsn: int, *, reply_requested: bool = False, time: int = 0) -> bytes:
    return message("d", b"k" + struct.pack("!QqB", end_lsn, time, reply_requested))


def server_message(kind: str, fields: Mapping[str, str]) -> bytes:
    """ErrorResponse 'E' or NoticeResponse 'N'."""
    return message(kind, b"".join(code.encode() + text.encode() + b"\0" for code, text in fields.items()) + b"\0")


def error(sqlstate: str, text: str = "something", *, severity: str = "ERROR", **more: str) -> bytes:
    return server_message("E", {"S": severity, "V": severity, "C": sqlstate, "M": text, **more})


def warning(sqlstate: str, text: str = "something", **more: str) -> bytes:
    return server_message("N", {"S": "WARNING", "V": "WARNING", "C": sqlstate, "M": text, **more})


def parameter_status(name: str, value: str) -> bytes:
    return message("S", name.encode() + b"\0" + value.encode() + b"\0")


def row_description(*names: str) -> bytes:
    columns = b"".join(name.encode() + b"\0" + struct.pack("!ihihih", 0, 0, 25, -1, -1, 0) for name in names)
    return message("T", struct.pack("!h", len(names)) + columns)


def data_row(*values: bytes | None) -> bytes:
    columns = b"".join(
        struct.pack("!i", -1) if value is None else struct.pack("!i", len(value)) + value for value in values
    )
    return message("D", struct.pack("!h", len(values)) + columns)

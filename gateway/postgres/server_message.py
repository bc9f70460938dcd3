"""Parse ErrorResponse and NoticeResponse, which have fields of a code byte and a C string, and end
with a zero byte (PostgreSQL manual, 54.8)."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

import asyncpg

from gateway.postgres.copy_frames import FrameError
from schemas.lsn import Lsn

# Data exceptions quote the offending value, except 22023, which is about parameters.
_QUOTES_VALUES = ("22", "23")
_LSN: Final = re.compile(r"\b[0-9A-F]{1,8}/[0-9A-F]{1,8}\b")


@dataclass(frozen=True, slots=True)
class ServerMessage:
    """An error or notice from the server. `severity` (ERROR, FATAL, PANIC, WARNING, NOTICE, ...),
    `sqlstate`, and `file` and `routine` (the place in the server's source that reported it) are
    never translated. `context` is not for logs: it may quote statements."""

    severity: str
    sqlstate: str
    message: str
    detail: str = ""
    hint: str = ""
    file: str = ""
    routine: str = ""
    context: str = ""

    @property
    def change_lsn(self) -> Lsn:
        """The LSN of the change that the server was decoding (output_plugin_error_callback in
        logical.c); 0 if unknown."""
        found = _LSN.search(self.context)
        return Lsn.parse(found[0]) if found else Lsn(0)

    def __str__(self) -> str:
        """Return the text for logs and errors. Texts that may quote a row's values are omitted; the
        server's log has them."""
        if self.sqlstate.startswith(_QUOTES_VALUES) and self.sqlstate != "22023":
            condition = asyncpg.PostgresError.get_message_class_for_sqlstate(self.sqlstate).__name__
            place = f" in {self.routine}" if self.routine else ""
            return (
                f"{self.severity} {self.sqlstate} ({condition}{place}): message omitted, as it may contain row values; see the "
                "server's log"
            )
        detail = f" ({self.detail})" if self.detail else ""
        return f"{self.severity} {self.sqlstate}: {self.message}{detail}"


def parse_server_message(body: bytes) -> ServerMessage:
    """Parse a message; `body` is what follows the length. Raises FrameError if it is not a list of
    fields with SQLSTATE and message.

    "Since more field types might be added in future, frontends should silently ignore fields of
    unrecognized type."
    """
    fields: dict[int, str] = {}
    position = 0
    while position < len(body) and body[position] != 0:
        end = body.find(0, position + 1)
        if end < 0:
            raise FrameError("server message", position, "a field that ends with a zero byte", "none")
        fields[body[position]] = body[position + 1 : end].decode("utf-8", "replace")
        position = end + 1
    if position != len(body) - 1:
        raise FrameError("server message", position, "one zero byte at the end", f"{len(body) - position} bytes")
    sqlstate, message = fields.get(ord("C")), fields.get(ord("M"))
    if sqlstate is None or message is None:
        raise FrameError("server message", 0, "the fields C and M", "".join(map(chr, fields)) or "no field")
    severity = fields.get(ord("V"), fields.get(ord("S"), "ERROR"))
    detail, hint, file, routine, context = (fields.get(ord(code), "") for code in "DHFRW")
    return ServerMessage(severity, sqlstate, message, detail, hint, file, routine, context)

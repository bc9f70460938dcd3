"""ErrorResponse and NoticeResponse: fields of (code byte, C string), ended by a zero byte (PostgreSQL manual, 54.8)."""

from __future__ import annotations

from dataclasses import dataclass

from gateway.postgres.copy_frames import FrameError

# Data exceptions quote the value that was wrong, except 22023, which is about parameters.
_QUOTES_VALUES = ("22", "23")


@dataclass(frozen=True, slots=True)
class ServerMessage:
    """What the server says. Never translated: `severity` (ERROR, FATAL, PANIC, WARNING, NOTICE, ...), `sqlstate`, and `file` and
    `routine`, the place in the server's source that reported it."""

    severity: str
    sqlstate: str
    message: str
    detail: str = ""
    hint: str = ""
    file: str = ""
    routine: str = ""

    def __str__(self) -> str:
        """For logs and errors. Texts that may quote a row's values are left out: they are in the server's log."""
        if self.sqlstate.startswith(_QUOTES_VALUES) and self.sqlstate != "22023":
            return (
                f"{self.severity} {self.sqlstate}: message omitted, as it may contain row values; see the server's log"
            )
        detail = f" ({self.detail})" if self.detail else ""
        return f"{self.severity} {self.sqlstate}: {self.message}{detail}"


def parse_server_message(body: bytes) -> ServerMessage:
    """`body` is what follows the length. Raises FrameError when it is not a list of fields with SQLSTATE and message.

    "Since more field types might be added in future, frontends should silently ignore fields of unrecognized type."
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
    detail, hint, file, routine = (fields.get(ord(code), "") for code in "DHFR")
    return ServerMessage(severity, sqlstate, message, detail, hint, file, routine)

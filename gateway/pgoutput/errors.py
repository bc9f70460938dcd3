"""PgOutputError, the only error that this package raises."""

from __future__ import annotations

from gateway.errors import REPORT, StopForOperator


class PgOutputError(StopForOperator):
    """A message does not comply with the protocol. Nothing can be skipped safely, so the operator
    must act.

    `offset` counts bytes from the message's first byte (its type letter). The text of the error
    contains lengths, counts and single bytes, never a row value, a name from the stream or the
    content of a logical message.
    """

    def __init__(self, message_name: str, field: str, offset: int, expected: str, actual: str) -> None:
        super().__init__(
            f"pgoutput: {message_name}, {field} at byte {offset}: expected {expected}, got {actual}",
            hint=REPORT,
        )
        self.message_name = message_name
        self.field = field
        self.offset = offset
        self.expected = expected
        self.actual = actual

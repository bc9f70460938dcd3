"""The bytes that identify types of messages, parts of a row message and kinds of a column
(PostgreSQL manual, 55.9).

They are written as numbers instead of calls of `ord()`, because the compiler of the row path then
sees constants.
"""

from __future__ import annotations

from typing import Final

# Types of messages
BEGIN: Final = 0x42  # B
MESSAGE: Final = 0x4D  # M
COMMIT: Final = 0x43  # C
ORIGIN: Final = 0x4F  # O
RELATION: Final = 0x52  # R
TYPE: Final = 0x59  # Y
INSERT: Final = 0x49  # I
UPDATE: Final = 0x55  # U
DELETE: Final = 0x44  # D
TRUNCATE: Final = 0x54  # T
STREAM_START: Final = 0x53  # S
STREAM_STOP: Final = 0x45  # E
STREAM_COMMIT: Final = 0x63  # c
STREAM_ABORT: Final = 0x41  # A
BEGIN_PREPARE: Final = 0x62  # b
PREPARE: Final = 0x50  # P
COMMIT_PREPARED: Final = 0x4B  # K
ROLLBACK_PREPARED: Final = 0x72  # r
STREAM_PREPARE: Final = 0x70  # p

ROW_MESSAGES: Final = frozenset({INSERT, UPDATE, DELETE})

# Parts of a row message
KEY_TUPLE: Final = 0x4B  # K
OLD_TUPLE: Final = 0x4F  # O
NEW_TUPLE: Final = 0x4E  # N

# Kinds of a column in TupleData
KIND_NULL: Final = 0x6E  # n
KIND_UNCHANGED: Final = 0x75  # u
KIND_TEXT: Final = 0x74  # t
KIND_BINARY: Final = 0x62  # b

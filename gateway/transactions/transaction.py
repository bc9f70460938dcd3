"""Facts about transactions that the state machine keeps and hands out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from gateway.events.context import Context
from gateway.events.manifest import Manifest
from gateway.events.row_encoder import RowEncoder


class Outlet(Protocol):
    """Where the records of one topic go. A record counts towards the manifest that it is appended with."""

    def append(self, key: bytes | None, value: bytes, manifest: Manifest | None) -> None: ...

    def append_everywhere(self, value: bytes, manifest: Manifest | None) -> None:
        """The same record without a key to every partition of the topic."""


@dataclass(slots=True)
class RelationVersion:
    """A relation as one Relation message described it, ready for its rows."""

    name: str
    schema_id: int
    encoder: RowEncoder
    outlet: Outlet
    noted_in: Manifest | None = None
    """The newest transaction that has noted the schema id."""


MessageEncoder = Callable[[Context, int, int, bool, int, str, bytes], bytes]
"""(context, change_lsn, ordinal, transactional, message_lsn, prefix, content) -> framed LogicalMessage."""


@dataclass(frozen=True, slots=True)
class MessageTopic:
    """The topic of logical decoding messages."""

    schema_id: int
    encode: MessageEncoder
    outlet: Outlet


@dataclass(slots=True)
class Transaction:
    """One transaction that is being received; for an in-progress one `commit_lsn` and `commit_time` are None."""

    xid: int
    manifest: Manifest
    context: Context
    commit_lsn: int | None = None
    commit_time: int | None = None
    origin: str | None = None
    context_subxid: int = -1
    ordinal: int = 0
    silent: bool = True
    """No event yet since its Begin or Stream Start: the marker of that is still owed."""
    has_messages: bool = False
    """Logical messages were sent with it."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """A prepared transaction whose rows are (or are about to be) durable, waiting for its end without limit of time."""

    gid: str
    xid: int
    prepare_lsn: int
    origin: str | None
    manifest: Manifest

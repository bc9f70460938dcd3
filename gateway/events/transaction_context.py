"""The fields that all events of a transaction (or of a subtransaction, while it streams) have in
common, already in Avro."""

from __future__ import annotations

from gateway.values.column_readers import some_bytes
from schemas.varint import encode_long, encode_some_lsn

_NULL = b"\0"
_NO_SUBXID = encode_long(-1)


class TransactionContext:
    """The common fields. They are encoded once for each transaction, so that a row only copies
    them.

    `identity` holds the envelope's xid, subxid and epoch; `commit` holds its commit_lsn,
    commit_time (microseconds since the Unix epoch) and origin. `commit_lsn` is None for a
    transaction in progress. `in_stream` tells whether the row messages of the transaction contain
    an xid.
    """

    __slots__ = ("commit", "commit_lsn", "commit_time", "epoch", "identity", "in_stream", "origin", "subxid", "xid")

    def __init__(
        self,
        xid: int,
        subxid: int,
        epoch: int,
        commit_lsn: int | None,
        commit_time: int | None,
        origin: str | None,
        in_stream: bool = False,
    ) -> None:
        self.xid = xid
        self.subxid = subxid
        self.epoch = epoch
        self.commit_lsn = commit_lsn
        self.commit_time = commit_time
        self.origin = origin
        self.in_stream = in_stream
        self.identity = encode_long(xid) + (_NO_SUBXID if subxid == -1 else encode_long(subxid)) + encode_long(epoch)
        self.commit = (
            (_NULL if commit_lsn is None else encode_some_lsn(commit_lsn))
            + (_NULL if commit_time is None else encode_some_lsn(commit_time))
            + (_NULL if origin is None else some_bytes(origin.encode()))
        )
